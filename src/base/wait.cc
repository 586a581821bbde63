#include "base/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>

#include "base/cores.h"
#include "base/crowd.h"

namespace tutti {
namespace {

using Clock = Deadline::Clock;
using TimePoint = Clock::time_point;

constexpr std::chrono::milliseconds kFirstAsk{5};
constexpr std::chrono::milliseconds kAskAgain{100};  // unless the patience says otherwise
constexpr int kFreeLooks = 64;                       // between two readings of the clock

/// steady_clock is CLOCK_MONOTONIC here, as futexes with an absolute timeout count.
timespec to_timespec(TimePoint when) noexcept {
  const auto since = std::max(when.time_since_epoch(), Clock::duration::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  return {static_cast<time_t>(seconds.count()),
          static_cast<long>(std::chrono::nanoseconds(since - seconds).count())};
}

/// Returns when somebody rings, when `end` has come, or for no reason. The word may be shared
/// between processes, so FUTEX_PRIVATE_FLAG is not for us.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                TimePoint end) noexcept {
  const int errno_before = errno;
  timespec timeout = to_timespec(end);
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, end == TimePoint::max() ? nullptr : &timeout,
            nullptr, FUTEX_BITSET_MATCH_ANY);
  errno = errno_before;
}

/// Counted as a sleeper while it lives.
class Sleeper {
 public:
  explicit Sleeper(Doorbell& bell) noexcept : bell_(bell) { bell_.sleepers.fetch_add(1); }
  ~Sleeper() { bell_.sleepers.fetch_sub(1); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Doorbell& bell_;
};

bool aborted(const Waiter& waiter) noexcept {
  return waiter.abort_word != nullptr && waiter.abort_word->load() != 0;
}

/// The part of a wait that reads the clock.
class SlowWait {
 public:
  SlowWait(const Waiter& waiter, Patience& patience, detail::Look look, Crowd* crowd,
           detail::Look done)
      : waiter_(waiter),
        patience_(patience),
        look_(look),
        crowd_(crowd),
        done_(done),
        plan_(waiter.policy, waiter.account),
        next_ask_(start_ + kFirstAsk) {}

  WaitResult run() {
    TimePoint now = start_;
    for (; !look_(); now = Clock::now()) {
      if (aborted(waiter_)) return WaitResult::aborted;
      if (now >= next_ask_) {
        next_ask_ = now + kAskAgain;
        if (patience_.ask(now, &next_ask_) == Patience::Verdict::give_up) {
          return WaitResult::gave_up;
        }
      } else if (go_on(plan_.next(now - start_, is_in_the_way(now)))) {
        break;
      }
    }
    // The look that was the last one may have been a long step.
    if (plan_.lingers()) plan_.end(Clock::now() - start_);
    return WaitResult::ready;
  }

 private:
  /// Whether an awaited rank was last seen on this core, and this thread stays here.
  bool is_in_the_way(TimePoint now) const {
    if (waiter_.policy.shares_cores) return false;
    const int core = ::sched_getcpu();
    if (!patience_.awaits_core(core)) return false;
    return waiter_.account == nullptr || !waiter_.account->should_move(now) || !leave_core(core);
  }

  /// One step of the plan; true: ready.
  bool go_on(WaitPlan::Step step) {
    switch (step) {
      case WaitPlan::Step::spin:
        return spin();
      case WaitPlan::Step::sleep:
        if (waiter_.bell != nullptr) return sleep();
        [[fallthrough]];
      case WaitPlan::Step::yield:
        ::sched_yield();
        return false;
    }
    return false;
  }

  bool spin() {
    for (int i = 0; i < kFreeLooks; ++i) {
      pause_core();
      if (look_()) return true;
    }
    return false;
  }

  bool sleep() {
    if (crowd_ != nullptr && !place_) place_.emplace(*crowd_, done_);
    Doorbell& bell = place_ ? place_->bell(*waiter_.bell) : *waiter_.bell;
    const Sleeper sleeper(bell);
    const std::uint32_t seen = bell.rings.load();
    if (place_) {
      place_->listen();
      if (&place_->bell(*waiter_.bell) != &bell) return false;  // the lookout by now
    }
    Alarm* const alarm = &bell == waiter_.bell ? waiter_.alarm : nullptr;
    do {
      if (look_()) return true;
    } while (alarm != nullptr && alarm->arm());
    if (!aborted(waiter_)) futex_wait(bell.rings, seen, next_ask_);
    return false;
  }

  const Waiter& waiter_;
  Patience& patience_;
  const detail::Look look_;
  Crowd* const crowd_;
  const detail::Look done_;
  WaitPlan plan_;
  const TimePoint start_ = Clock::now();
  TimePoint next_ask_;
  std::optional<Crowd::Place> place_;  // from the first sleep on
};

}  // namespace

void ring_slow(Doorbell& bell) noexcept {
  const int errno_before = errno;
  bell.rings.fetch_add(1);
  ::syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  errno = errno_before;
}

namespace detail {

WaitResult wait_slow(const Waiter& waiter, Patience& patience, Look look, Crowd* crowd, Look done) {
  for (int i = 0; i < waiter.policy.looks; ++i) {
    pause_core();
    if (look()) return WaitResult::ready;
  }
  return SlowWait(waiter, patience, look, crowd, done).run();
}

bool wait_until_slow(Doorbell& bell, TimePoint end, Look look) {
  while (!look()) {
    if (Clock::now() >= end) return false;
    const Sleeper sleeper(bell);
    const std::uint32_t seen = bell.rings.load();
    if (look()) return true;
    futex_wait(bell.rings, seen, end);
  }
  return true;
}

}  // namespace detail

}  // namespace tutti
