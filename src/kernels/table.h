// The kernels of one (dtype, operation), as pointers made for one instruction set.
//
// A *kernel* combines a fixed number of inputs in canonical order and writes one or two outputs.
// The driver in kernels.cc composes kernels of 1, 2, 3, 4 and 8 inputs into trees over any number.
#pragma once

#include <cstddef>

#include "tutti/types.h"

namespace tutti::kernels {

struct Args {
  const void* const* inputs;
  void* out;
  void* out2;  // may be null
  std::size_t count;
  double factor;   // premul_sum
  double divisor;  // avg
};
using Kernel = void (*)(const Args&);

inline constexpr int kWidest = 8;

/// The end of a range, shorter than a vector of `lanes` elements.
struct Tail {
  const Args& args;
  Kernel kernel;
  int inputs;
  std::size_t begin;
  std::size_t lanes;
  std::size_t in_bytes;
  std::size_t out_bytes;
};
/// Runs the kernel on copies of what is left.
void run_tail(const Tail& tail) noexcept;

/// Null where there is no kernel for that many inputs; those for 1 and 2 always exist.
struct ByWidth {
  Kernel of[kWidest + 1];
};

struct Table {
  ByWidth leaf;       // elements to a partial
  ByWidth whole;      // elements to elements
  ByWidth merge;      // partials to a partial
  Kernel merge_last;  // two partials to elements
  Kernel finish;      // one partial to elements
};

/// Looks up by what is computed, not by what it is called: sums and products of signed integers
/// are those of unsigned ones, bitwise operations on integers those of bytes, sums of complex
/// numbers those of their parts.
const Table* find_float(DType dtype, ReduceOp::Kind kind) noexcept;  // f32 f64
const Table* find_half(DType dtype, ReduceOp::Kind kind) noexcept;   // f16 bf16
const Table* find_complex_product(DType dtype) noexcept;
const Table* find_integer(DType dtype, ReduceOp::Kind kind) noexcept;  // the rest

/// Copies with non-temporal stores and does not fence them.
void copy_unfenced(void* to, const void* from, std::size_t byte_count) noexcept;

}  // namespace tutti::kernels
