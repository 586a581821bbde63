// CRC-32 of zip, gzip and PNG, eight bytes at a time (Kounavis and Berry 2005, "slicing by 8").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tutti::checkpoint {

namespace detail {

/// [k][byte]: what a byte does that is followed by k others.
inline constexpr auto kCrc32Tables = [] {
  constexpr std::uint32_t kPolynomial = 0xedb88320;  // reversed
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

}  // namespace detail

inline std::uint32_t crc32(std::span<const std::byte> bytes) noexcept {
  const auto& tables = detail::kCrc32Tables;
  std::uint32_t value = ~0u;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    word ^= value;
    value = 0;
    for (std::size_t k = 0; k < 8; ++k) value ^= tables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (const std::byte byte : bytes) {
    value = (value >> 8) ^ tables[0][(value ^ static_cast<std::uint8_t>(byte)) & 0xff];
  }
  return ~value;
}

}  // namespace tutti::checkpoint
