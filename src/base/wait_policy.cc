// How long to spin, to linger, and when to sleep: without clock and system calls.
#include <algorithm>
#include <utility>

#include "base/wait.h"

namespace tutti {

WaitPolicy wait_policy(int local_threads, int usable) noexcept {
  if (local_threads <= usable) return {};
  // Who is awaited may be waiting for this core: few looks before it is given away.
  return {5, std::chrono::nanoseconds(0), std::chrono::nanoseconds(200'000), true};
}

bool WaitAccount::allows(std::chrono::nanoseconds linger) noexcept {
  if (balance_.load(std::memory_order_relaxed) > 0) return true;
  book(linger.count() / kSavings, linger);
  return false;
}

void WaitAccount::gain(std::chrono::nanoseconds linger) noexcept { book(linger.count(), linger); }

void WaitAccount::lose(std::chrono::nanoseconds took, std::chrono::nanoseconds linger) noexcept {
  book(-took.count(), linger);
}

bool WaitAccount::should_move(Deadline::Clock::time_point now) noexcept {
  const std::int64_t since = now.time_since_epoch().count();
  if (since - window_began_.load(std::memory_order_relaxed) > kWindow.count()) {
    window_began_.store(since, std::memory_order_relaxed);
    held_up_.store(0, std::memory_order_relaxed);
  }
  return held_up_.fetch_add(1, std::memory_order_relaxed) + 1 == kOften;
}

void WaitAccount::book(std::int64_t amount, std::chrono::nanoseconds linger) noexcept {
  const std::int64_t balance = balance_.load(std::memory_order_relaxed) + amount;
  balance_.store(std::clamp(balance, kLeast * linger.count(), kMost * linger.count()),
                 std::memory_order_relaxed);
}

WaitPlan::Step WaitPlan::next(std::chrono::nanoseconds waited, bool awaits_own_core) noexcept {
  if (policy_.shares_cores) {
    if (waited < policy_.linger && may_linger()) return Step::yield;
  } else if (!awaits_own_core) {
    if (waited < policy_.spin) return Step::spin;
    if (waited < policy_.linger && may_linger()) return Step::spin;
  }
  end(waited);
  return Step::sleep;
}

bool WaitPlan::may_linger() noexcept {
  if (lingers_ == Answer::not_asked) {
    const bool allowed = account_ == nullptr || account_->allows(policy_.linger);
    lingers_ = allowed ? Answer::yes : Answer::no;
  }
  return lingers_ == Answer::yes;
}

void WaitPlan::end(std::chrono::nanoseconds waited) noexcept {
  if (std::exchange(lingers_, Answer::no) != Answer::yes || account_ == nullptr) return;
  if (waited < policy_.linger) {
    account_->gain(policy_.linger);
  } else {
    account_->lose(waited - policy_.spin, policy_.linger);
  }
}

}  // namespace tutti
