// Where a host's vote lies on its board, encoded, and outlives the relay that wrote it.
//
// It lies in one of two places in the area of the relay's slot; a word in the header names term,
// slot and version. The relay writes the other place and then moves the word by one
// compare-and-swap, and so does a rank that takes over: a rank that was overtaken, and perhaps
// stopped between looking and writing, changes nothing any more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "control/board/board.h"
#include "control/board/owner.h"

namespace tutti::control {

/// Used by one thread of a rank.
class VoteBytes {
 public:
  VoteBytes(const Board& board, SlotOwner& own) noexcept : board_(board), own_(own) {}

  /// The relay; none: there was none yet. For anybody.
  static std::optional<SlotIndex> relay_on(const Board& board) noexcept;
  /// Looks at the vote; `write` is refused once another rank has written after that. None: garbage,
  /// or another rank writes right now; empty: no relay has written one yet.
  std::optional<std::string> look();
  /// Of the vote that was looked at or written last: its lower 32 bits.
  std::uint64_t term() const noexcept;
  /// At most kVoteBytes. False: another rank has written since. Throws kSystem: an unusually large
  /// one, and there is no memory.
  bool write(std::uint64_t term, std::string_view bytes);

 private:
  const Board& board_;
  SlotOwner& own_;
  std::uint64_t word_ = 0;  ///< as this rank has read or written it last
};

}  // namespace tutti::control
