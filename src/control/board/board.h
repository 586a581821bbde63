// A board in this process: mapping it, and reading what the ranks show there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cores.h"
#include "control/board/layout.h"
#include "control/judge/verdict.h"
#include "control/memory/memory.h"
#include "net/fd.h"

namespace tutti::control {

/// A board mapped into this process.
class Board {
 public:
  /// Memory for a board of `rank_count` ranks. Throws kSystem, kInvalidArgument.
  static net::Fd make(int rank_count);
  /// Maps a board that was made or handed over. Throws kSystem if it is not one of ours.
  explicit Board(const net::Fd& memory);

  int rank_count() const noexcept { return rank_count_; }
  /// The same address for all boards of this process that are the same memory.
  std::byte* data() const noexcept { return mapping_->data(); }
  BoardHeader& header() const noexcept { return *reinterpret_cast<BoardHeader*>(data()); }
  Slot& slot(int rank) const noexcept {
    return *reinterpret_cast<Slot*>(data() + kSlotBytes * (static_cast<std::size_t>(rank) + 1));
  }
  std::size_t byte_count() const noexcept { return mapping_->byte_count(); }
  /// Of the lines of `rank` those that are reserved.
  int line_count(int rank) const noexcept;
  Line& line(int rank, int index) const noexcept;
  /// Where the further lines of `rank` lie.
  std::size_t more_lines_offset(int rank) const noexcept {
    return kSlotBytes * (static_cast<std::size_t>(rank_count_) + 1) +
           kMoreLineBytes * static_cast<std::size_t>(rank);
  }
  /// The line of `rank` for a group, or null. Valid while its `group` stays the same.
  Line* find_line(int rank, GroupId group) const noexcept;

  RankState state_of(int rank) const noexcept;
  /// How a rank ended, as waitpid says it, once the agent has told.
  std::optional<int> exit_of(int rank) const noexcept;
  /// The process of a rank; 0 while it has none.
  int pid_of(int rank) const noexcept;
  /// For the agent: how a rank ended.
  void set_pid(int rank, int pid) noexcept;
  void set_exit(int rank, int wait_status) noexcept;

 private:
  Board(std::shared_ptr<Mapping> mapping, int rank_count) noexcept
      : mapping_(std::move(mapping)), rank_count_(rank_count) {}

  std::shared_ptr<Mapping> mapping_;
  int rank_count_ = 0;
};

/// The lines of a rank, for a loop.
class Lines {
 public:
  Lines(const Board& board, int rank) noexcept
      : board_(board), rank_(rank), count_(board.line_count(rank)) {}
  class Iterator {
   public:
    Iterator(const Lines& lines, int index) noexcept : lines_(lines), index_(index) {}
    Line& operator*() const noexcept { return lines_.board_.line(lines_.rank_, index_); }
    Iterator& operator++() noexcept {
      ++index_;
      return *this;
    }
    bool operator!=(const Iterator& other) const noexcept { return index_ != other.index_; }

   private:
    const Lines& lines_;
    int index_;
  };
  Iterator begin() const noexcept { return {*this, 0}; }
  Iterator end() const noexcept { return {*this, count_}; }

 private:
  const Board& board_;
  const int rank_;
  const int count_;
};

/// Wakes a control thread, also one that is just about to sleep.
void rouse(Doorbell& control_bell) noexcept;
/// Whether the owner has left in order. It said so; or it has ended, in whatever way, after it had
/// said goodbye to every group it made. Who ends before it has made one has not left: it dies.
bool has_left(const Board& board, int rank) noexcept;

/// Rouses the control thread of `rank`.
void rouse_control(const Board& board, int rank) noexcept;

/// Of all ranks that are or were running, together.
Cores cores_of_all(const Board& board) noexcept;

RankSet read_set(const std::array<std::atomic<std::uint64_t>, 4>& words) noexcept;
/// A proposal of the owner of `rank`'s slot, if it still stands there; of `number` the bits of
/// kProposalMask.
std::optional<Verdict> read_proposal(const Board& board, int rank, std::uint64_t number);
std::vector<int> ranks_in(const RankSet& set);

/// A call site out of the table of `slot`; "" if it is not known.
std::string read_site(const Slot& slot, std::uint32_t site);
/// The text of the failure that the owner of `slot` found in `group`, if it is still there.
std::optional<std::string> read_failure_text(const Slot& slot, GroupId group);
/// What an operation with this chain was for, if the owner of `slot` has said so lately; else "".
std::string read_purpose(const Slot& slot, std::uint64_t chain);
/// The lines whose failure the owner has not outlived.
std::vector<const Line*> failed_lines(const Board& board, int rank);
/// Those whom failures blame that `rank` has not outlived, but for disagreements.
RankSet blamed_by(const Board& board, int rank) noexcept;
/// About what the ranks of a group of `rank` disagreed, if that is why it failed: about an
/// operation, or about how many there are.
std::optional<std::string> disagreement_of(const Board& board, int rank);

}  // namespace tutti::control
