// Waiting for something that an abort does not end by itself: whoever ends it wakes who waits.
#pragma once

#include <atomic>

#include "base/wait.h"
#include "control/membership.h"
#include "control/program_wait.h"

namespace tutti::group {

/// Gives up at a fixed time.
class Until final : public Patience {
 public:
  /// `awaits`: what the others see of a wait without end, or null.
  Until(Deadline::Clock::time_point end, control::ProgramAwaits* awaits) noexcept
      : end_(end), awaits_(awaits) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    *next = end_;
    if (now >= end_) return Verdict::give_up;
    if (awaits_ == nullptr) return Verdict::keep_waiting;
    const bool is_shown = awaits_->membership().note_caller();
    if (is_shown && end_ == Deadline::Clock::time_point::max()) program_.look(*awaits_, now, next);
    return Verdict::keep_waiting;
  }

 private:
  const Deadline::Clock::time_point end_;
  control::ProgramAwaits* const awaits_;
  control::ProgramWait program_;
};

/// Waits on the own doorbell until `done()` or `until`; true if done. `awaits`: see Until.
template <class Done>
bool wait_through_aborts(const control::Membership& membership, Deadline::Clock::time_point until,
                         Done&& done, control::ProgramAwaits* awaits = nullptr) {
  static constexpr std::atomic<std::uint64_t> kNeverAborted{0};
  Waiter waiter = membership.waiter();
  waiter.abort_word = &kNeverAborted;
  Until patience(until, awaits);
  return wait(waiter, patience, done) == WaitResult::ready;
}

}  // namespace tutti::group
