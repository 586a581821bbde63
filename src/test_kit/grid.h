// Every operation with everything that can vary about it: the cells that a conformance run goes
// through.
#pragma once

#include <functional>
#include <vector>

#include "test_kit/cell.h"

namespace tutti::conformance {

/// An operation, or its v-variant.
struct Call {
  Op op = Op::barrier;
  bool uneven = false;
};

/// All there are.
const std::vector<Call>& all_calls();

/// "all_gatherv"
std::string name_of(const Call& call);

/// The dtypes and reduce operations of `call` (sum alone where it reduces nothing; no dtype but u8
/// for the barrier), each pair once.
struct Kind {
  DType dtype = DType::u8;
  ReduceOp reduce = ReduceOp::sum;
};
std::vector<Kind> all_kinds(const Call& call);

/// The counts {0, 1, n - 1, n, n + 1, 1000}, each once.
std::vector<std::size_t> usual_counts(int ranks);

/// The cells of one call and kind: every count, in and out of place, blocking and asynchronous.
/// Roots and seeds follow from `seed`, so that all ranks make the same.
std::vector<Cell> make_cells(const Call& call, const Kind& kind,
                             const std::vector<std::size_t>& counts, int ranks, std::uint64_t seed);

/// The cell as one rank must call it: gather and scatter are in place on the root only.
Cell seen_from(Cell cell, int rank);

}  // namespace tutti::conformance
