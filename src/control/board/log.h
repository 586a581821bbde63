// The log of a world's verdicts, on its board.
//
// Who has a verdict writes it into a *place* of its own slot and then makes it entry k by one
// compare-and-swap of a word in the header; before, it has applied all entries up to k - 1. So
// there is one entry k, and all ranks read the same. In a world of several hosts the hosts choose
// the entries, and the relay of each enters what was chosen. The words are used in turns: entry k
// stands until entry k + kLogEntries. A rank that has slept through so many, or finds a place used
// again, is told that it has *missed* the entry: what that did to the groups stands on the members'
// lines.
#pragma once

#include <cstdint>
#include <optional>

#include "control/board/board.h"
#include "control/board/owner.h"
#include "control/judge/verdict.h"

namespace tutti::control {

class BoardLog {
 public:
  BoardLog(const Board& board, SlotOwner& own) noexcept : board_(board), own_(own) {}

  enum class State : std::uint8_t {
    open,     ///< no verdict stands there yet
    entered,  ///< one does
    missed,   ///< one did
  };
  /// Entry `number`, from 1 on; `verdict` is set if it is there.
  State read(std::uint64_t number, Verdict* verdict) const;
  /// Entry `number` is missed: the next one that is not known to be. Where two words agree that the
  /// log is far ahead, all that is gone is passed over at once; a garbage word alone hides one.
  std::uint64_t after_missed(std::uint64_t number) const noexcept;
  /// Makes `verdict` entry `number`, for a rank that has applied all before. False: another one
  /// stands there.
  bool propose(std::uint64_t number, const Verdict& verdict) noexcept;
  /// As the relay: enters what the hosts have chosen; null: something that nobody here knows.
  /// False: an earlier relay has.
  bool enter_chosen(std::uint64_t number, const Verdict* verdict) noexcept;

 private:
  std::atomic<std::uint64_t>& word_of(std::uint64_t number) const noexcept;

  const Board& board_;
  SlotOwner& own_;
};

}  // namespace tutti::control
