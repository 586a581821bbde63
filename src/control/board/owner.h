// The side of a slot's owner: the only one that writes there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "control/board/board.h"
#include "control/board/limits.h"
#include "control/judge/clock.h"
#include "control/judge/deadlock.h"
#include "control/judge/verdict.h"
#include "tutti/error.h"

namespace tutti::control {

class OwnLine;

/// For a rank whose world has another board than its agent's.
void show_elsewhere(const Board& agents, SlotIndex slot) noexcept;
/// For the owner, which makes a group or a world: no failure so far is why it will end.
void outlive_failures(const Board& board, SlotIndex slot) noexcept;

/// What a process keeps beside a slot it owns: several of its threads write there.
class SlotOwner {
 public:
  /// `memory`: of the board, for further lines; without it there are none.
  SlotOwner(const Board& board, SlotIndex index, net::Fd memory = {}) noexcept
      : board_(board), index_(index), slot_(board.slot(index)), memory_(std::move(memory)) {}
  Slot& slot() const noexcept { return slot_; }
  SlotIndex index() const noexcept { return index_; }
  /// See Board.
  Doorbell& bell() const noexcept { return board_.bell(index_); }
  Doorbell& control_bell() const noexcept { return board_.control_bell(index_); }

  /// Takes the slot and its mark for the calling thread, and is running. False: another process has
  /// them.
  bool take(const Cores& cores) noexcept;
  void leave() noexcept;
  /// The control thread sleeps at the control bell of `slot`.
  void sleeps_at(SlotIndex slot) noexcept;
  /// The control thread runs; with other hosts.
  void beat() noexcept;

  /// Index of a call site in the slot's table; the first call copies the text. A few nanoseconds.
  std::uint8_t site(const Where& where) noexcept;
  /// A line for `group` in state meeting, or nothing if all are in use.
  std::optional<OwnLine> open_line(GroupId group, GroupId asked_of,
                                   const std::vector<WorldRank>& members) noexcept;
  void free_line(OwnLine line) noexcept;
  /// Reserves further lines. False: there are as many as there can be. Throws kSystem.
  bool add_lines();
  /// Says on `line` that its group has failed.
  void publish_failure(OwnLine line, ErrorCode code,
                       const std::vector<WorldRank>& culprits) noexcept;
  /// Writes a proposal, of one verdict at a time, and returns the bits of its number that the log
  /// has room for; then it is kept, or withdrawn.
  std::uint32_t write_proposal(const Verdict& verdict) noexcept;
  void keep_proposal() noexcept { ++proposals_used_; }
  void withdraw_proposal() noexcept;
  /// What this rank would have as the next entry of a log between hosts; by one thread at a time.
  void show_wish(const std::optional<Verdict>& wish) noexcept;
  /// What is shown of it can be read no more.
  void withdraw_wish() noexcept;
  /// Reserves the area for a relay, for votes of so many bytes. Throws kSystem.
  void reserve_relay_area(std::size_t vote_bytes = kUsualVoteBytes);
  /// As the relay: where `verdict` now stands among the chosen ones, for the log.
  std::uint32_t write_chosen(const Verdict& verdict) noexcept;
  /// What the program waits for, from now on; by one thread at a time.
  void show_wait(Clock::time_point since, const std::vector<WaitPart>& parts) noexcept;
  void take_back_wait() noexcept;
  /// Since when it has waited for what it shows; none: it shows nothing.
  std::optional<Clock::time_point> waits_since() const noexcept;
  /// It has looked again, and waits as before.
  void add_look() noexcept;
  void say_several_threads() noexcept;
  /// All that the log has declared lost so far.
  void publish_lost(const std::vector<WorldRank>& lost) noexcept;
  /// As the relay: those that are lost by their mark, while no entry says so; none: it is over.
  void publish_held_up(const std::vector<WorldRank>& lost) noexcept;
  /// Writes what the operation with this chain is for; only the last few can be read.
  void publish_purpose(std::uint64_t chain, std::string_view text) noexcept;
  /// The same for the call that closes a group: "close at train.cc:90".
  void publish_closing(GroupId group, std::string_view text) noexcept;

 private:
  struct Known {
    std::atomic<const char*> file{nullptr};
    std::atomic<int> line{0};
    std::atomic<std::uint8_t> index{0};  ///< written last
  };
  static std::size_t bucket_of(const Where& where) noexcept {
    return (reinterpret_cast<std::uintptr_t>(where.file) * 31 + static_cast<unsigned>(where.line)) *
               0x9e3779b97f4a7c15u >>
           56;
  }
  std::uint8_t add_site(const Where& where) noexcept;

  const Board& board_;
  const SlotIndex index_;
  Slot& slot_;
  const net::Fd memory_;
  std::mutex mutex_;
  std::array<Known, 256> known_;
  int sites_used_ = 0;
  std::uint64_t proposals_used_ = 0;
  std::uint32_t purposes_used_ = 0;
  std::uint32_t failures_ = 0;  ///< published
  std::uint64_t waits_shown_ = 0;
  std::uint64_t chosen_ = 0;
  std::size_t reserved_vote_bytes_ = 0;
};

inline std::uint8_t SlotOwner::site(const Where& where) noexcept {
  const Known& known = known_[bucket_of(where)];
  const std::uint8_t index = known.index.load(std::memory_order_acquire);
  if (index != 0 && known.file.load(std::memory_order_relaxed) == where.file &&
      known.line.load(std::memory_order_relaxed) == where.line)
    return index;
  return add_site(where);
}

}  // namespace tutti::control
