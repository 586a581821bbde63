// Which schedule serves a call, and how it is cut.
//
// A pure function of what all ranks share, since they must come to the same. No clock, no
// environment: the *table* is shipped, and what a user wants comes with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "native/schedule/schedule.h"
#include "tutti/config.h"

namespace tutti::native {

/// What a plan depends on.
struct Call {
  Op op = Op::barrier;
  DType dtype = DType::u8;
  ReduceOp::Kind reduce = ReduceOp::Kind::sum;
  std::size_t bytes = 0;  ///< of `count` elements
  bool uneven = false;    ///< each rank knows counts of its own
  int group_size = 1;
  std::span<const int> hosts = {};  ///< by rank; empty: all are on one
};

/// The pieces in which it goes.
struct Cut {
  std::size_t segment_bytes = 0;  ///< at most
  std::size_t depth = 1;          ///< slots that are open at once: executor.h
};

struct Plan {
  Algorithm algorithm = Algorithm::direct;
  Cut cut = {};
};

/// An algorithm for calls between hosts of so many ranks and bytes.
struct Rule {
  Op op;
  Algorithm algorithm;
  int least_ranks = 2, most_ranks = 1 << 30;
  std::size_t least_bytes = 0, most_bytes = SIZE_MAX;
};

/// What the user wants.
struct Wish {
  std::optional<Algorithm> algorithm = {};  ///< where an operation has it
  std::size_t segment_bytes = 0;            ///< 0: as the table says
};

struct Table {
  std::span<const Rule> rules;    ///< the first that fits
  std::size_t segment_bytes = 0;  ///< between hosts
  std::size_t in_flight = 0;      ///< bytes between hosts of one chunk
  Wish wish = {};
};

/// What comes with the library. `settings`: "algorithm" and "segment_bytes" of these, or none.
/// Errors  kInvalidArgument: they do not parse.
Table make_table(const Settings& settings);

/// `most_bytes`: of a frame.
Plan plan(const Call& call, const Table& table, std::size_t most_bytes) noexcept;

}  // namespace tutti::native
