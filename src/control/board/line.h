// A line of the status board: what one rank does in one group; see layout.h.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/roster.h"
#include "control/board/limits.h"
#include "control/judge/description.h"
#include "control/judge/facts.h"

namespace tutti::control {

/// A set of ranks of the world, a bit each; those beyond the world's size are never touched.
using RankWords = std::array<std::atomic<std::uint64_t>, kMaxWorldRanks / 64>;

/// The ranks of a world of that size in a set, ascending.
std::vector<WorldRank> read_set(const RankWords& words, int world_size);
/// Ranks of a world of that size; others are left out.
void write_set(RankWords& words, const std::vector<WorldRank>& ranks, int world_size) noexcept;

/// A Shown in shared memory. The seq, never used twice, is its version word: 0 while the
/// owner writes.
class SharedShown {
 public:
  /// Stores after the zero are releases, so that whoever reads one of them finds the zero as well.
  void write(const Shown& value) noexcept {
    words_[0].store(0, std::memory_order_relaxed);
    words_[1].store(value.chain, std::memory_order_release);
    words_[2].store(value.count, std::memory_order_release);
    words_[3].store(std::bit_cast<std::uint64_t>(value.factor), std::memory_order_release);
    words_[4].store(std::uint64_t{value.op} | std::uint64_t{value.dtype} << 8 |
                        std::uint64_t{value.reduce} << 16 | std::uint64_t{value.site} << 24 |
                        std::uint64_t{static_cast<std::uint32_t>(value.root_or_peer)} << 32,
                    std::memory_order_release);
    words_[0].store(value.seq, std::memory_order_release);
  }
  void clear() noexcept { words_[0].store(0, std::memory_order_release); }
  /// Empty if there is nothing, or if the owner writes right now.
  std::optional<Shown> read() const noexcept;

 private:
  std::array<std::atomic<std::uint64_t>, 5> words_;
};

/// What one rank does in one group.
struct alignas(64) Line {
  std::atomic<GroupId> group;                     ///< 0: free
  std::atomic<std::uint64_t> entered, completed;  ///< seq of the latest collective begun, ended
  std::atomic<std::uint64_t> goodbye_seq, goodbye_chain;
  std::atomic<LineState> state;
  std::atomic<std::uint32_t> failure;   ///< 0, or a failure_word with its order; and kOutlived
  std::atomic<std::uint64_t> progress;  ///< grows with the bytes moved; meeting: with looks
  std::atomic<std::uint64_t> waiting;   ///< an Awaited
  std::atomic<std::int64_t> since;      ///< steady clock, when that wait was found to be long
  SharedShown message;                  ///< the latest send or recv under way, best effort
  std::array<SharedShown, kHistory> history;  ///< collective seq is at seq % kHistory
  std::atomic<GroupId> asked_of;              ///< see MembershipOptions
  std::atomic<std::uint32_t> site;            ///< where it was asked for
  std::atomic<std::uint32_t> times;   ///< so often its ranks have been asked for; 0: a world
  std::atomic<std::int32_t> core;     ///< on which the latest operation was entered, + 1
  std::atomic<std::uint64_t> queued;  ///< seq of the latest collective that awaits its turn
  RankWords ranks;                    ///< members; of one that has failed the culprits
};
static_assert(sizeof(Line) == 832);

/// In Line::waiting: for whom the operation `seq` of a line waits.
struct Awaited {
  std::uint32_t seq = 0;  ///< its lower half
  int member = -1;        ///< rank of the group; -1: all
  WorldRank rank{0};      ///< the same; not of -1

  std::uint64_t pack() const noexcept {
    return std::uint64_t{seq} << 32 | static_cast<std::uint64_t>(rank.value) << 16 |
           static_cast<std::uint64_t>(member + 1);
  }
  static Awaited unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<int>(word & 0xffff) - 1,
            WorldRank(static_cast<int>(word >> 16 & 0xffff))};
  }
};

}  // namespace tutti::control
