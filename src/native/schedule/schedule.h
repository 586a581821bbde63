// Algorithms as data: what one rank does in one operation.
//
// A *schedule* is a list of *rounds* of *steps*; the steps of a round are independent of each other
// and run at once, a round begins when the one before it has ended. Its sends stand before all that
// receives: who awaits many need not look further. A step moves one *chunk*, one rank's share of a
// buffer, between *places*: a chunk of the input, of the output or of scratch memory. Places are
// chunk numbers and not bytes: one schedule serves every count and dtype. Large chunks are cut into
// *segments*, and the schedule is run for each of them: executor.h.
//
// Schedules are *synchronous*: a message is received in the round in which it is sent, at most one
// from a rank to another in each. So the order of the messages of a pair is the same at both ends
// however many segments are under way.
//
// A *reduce* step takes *operands* in canonical order, each from a place or straight from the
// channel of a peer, and combines them as tree(v) = tree(first k) + tree(rest), k the largest power
// of two below the number of operands. In a *direct* algorithm the owner of a chunk receives every
// rank's raw piece and adds in that order, so f16 and bf16 are rounded once; others combine what
// others have combined, for reductions of which parts have the type of the whole. An *identity*
// step writes the element that changes nothing: the reduction of no operands.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/types.h"

namespace tutti::native {

/// How an operation goes. What each means is said where it is made: make.cc.
enum class Algorithm : std::uint8_t { direct, exchange, doubling, binomial, pairwise, ring };
inline constexpr std::size_t kAlgorithmCount = 6;
constexpr std::string_view name_of(Algorithm algorithm) noexcept {
  constexpr std::string_view kNames[] = {"direct",   "exchange", "doubling",
                                         "binomial", "pairwise", "ring"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

/// What a schedule depends on. `in_place` matters to all_to_all and the scans, where what is
/// received lands on what is sent.
struct Shape {
  Op op = Op::barrier;
  Algorithm algorithm = Algorithm::direct;
  int group_size = 1;
  int rank = 0;
  int root = 0;  ///< of rooted operations
  bool in_place = false;
  std::span<const int> hosts = {};  ///< by rank: the number of its host; empty: all are on one
};

struct Place {
  enum class Space : std::uint8_t { nothing, input, output, scratch };
  Space space = Space::nothing;  ///< nothing: a message without data
  std::int32_t chunk = 0;
  friend constexpr bool operator==(const Place&, const Place&) = default;
};

/// One input of a reduce step: a peer's message, or with peer -1 a place.
struct Operand {
  std::int32_t peer = -1;
  Place place = {};
};

struct Step {
  enum class Kind : std::uint8_t { send, recv, reduce, copy, identity };
  Kind kind = Kind::copy;
  std::int32_t peer = -1;                              ///< of send and recv
  Place source = {};                                   ///< of send and copy
  Place target = {};                                   ///< of recv, copy, reduce and identity
  std::uint32_t first_operand = 0, operand_count = 0;  ///< of reduce
};

struct Schedule {
  std::vector<Step> steps;
  std::vector<std::uint32_t> round_ends;  ///< index past the last step of each round
  std::vector<Operand> operands;
  std::int32_t scratch_chunks = 0;
  /// 0: every chunk has `count` elements. Else the buffer of `count` elements is split into this
  /// many chunks, and chunk c begins at count * c / parts.
  std::int32_t parts = 0;

  std::span<const Operand> operands_of(const Step& step) const noexcept {
    return std::span(operands).subspan(step.first_operand, step.operand_count);
  }
};

/// Whether the operation can go so.
bool has_algorithm(Op op, Algorithm algorithm, int group_size, bool in_place) noexcept;
/// Whether parts of the reduction are combined by several ranks.
bool combines_parts(Op op, Algorithm algorithm) noexcept;

/// The schedule of one rank. Every Op but send and recv; group_size >= 1, and an algorithm that it
/// has.
Schedule make_schedule(const Shape& shape);

}  // namespace tutti::native
