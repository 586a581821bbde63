// CRC-32C (Castagnoli), the checksum of iSCSI and SCTP: finds every change of at most three bits in
// short messages, and every burst of at most 32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

namespace detail {

inline constexpr auto kCrc32cTable = [] {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}();

}  // namespace detail

constexpr std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  std::uint32_t value = ~0u;
  for (const std::byte byte : bytes) {
    value = (value >> 8) ^ detail::kCrc32cTable[(value ^ static_cast<std::uint8_t>(byte)) & 0xff];
  }
  return ~value;
}

}  // namespace tutti
