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
#include "control/board/layout.h"
#include "control/judge/clock.h"
#include "control/judge/deadlock.h"
#include "control/judge/verdict.h"
#include "tutti/error.h"

namespace tutti::control {

/// Those of the owner, which writes them before it is running.
void write_cores(Slot& slot, const Cores& cores) noexcept;
/// Ranks of a world of that size; others are left out.
void write_set(RankWords& words, const std::vector<WorldRank>& ranks, int world_size) noexcept;
/// For the owner, which makes a group or a world: no failure so far is why it will end.
void outlive_failures(const Board& board, SlotIndex slot) noexcept;

/// The own line of a group. Words that several threads write take one value or the other.
class OwnLine {
 public:
  /// `news`: of the slot, or null.
  explicit OwnLine(Line& line, std::atomic<std::uint64_t>* news = nullptr) noexcept
      : line_(&line), news_(news) {}

  LineState state() const noexcept { return line_->state.load(); }
  void set_state(LineState state) noexcept {
    line_->state.store(state);
    if (news_ != nullptr) news_->fetch_add(1);
  }
  void set_site(std::uint8_t site) noexcept { line_->site.store(site, std::memory_order_release); }
  void set_times(std::uint32_t times) noexcept {
    line_->times.store(times, std::memory_order_release);
  }
  void set_core(int core) noexcept { line_->core.store(core + 1, std::memory_order_relaxed); }
  /// Collectives, by one thread at a time.
  void enter(const Shown& shown) noexcept {
    line_->history[shown.seq % kHistory].write(shown);
    line_->entered.store(shown.seq, std::memory_order_release);
  }
  void leave(std::uint64_t seq) noexcept { line_->completed.store(seq, std::memory_order_release); }
  /// Messages, by one thread at a time.
  void enter_message(const Shown& shown) noexcept { line_->message.write(shown); }
  void leave_message() noexcept { line_->message.clear(); }
  void progressed() noexcept {
    line_->progress.store(line_->progress.load(std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
  }
  /// A meeting has begun another look.
  void looks() noexcept { line_->progress.fetch_add(1); }
  void meeting_failed(Clock::time_point now) noexcept {
    line_->since.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  /// An asynchronous collective was called; by one thread at a time.
  void queue(std::uint64_t seq) noexcept { line_->queued.store(seq, std::memory_order_release); }
  /// Grows with whatever the rank does in the group; 0 while that is made.
  std::uint64_t activity() const noexcept {
    if (state() == LineState::meeting) return 0;
    return line_->entered.load() + line_->completed.load() + line_->queued.load() +
           line_->progress.load();
  }
  /// The operation of `awaited` has been waiting since then.
  void waits(const Awaited& awaited, Clock::time_point since) noexcept {
    line_->since.store(since.time_since_epoch().count(), std::memory_order_relaxed);
    line_->waiting.store(awaited.pack(), std::memory_order_release);
  }
  void say_goodbye(std::uint64_t seq, std::uint64_t chain) noexcept {
    line_->goodbye_seq.store(seq);
    line_->goodbye_chain.store(chain);
  }
  /// The same for the last collective that has ended.
  void say_goodbye() noexcept {
    const std::uint64_t last = line_->completed.load();
    const auto shown = line_->history[last % kHistory].read();
    say_goodbye(last, shown && shown->seq == last ? shown->chain : 0);
  }

 private:
  friend class SlotOwner;
  Line* line_;
  std::atomic<std::uint64_t>* news_;
};

/// What a process keeps beside a slot it owns: several of its threads write there.
class SlotOwner {
 public:
  /// `memory`: of the board, for further lines; without it there are none.
  SlotOwner(const Board& board, SlotIndex index, net::Fd memory = {}) noexcept
      : board_(board), index_(index), slot_(board.slot(index)), memory_(std::move(memory)) {}
  Slot& slot() const noexcept { return slot_; }
  SlotIndex index() const noexcept { return index_; }

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
  void take_back_wait() noexcept { slot_.wait.version.store(0); }
  /// It has looked again, and waits as before.
  void add_look() noexcept { slot_.wait.looks.fetch_add(1); }
  void say_several_threads() noexcept { slot_.wait.has_several_threads.store(1); }
  /// All that the log has declared lost so far.
  void publish_lost(const std::vector<WorldRank>& lost) noexcept {
    write_set(slot_.lost, lost, board_.world_size());
  }
  /// As the relay: those that are lost by their mark, while no entry says so; none: it is over.
  void publish_held_up(const std::vector<WorldRank>& lost) noexcept {
    write_set(slot_.held_up, lost, board_.world_size());
  }
  /// Writes what the operation with this chain is for; the last kPurposes of them can be read.
  void publish_purpose(std::uint64_t chain, std::string_view text) noexcept;

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
