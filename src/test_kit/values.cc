#include "test_kit/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/hash.h"

namespace tutti::conformance {

namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

/// A finite value of moderate size, exact in every format or needing rounding, as the bits fall.
double ordinary(std::uint64_t bits) {
  constexpr double kScales[] = {0.125, 0.25, 0.5, 1, 2, 4, 8, 16};
  const double mantissa = static_cast<double>(bits >> 12) / (1ull << 52);  // [0, 1)
  return ((bits & 8) != 0 ? 1 + mantissa : -1 - mantissa) * kScales[bits & 7];
}

template <class T>
T special_float(std::uint64_t bits) {
  using Limits = std::numeric_limits<T>;
  const T values[] = {T(0),
                      -T(0),
                      Limits::infinity(),
                      -Limits::infinity(),
                      Limits::max(),
                      Limits::lowest(),
                      Limits::min(),
                      Limits::denorm_min(),
                      T(1),
                      Limits::quiet_NaN()};
  return values[bits % std::size(values)];
}

template <class T>
std::uint64_t float_bits(T value) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<std::uint32_t>(value);
  if constexpr (sizeof(T) == 8) return std::bit_cast<std::uint64_t>(value);
  if constexpr (sizeof(T) == 2) return value.bits;
}

template <class Half>
std::uint64_t special_half(std::uint64_t bits) {
  const std::uint16_t infinity = std::is_same_v<Half, bfloat16> ? 0x7f80 : 0x7c00;
  const std::uint16_t values[] = {0x0000,
                                  0x8000,
                                  infinity,
                                  static_cast<std::uint16_t>(infinity | 0x8000),
                                  static_cast<std::uint16_t>(infinity - 1),  // the largest
                                  static_cast<std::uint16_t>(infinity + 1),  // a signalling NaN
                                  static_cast<std::uint16_t>(infinity | 0x0040),
                                  0x0001,
                                  0x8001};
  return values[bits % std::size(values)];
}

// The bits of one element, in the low bytes, from random ones and a kind below 16.

std::uint64_t boolean(std::uint64_t kind, std::uint64_t bits) {
  return kind == 0 ? bits : bits & 1;  // all but 0 means true
}

std::uint64_t integer(std::uint64_t kind, std::uint64_t bits) {
  return kind < 2 ? (bits & 1) - 1 + (bits >> 63) : bits;
}

template <class T>
std::uint64_t floating(std::uint64_t kind, std::uint64_t bits) {
  if (kind == 1) return bits;  // any bits at all
  if constexpr (sizeof(T) == 2) {
    if (kind == 0) return special_half<T>(bits);
    return float_bits(T(static_cast<float>(ordinary(bits))));
  } else {
    return float_bits(kind == 0 ? special_float<T>(bits) : static_cast<T>(ordinary(bits)));
  }
}

template <class Bits, auto kElement>
void fill_each(std::uint64_t stream, std::size_t first, std::size_t count, void* out) {
  auto* const to = static_cast<std::byte*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t random = mix64(stream + (first + i) * 0x9e3779b97f4a7c15u);
    const auto bits = static_cast<Bits>(kElement(random >> 60, mix64(random)));
    std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
  }
}

/// A complex number is filled and compared as its two parts.
DType part_dtype(DType dtype) { return dtype == DType::complex64 ? DType::f32 : DType::f64; }

std::uint64_t load(const void* elements, std::size_t bytes, std::size_t index) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(elements) + index * bytes, bytes);
  return bits;
}

bool is_nan(DType dtype, std::uint64_t bits) {
  if (dtype == DType::f64) return (bits & ~0ull >> 1) > 0x7ff0000000000000u;
  if (dtype == DType::f32) return (bits & 0x7fffffff) > 0x7f800000;
  if (dtype == DType::f16) return (bits & 0x7fff) > 0x7c00;
  return dtype == DType::bf16 && (bits & 0x7fff) > 0x7f80;
}

}  // namespace

void fill(std::uint64_t seed, int rank, DType dtype, std::size_t first, std::size_t count,
          void* out) {
  const std::uint64_t stream = hash_combine(seed, static_cast<std::uint64_t>(rank));
  switch (dtype) {
    case DType::bool_:
      return fill_each<std::uint8_t, boolean>(stream, first, count, out);
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return fill_each<std::uint8_t, integer>(stream, first, count, out);
    case DType::u16:
    case DType::i16:
      return fill_each<std::uint16_t, integer>(stream, first, count, out);
    case DType::u32:
    case DType::i32:
      return fill_each<std::uint32_t, integer>(stream, first, count, out);
    case DType::u64:
    case DType::i64:
      return fill_each<std::uint64_t, integer>(stream, first, count, out);
    case DType::f16:
      return fill_each<std::uint16_t, floating<float16>>(stream, first, count, out);
    case DType::bf16:
      return fill_each<std::uint16_t, floating<bfloat16>>(stream, first, count, out);
    case DType::f32:
      return fill_each<std::uint32_t, floating<float>>(stream, first, count, out);
    case DType::f64:
      return fill_each<std::uint64_t, floating<double>>(stream, first, count, out);
    case DType::complex64:
    case DType::complex128:
      return fill(seed, rank, part_dtype(dtype), 2 * first, 2 * count, out);
  }
}

std::string difference(DType dtype, const void* expected, const void* got, std::size_t count) {
  if (is_complex(dtype)) return difference(part_dtype(dtype), expected, got, 2 * count);
  const std::size_t bytes = size_of(dtype);
  if (count == 0 || std::memcmp(expected, got, count * bytes) == 0) return {};
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t want = load(expected, bytes, i), have = load(got, bytes, i);
    if (want == have || (is_nan(dtype, want) && is_nan(dtype, have))) continue;
    return fmt::format("element {} of {} is {:#x}, expected {:#x}", i, count, have, want);
  }
  return {};
}

std::uint64_t bits_of(DType dtype, const void* elements, std::size_t count) {
  if (is_complex(dtype)) return bits_of(part_dtype(dtype), elements, 2 * count);
  const std::size_t bytes = size_of(dtype);
  std::uint64_t hash = count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = load(elements, bytes, i);
    hash = hash_combine(hash, is_nan(dtype, bits) ? ~std::uint64_t{0} : bits);
  }
  return hash;
}

Guarded::Guarded(DType dtype, std::size_t count, std::size_t skew)
    : dtype_(dtype),
      count_(count),
      offset_(kGuard + skew * size_of(dtype)),
      bytes_(offset_ + count * size_of(dtype) + kGuard, kGuardByte) {}

Buffer Guarded::part(std::size_t first, std::size_t part_count) noexcept {
  return {static_cast<std::byte*>(data()) + first * size_of(dtype_), part_count, dtype_};
}

bool Guarded::guards_are_whole() const noexcept {
  const auto whole = [](std::byte byte) { return byte == kGuardByte; };
  return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset_),
                     whole) &&
         std::all_of(bytes_.end() - static_cast<std::ptrdiff_t>(kGuard), bytes_.end(), whole);
}

}  // namespace tutti::conformance
