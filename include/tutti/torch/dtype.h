// Element types of libtorch and of Tutti.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <utility>

#include "tutti/types.h"

namespace tutti {

/// Every type of Tutti's, once.
inline constexpr std::pair<c10::ScalarType, DType> kTorchDTypes[] = {
    {c10::kBool, DType::bool_},
    {c10::kByte, DType::u8},
    {c10::kChar, DType::i8},
    {c10::kShort, DType::i16},
    {c10::kInt, DType::i32},
    {c10::kLong, DType::i64},
    {c10::kUInt16, DType::u16},
    {c10::kUInt32, DType::u32},
    {c10::kUInt64, DType::u64},
    {c10::kHalf, DType::f16},
    {c10::kBFloat16, DType::bf16},
    {c10::kFloat, DType::f32},
    {c10::kDouble, DType::f64},
    {c10::kComplexFloat, DType::complex64},
    {c10::kComplexDouble, DType::complex128},
    {c10::kFloat8_e4m3fn, DType::f8_e4m3},
    {c10::kFloat8_e5m2, DType::f8_e5m2},
};

/// Empty for what Tutti has not: quantised types, complex numbers of 16-bit floats and others.
constexpr std::optional<DType> dtype_of_scalar(c10::ScalarType type) noexcept {
  for (const auto& [scalar, dtype] : kTorchDTypes) {
    if (scalar == type) return dtype;
  }
  return std::nullopt;
}

}  // namespace tutti
