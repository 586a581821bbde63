// One cell of the conformance grid: one operation with everything that can vary about it.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/process_group.h"
#include "tutti/test_kit.h"

namespace tutti::conformance {

struct Cell {
  Op op = Op::barrier;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  std::size_t count = 0;
  bool uneven = false;  ///< the v-variant, with parts of many lengths around `count`
  int root = 0;         ///< send, recv: the distance between sender and receiver
  bool in_place = false;
  bool asynchronous = false;
  std::uint64_t seed = 0;
};

/// "all_reduce avg of 1000 x bf16, in place, async, root 0"
std::string describe(const Cell& cell);

struct Verdict {
  std::string wrong;  ///< empty if all is right
  /// Hash of what the rank got, all NaNs being alike; 0 where one result alone is right.
  std::uint64_t bits = 0;
};

/// Runs the cell on this rank and compares with the reference: what the operation promises to this
/// rank, nothing written elsewhere, inputs unchanged. `canonical`: to the bit; else results that
/// depend on the order of a reduction lie within the error bound of their dtype. `memory`: where
/// the buffers are; null: on the host.
Verdict run_cell(ProcessGroup& group, const Cell& cell, bool canonical = true,
                 const test_kit::DeviceMemory* memory = nullptr);

}  // namespace tutti::conformance
