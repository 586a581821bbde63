// A host's vote on its board, for a rank that is its relay or becomes it; see board/vote_bytes.h.
#pragma once

#include <cstdint>
#include <optional>

#include "control/board/vote_bytes.h"
#include "control/vote/vote.h"

namespace tutti::control {

/// How many entries a host may be behind another one, or its board's log behind its vote. What
/// counts further is garbage: who believed it would enter so many that nobody has chosen.
inline constexpr std::uint64_t kMostBehind = std::uint64_t{1} << 20;

/// Used by one thread of a rank.
class VotePlace {
 public:
  VotePlace(const Board& board, SlotOwner& own, int host_count) noexcept
      : place_(board, own), host_count_(host_count) {}

  /// Makes this rank the relay, under the next term, and returns the vote as it stands. None:
  /// another rank was faster, or the board does not hold a vote that may stand beside a log without
  /// entry `next_entry`. Throws kSystem: an unusually large one, and there is no memory.
  std::optional<HostVote> take_over(std::uint64_t next_entry);
  /// As the relay. False: another one has taken over. Throws kSystem.
  bool write(const HostVote& vote);

 private:
  bool put(std::uint64_t term, const HostVote& vote);

  VoteBytes place_;
  const int host_count_;
};

}  // namespace tutti::control
