// A board in this process: mapping it, and reading what the ranks show there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/cores.h"
#include "base/roster.h"
#include "base/wait.h"
#include "control/board/limits.h"
#include "control/judge/facts.h"
#include "control/judge/verdict.h"
#include "control/memory/memory.h"
#include "net/fd.h"

namespace tutti::control {

// Of the layout, which is complete in control/board alone.
struct BoardHeader;
struct Line;
struct Proposal;
struct RelayArea;
struct Slot;

/// A board mapped into this process.
class Board {
 public:
  /// Memory for a board of so many slots, in a world that has all its ranks there, or of another
  /// size. Throws kSystem, kInvalidArgument.
  static net::Fd make(int slot_count) { return make(slot_count, slot_count); }
  static net::Fd make(int slot_count, int world_size);
  /// Maps a board that was made or handed over. Throws kSystem if it is not one of ours.
  explicit Board(const net::Fd& memory);

  int slot_count() const noexcept { return slot_count_; }
  Slots slots() const noexcept { return Slots(slot_count_); }
  /// Ranks of the world, on all hosts.
  int world_size() const noexcept { return world_size_; }
  /// The same address for all boards of this process that are the same memory.
  std::byte* data() const noexcept { return mapping_->data(); }
  BoardHeader& header() const noexcept;
  Slot& slot(SlotIndex slot) const noexcept {
    return *reinterpret_cast<Slot*>(data() + kSlotBytes * (slot.index() + 1));
  }
  std::size_t byte_count() const noexcept { return mapping_->byte_count(); }
  /// Of the lines of a slot those that are reserved.
  int line_count(SlotIndex slot) const noexcept;
  Line& line(SlotIndex slot, int index) const noexcept;
  /// Where the further lines of a slot lie.
  std::size_t more_lines_offset(SlotIndex slot) const noexcept;
  /// Of a slot's owner, for the time when it is the relay of its host.
  RelayArea& relay_area(SlotIndex slot) const noexcept;
  /// The line of a slot's owner for a group, or null. Valid while its `group` stays the same.
  Line* find_line(SlotIndex slot, GroupId group) const noexcept;
  bool has_line(SlotIndex slot, GroupId group) const noexcept {
    return find_line(slot, group) != nullptr;
  }

  RankState state_of(SlotIndex slot) const noexcept;
  /// Somebody has seen by its mark that the owner is dead.
  bool is_known_dead(SlotIndex slot) const noexcept;
  /// By the owner's own word, and it is not known dead.
  bool is_running(SlotIndex slot) const noexcept;
  /// The same looked up at its mark: it was running, and is dead.
  bool has_died(SlotIndex slot) const noexcept;
  /// Where the owner's threads sleep, and where control threads do: see rouse_control.
  Doorbell& bell(SlotIndex slot) const noexcept;
  Doorbell& control_bell(SlotIndex slot) const noexcept;
  /// Grows with each change that other hosts are told of unasked: see Report.
  std::uint64_t news_of(SlotIndex slot) const noexcept;
  /// How much of that all other hosts have been told; and says so.
  std::uint64_t told_of(SlotIndex slot) const noexcept;
  void show_told(SlotIndex slot, std::uint64_t news) const noexcept;
  /// Grows while the owner's control thread runs, with other hosts.
  std::uint64_t beat_of(SlotIndex slot) const noexcept;
  /// The number of what read_wish finds; 0: the owner has no wish.
  std::uint64_t wish_of(SlotIndex slot) const noexcept;
  /// Those that are lost as far as the owner has applied the log; and those that are lost by their
  /// mark, while the owner, a relay, is held up.
  std::vector<WorldRank> lost_by(SlotIndex slot) const;
  std::vector<WorldRank> held_up_by(SlotIndex slot) const;
  /// How the owner ended, as waitpid says it, once the agent has told.
  std::optional<int> exit_of(SlotIndex slot) const noexcept;
  /// The owner's process; 0 while there is none. As its agent sees it, or else as it does itself.
  int pid_of(SlotIndex slot) const noexcept;
  int own_pid_of(SlotIndex slot) const noexcept;
  /// For the agent: how the owner ended.
  void set_pid(SlotIndex slot, int pid) noexcept;
  void set_exit(SlotIndex slot, int wait_status) noexcept;

 private:
  Board(std::shared_ptr<Mapping> mapping, int slot_count, int world_size) noexcept
      : mapping_(std::move(mapping)), slot_count_(slot_count), world_size_(world_size) {}

  std::shared_ptr<Mapping> mapping_;
  int slot_count_ = 0;
  int world_size_ = 0;
};

/// The lines of a slot, for a loop.
class Lines {
 public:
  Lines(const Board& board, SlotIndex slot) noexcept
      : board_(board), slot_(slot), count_(board.line_count(slot)) {}
  class Iterator {
   public:
    Iterator(const Lines& lines, int index) noexcept : lines_(lines), index_(index) {}
    Line& operator*() const noexcept { return lines_.board_.line(lines_.slot_, index_); }
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
  const SlotIndex slot_;
  const int count_;
};

GroupId group_of(const Line& line) noexcept;  ///< 0: free
LineState state_of(const Line& line) noexcept;
bool shows_failure(const Line& line) noexcept;

/// Wakes a control thread, also one that is just about to sleep.
void rouse(Doorbell& control_bell) noexcept;
/// Whether the owner has left in order. It said so; or it has ended, in whatever way, after it had
/// said goodbye to every group it made. Who ends before it has made one has not left: it dies.
bool has_left(const Board& board, SlotIndex slot) noexcept;

/// Rouses the control thread of a slot's owner.
void rouse_control(const Board& board, SlotIndex slot) noexcept;
/// The same of all but one.
void rouse_others(const Board& board, SlotIndex own) noexcept;

/// Of all ranks that are or were running, together.
Cores cores_of_all(const Board& board) noexcept;

/// What stands in a place for proposals; of `number` the bits of kProposalMask count. None: another
/// one stands there, or none.
std::optional<Verdict> read_proposal(const Board& board, const Proposal& place,
                                     std::uint64_t number);
/// What a slot's owner would have as the next entry of the world's log.
std::optional<Verdict> read_wish(const Board& board, SlotIndex slot);

/// A call site out of the table of `slot`; "" if it is not known.
std::string read_site(const Slot& slot, std::uint32_t site);
/// The text of a failure of `group` that the owner of `slot` found, if it is still there: of that
/// with `code` which names all `culprits`. The group may have failed with what another rank found.
std::optional<std::string> read_failure_text(const Board& board, SlotIndex slot, GroupId group,
                                             ErrorCode code,
                                             const std::vector<WorldRank>& culprits);
/// What an operation with this chain was for, if the owner of `slot` has said so lately; else "".
std::string read_purpose(const Slot& slot, std::uint64_t chain);
/// The lines whose failure the owner has not outlived, in the order in which they failed.
std::vector<const Line*> failed_lines(const Board& board, SlotIndex slot);
/// Those whom the first of these failures blames: the later ones may be its consequences, as of a
/// program that unwinds. Nobody if it is a disagreement or a deadlock.
std::set<WorldRank> blamed_by(const Board& board, SlotIndex slot);

}  // namespace tutti::control
