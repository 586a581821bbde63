// Elements of every type as doubles, and what each operation must give, computed one by one. All
// values are small integers, so that every sum is exact in every type and in every order.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace tutti::mpi_test {

inline const DType kDTypes[] = {DType::bool_, DType::u8,  DType::i8,  DType::i16, DType::i32,
                                DType::i64,   DType::u16, DType::u32, DType::u64, DType::f16,
                                DType::bf16,  DType::f32, DType::f64};
inline const ReduceOp kOps[] = {ReduceOp::sum,  ReduceOp::product, ReduceOp::min,
                                ReduceOp::max,  ReduceOp::avg,     ReduceOp::premul_sum(0.5),
                                ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

/// Calls `function(T{})` with the C++ type of `dtype`.
template <class Function>
auto with_type(DType dtype, Function&& function) {
  if (dtype == DType::bool_) return function(bool{});
  if (dtype == DType::u8) return function(std::uint8_t{});
  if (dtype == DType::i8) return function(std::int8_t{});
  if (dtype == DType::i16) return function(std::int16_t{});
  if (dtype == DType::i32) return function(std::int32_t{});
  if (dtype == DType::i64) return function(std::int64_t{});
  if (dtype == DType::u16) return function(std::uint16_t{});
  if (dtype == DType::u32) return function(std::uint32_t{});
  if (dtype == DType::u64) return function(std::uint64_t{});
  if (dtype == DType::f16) return function(float16{});
  if (dtype == DType::bf16) return function(bfloat16{});
  if (dtype == DType::f32) return function(float{});
  if (dtype == DType::f64) return function(double{});
  throw std::runtime_error("a dtype that this test does not know");
}

/// A buffer of `count` elements of `dtype`, with doubles as its values.
class Elements {
 public:
  Elements(DType dtype, std::size_t count)
      : dtype_(dtype), count_(count), bytes_(count * size_of(dtype) + kGuard, std::byte{0x5a}) {}
  Elements(DType dtype, const std::vector<double>& values) : Elements(dtype, values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }

  Buffer buffer() { return {bytes_.data(), count_, dtype_}; }
  Buffer part(std::size_t begin, std::size_t count) {
    return {bytes_.data() + begin * size_of(dtype_), count, dtype_};
  }
  void set(std::size_t index, double value) {
    with_type(dtype_, [&](auto type) {
      using T = decltype(type);
      T element;
      if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
        element = T(static_cast<float>(value));
      } else {
        element = static_cast<T>(value);
      }
      std::memcpy(bytes_.data() + index * sizeof(T), &element, sizeof(T));
    });
  }
  double get(std::size_t index) const {
    return with_type(dtype_, [&](auto type) {
      using T = decltype(type);
      T element;
      std::memcpy(&element, bytes_.data() + index * sizeof(T), sizeof(T));
      if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
        return static_cast<double>(static_cast<float>(element));
      } else {
        return static_cast<double>(element);
      }
    });
  }
  /// Throws unless it holds `wanted`, to the sign of a zero; a NaN is any NaN.
  void expect(const std::vector<double>& wanted, const std::string& what) const {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double got = get(i), want = wanted[i];
      const bool same = std::isnan(want) ? std::isnan(got)
                                         : got == want && std::signbit(got) == std::signbit(want);
      if (!same) {
        throw std::runtime_error(what + " of " + std::string(name_of(dtype_)) + ": element " +
                                 std::to_string(i) + " of " + std::to_string(count_) + " is " +
                                 std::to_string(got) + " instead of " + std::to_string(want));
      }
    }
    for (std::size_t i = bytes_.size() - kGuard; i < bytes_.size(); ++i) {
      if (bytes_[i] != std::byte{0x5a}) throw std::runtime_error(what + " wrote behind its buffer");
    }
  }

 private:
  static constexpr std::size_t kGuard = 16;
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

/// What rank `rank` contributes at `index`: 0 to 3.
inline double value_of(DType dtype, int rank, std::size_t index) {
  const auto mixed = (static_cast<std::size_t>(rank) * 7 + index * 3 + index / 4) % 4;
  return static_cast<double>(dtype == DType::bool_ ? mixed % 2 : mixed);
}

inline std::vector<double> values_of(DType dtype, int rank, std::size_t begin, std::size_t count) {
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(value_of(dtype, rank, begin + i));
  return values;
}

inline bool is_legal(DType dtype, ReduceOp op) {
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  if (dtype == DType::bool_) return bitwise || op == ReduceOp::min || op == ReduceOp::max;
  if (is_floating(dtype)) return !bitwise;
  return op != ReduceOp::avg && op.kind() != ReduceOp::Kind::premul_sum;
}

inline double combine(ReduceOp op, double a, double b) {
  const auto x = static_cast<unsigned>(a), y = static_cast<unsigned>(b);
  if (op == ReduceOp::product) return a * b;
  if (op == ReduceOp::min) return a < b ? a : b;
  if (op == ReduceOp::max) return a > b ? a : b;
  if (op == ReduceOp::band) return x & y;
  if (op == ReduceOp::bor) return x | y;
  if (op == ReduceOp::bxor) return x ^ y;
  return a + b;
}

/// What reducing the values of `ranks` ranks must give.
inline std::vector<double> reduced(DType dtype, ReduceOp op, int ranks, std::size_t begin,
                                   std::size_t count) {
  const double factor = op.kind() == ReduceOp::Kind::premul_sum ? op.factor() : 1;
  std::vector<double> result;
  for (std::size_t i = begin; i < begin + count; ++i) {
    double total = value_of(dtype, 0, i) * factor;
    for (int rank = 1; rank < ranks; ++rank) {
      total = combine(op, total, value_of(dtype, rank, i) * factor);
    }
    if (op == ReduceOp::avg) total /= ranks;
    result.push_back(total);
  }
  return result;
}

}  // namespace tutti::mpi_test
