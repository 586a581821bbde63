// What every operation must give, computed as simply as possible and independently of the library:
// scalar, recursive, half-precision types by arithmetic on doubles. Compiled with
// -ffp-contract=off.
//
// The *canonical order*: tree(n) = combine(tree(first k), tree(the rest)), k the largest power of
// two below n. Buffers are vectors of bytes, one per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tutti/types.h"

namespace tutti::reference {

using Bytes = std::vector<std::byte>;

// ---- Elements

/// 16-bit floating types: `fraction_bits` below the point, 15 - fraction_bits of exponent.
double decode(std::uint16_t bits, int fraction_bits);
std::uint16_t encode(double value, int fraction_bits);
inline constexpr int kHalfFraction = 10;
inline constexpr int kBrainFraction = 7;

template <class T>
T read_as(const void* data, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

/// f32, f16 and bf16 as they are accumulated.
float read_float(DType dtype, const void* data, std::size_t index);

/// What a complex number has two of.
DType part_dtype(DType dtype);

// ---- Operations

/// The reduction of elements [first, first + count) of all inputs.
Bytes reduce(DType dtype, ReduceOp op, const std::vector<const void*>& inputs, std::size_t first,
             std::size_t count);

/// The element that changes nothing, `count` times, for a pair that has a reduction.
Bytes identity(DType dtype, ReduceOp::Kind kind, std::size_t count);

/// The output of `rank` after a collective in which rank r gave `inputs[r]`; `count` as in Request:
/// what each rank contributes or receives in all_gather, gather, scatter, reduce_scatter and
/// all_to_all, the whole buffer elsewhere. Empty where the rank receives nothing.
Bytes expected(Op op, DType dtype, ReduceOp reduce_op, int root, int rank,
               const std::vector<Bytes>& inputs, std::size_t count);

// ---- Comparing and making data

/// Index of the first element whose bits differ (a NaN equals a NaN), or `count`.
std::size_t first_difference(DType dtype, const void* a, const void* b, std::size_t count);

/// Data that finds mistakes: moderate values whose sums round, raw bits, and the special values.
Bytes random_data(DType dtype, std::size_t count, std::uint64_t seed);

}  // namespace tutti::reference
