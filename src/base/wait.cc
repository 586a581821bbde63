#include "base/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

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
  SlowWait(const Waiter& waiter, Patience& patience, detail::Look look, int pauses)
      : waiter_(waiter),
        patience_(patience),
        look_(look),
        next_ask_(start_ + kFirstAsk),
        pauses_(pauses) {}

  WaitResult run() {
    while (!look_()) {
      if (aborted(waiter_)) return WaitResult::aborted;
      const TimePoint now = Clock::now();
      if (now >= next_ask_) {
        next_ask_ = now + kAskAgain;
        if (patience_.ask(now, &next_ask_) == Patience::Verdict::give_up)
          return WaitResult::gave_up;
      } else if (now - start_ < waiter_.policy.spin && pauses_ < waiter_.policy.pauses) {
        if (spin()) return WaitResult::ready;
      } else if (now - start_ < waiter_.policy.yield || waiter_.bell == nullptr) {
        ::sched_yield();
      } else {
        const Sleeper sleeper(*waiter_.bell);
        const std::uint32_t seen = waiter_.bell->rings.load();
        if (look_()) return WaitResult::ready;
        if (!aborted(waiter_)) futex_wait(waiter_.bell->rings, seen, next_ask_);
      }
    }
    return WaitResult::ready;
  }

 private:
  bool spin() {
    for (int i = 0; i < kFreeLooks; ++i) {
      pause_core();
      if (look_()) return true;
    }
    pauses_ += kFreeLooks;
    return false;
  }

  const Waiter& waiter_;
  Patience& patience_;
  const detail::Look look_;
  const TimePoint start_ = Clock::now();
  TimePoint next_ask_;
  int pauses_;
};

}  // namespace

void ring_slow(Doorbell& bell) noexcept {
  const int errno_before = errno;
  bell.rings.fetch_add(1);
  ::syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  errno = errno_before;
}

WaitPolicy wait_policy(int local_threads, int usable) noexcept {
  if (local_threads <= usable) return {};
  return {20, std::chrono::nanoseconds(30'000), std::chrono::nanoseconds(200'000)};
}

namespace detail {

WaitResult wait_slow(const Waiter& waiter, Patience& patience, Look look) {
  const int first_looks = std::min(kFreeLooks, waiter.policy.pauses);
  for (int i = 0; i < first_looks; ++i) {
    pause_core();
    if (look()) return WaitResult::ready;
  }
  return SlowWait(waiter, patience, look, first_looks).run();
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

void sleep_until(TimePoint end) noexcept {
  const int errno_before = errno;
  const timespec until = to_timespec(end);
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
  errno = errno_before;
}

}  // namespace tutti
