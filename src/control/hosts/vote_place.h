// A host's vote on its board, where it outlives the relay that wrote it.
//
// It lies in one of two places in the area of the relay's slot; a word in the header names term,
// slot and version. The relay writes the other place and then moves the word by one
// compare-and-swap, and so does who takes over: whoever was overtaken, and perhaps stopped between
// looking and writing, changes nothing any more.
#pragma once

#include <cstdint>
#include <optional>

#include "control/board/board.h"
#include "control/board/owner.h"
#include "control/vote/vote.h"

namespace tutti::control {

/// How many entries a host may be behind another one, or its board's log behind its vote. What
/// counts further is garbage: who believed it would enter so many that nobody has chosen.
inline constexpr std::uint64_t kMostBehind = std::uint64_t{1} << 20;

/// Used by one thread of a rank.
class VotePlace {
 public:
  VotePlace(const Board& board, SlotOwner& own, int host_count) noexcept
      : board_(board), own_(own), host_count_(host_count) {}

  /// The relay; none: there was none yet.
  std::optional<SlotIndex> relay() const noexcept { return relay_on(board_); }
  /// The same for anybody.
  static std::optional<SlotIndex> relay_on(const Board& board) noexcept;
  /// Makes this rank the relay, under the next term, and returns the vote as it stands. None:
  /// another rank was faster, or the board does not hold a vote that may stand beside a log without
  /// entry `next_entry`. Throws kSystem: an unusually large one, and there is no memory.
  std::optional<HostVote> take_over(std::uint64_t next_entry);
  /// As the relay. False: another one has taken over. Throws kSystem.
  bool write(const HostVote& vote);

 private:
  struct Word;
  std::optional<HostVote> read(const Word& word) const;
  bool move(const HostVote& vote, const Word& next);

  const Board& board_;
  SlotOwner& own_;
  const int host_count_;
  std::uint64_t word_ = 0;  ///< as this rank has read or written it last
};

}  // namespace tutti::control
