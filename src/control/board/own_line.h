// The own line of a group, for its owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "control/board/line.h"
#include "control/judge/clock.h"

namespace tutti::control {

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

/// In place of a line of the slot, while there is none: nobody else reads it.
class PrivateLine {
 public:
  OwnLine line() noexcept { return OwnLine(*line_); }

 private:
  std::unique_ptr<Line> line_ = std::make_unique<Line>();
};

}  // namespace tutti::control
