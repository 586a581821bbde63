// The two 16-bit floating types on bits: what types.cc exports and tests compare kernels with.
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

/// The float nearest to nothing lost: binary16 embeds in binary32 exactly.
constexpr float half_value(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  if (fraction == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(fraction) - 21;  // the leading bit becomes the hidden one
  fraction = (fraction << shift) & 0x3ffu;
  return std::bit_cast<float>(sign | static_cast<std::uint32_t>(113 - shift) << 23 |
                              fraction << 13);
}

/// Rounds to nearest even; overflows to infinity, underflows through denormals; NaNs stay quiet
/// NaNs.
constexpr std::uint16_t half_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520, half way to 2^16, and above
  if (magnitude >= 0x38800000u) {                       // 2^-14: normal
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude <= 0x33000000u) return sign;  // 2^-25, half of the least denormal: ties to zero
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t drop = 126 - exponent;  // 14 ... 24 bits below the least denormal
  const std::uint32_t kept = fraction >> drop;
  const std::uint32_t rest = fraction & ((1u << drop) - 1);
  const std::uint32_t half_way = 1u << (drop - 1);
  const bool up = rest > half_way || (rest == half_way && (kept & 1u) != 0);
  return static_cast<std::uint16_t>(sign | (kept + (up ? 1u : 0u)));
}

constexpr float bfloat_value(std::uint16_t bfloat) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat) << 16);
}

constexpr std::uint16_t bfloat_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace tutti
