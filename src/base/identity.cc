#include "base/identity.h"

#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tutti {

namespace {

template <class T>
T largest() {
  if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::infinity();
  return std::numeric_limits<T>::max();
}

template <class T>
T smallest() {
  if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
  return std::numeric_limits<T>::lowest();
}

template <class T>
T identity(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      return T(0);
    case ReduceOp::Kind::product:
      return T(1);
    case ReduceOp::Kind::min:
      return largest<T>();
    case ReduceOp::Kind::max:
      return smallest<T>();
    case ReduceOp::Kind::band:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(~T(0));
      break;
  }
  return T(0);
}

template <class T>
void repeat(T value, void* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<std::byte*>(out) + i * sizeof(T), &value, sizeof(T));
  }
}

/// As one byte that is 0 or 1.
std::uint8_t truth_identity(ReduceOp::Kind kind) {
  return kind == ReduceOp::Kind::min || kind == ReduceOp::Kind::band ? 1 : 0;
}

}  // namespace

void fill_identity(DType dtype, ReduceOp::Kind kind, void* out, std::size_t count) noexcept {
  switch (dtype) {
    case DType::bool_:
      return repeat(truth_identity(kind), out, count);
    case DType::u8:
      return repeat(identity<std::uint8_t>(kind), out, count);
    case DType::i8:
      return repeat(identity<std::int8_t>(kind), out, count);
    case DType::i16:
      return repeat(identity<std::int16_t>(kind), out, count);
    case DType::i32:
      return repeat(identity<std::int32_t>(kind), out, count);
    case DType::i64:
      return repeat(identity<std::int64_t>(kind), out, count);
    case DType::u16:
      return repeat(identity<std::uint16_t>(kind), out, count);
    case DType::u32:
      return repeat(identity<std::uint32_t>(kind), out, count);
    case DType::u64:
      return repeat(identity<std::uint64_t>(kind), out, count);
    case DType::f16:
      return repeat(float16(identity<float>(kind)), out, count);
    case DType::bf16:
      return repeat(bfloat16(identity<float>(kind)), out, count);
    case DType::f32:
      return repeat(identity<float>(kind), out, count);
    case DType::f64:
      return repeat(identity<double>(kind), out, count);
    case DType::complex64:
      return repeat(std::complex<float>(identity<float>(kind)), out, count);
    case DType::complex128:
      return repeat(std::complex<double>(identity<double>(kind)), out, count);
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;  // never reduced
  }
}

}  // namespace tutti
