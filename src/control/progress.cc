#include "control/progress.h"

#include <algorithm>
#include <cstdlib>

#include "base/cpu_time.h"
#include "base/log.h"
#include "control/judge/clock.h"

namespace tutti::control {

namespace {

/// The program's own threads want the cores.
constexpr WaitPolicy kNoSpinning{0, std::chrono::nanoseconds(0), std::chrono::nanoseconds(200'000),
                                 true};

[[noreturn]] void end_process() noexcept {
  log(LogLevel::error,
      "a callback of Work::then has destroyed the group of its own operation, which is in use: "
      "keep the group until the callback has returned");
  std::abort();
}

}  // namespace

void ProgressThread::stop() noexcept {
  if (!has_thread()) return;
  if (is_own_thread()) end_process();
  stopping_.store(true);
  wake();
  join();
}

void ProgressThread::add(Driver& driver) {
  {
    const std::lock_guard lock(mutex_);
    drivers_.reserve(drivers_.size() + 1);
    if (!has_thread()) start_thread();
    drivers_.push_back(&driver);
  }
  wake();
}

void ProgressThread::remove(Driver& driver) noexcept {
  bool is_own = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase(drivers_, &driver);
    is_own = is_own_thread();
  }
  woken_.fetch_add(1);  // who visits may have missed one: it looks again
  const auto is_over = [&] { return visited_.load() != &driver; };
  if (is_own && !is_over()) end_process();
  wait_until(visit_bell_, Deadline::Clock::time_point::max(), is_over);
}

template <class Visit>
void ProgressThread::visit_all(Visit&& visit) noexcept {
  for (std::size_t i = 0;; ++i) {
    Driver* driver = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (i >= drivers_.size()) return;
      driver = drivers_[i];
      visited_.store(driver);  // nobody sees a driver that is neither listed nor visited
    }
    visit(*driver);
    visited_.store(nullptr);
    ring(visit_bell_);
  }
}

void ProgressThread::wake() noexcept {
  woken_.fetch_add(1);
  ring(idle_bell_);
  ring(bell_);
}

Driver::Step ProgressThread::step_all() noexcept {
  Driver::Step most = Driver::Step::idle;
  visit_all([&](Driver& driver) { most = std::max(most, driver.step()); });
  visits_.fetch_add(1);
  return most;
}

/// Lets every driver look at its deadlines, also where wait after wait is disturbed before its
/// first question.
class ProgressThread::AskAll final : public Patience {
 public:
  explicit AskAll(ProgressThread& owner) noexcept : owner_(owner) {}
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    const auto computed = thread_cpu_time();
    due_ = Clock::time_point::max();
    owner_.visit_all([&](Driver& driver) {
      auto wanted = Clock::time_point::max();
      driver.ask(now, &wanted);
      due_ = std::min(due_, wanted);
    });
    rests_until_ = now + pause_after(thread_cpu_time() - computed);
    *next = due_;
    return Verdict::keep_waiting;
  }
  /// Before a wait: what is new may have a deadline that is sooner.
  void begin(Clock::time_point now) {
    due_ = std::max(std::min(due_, now + kSoon), rests_until_);
    if (now < due_) return;
    Clock::time_point next;
    (void)ask(now, &next);
  }
  void end() noexcept { due_ = Clock::time_point::max(); }

 private:
  static constexpr std::chrono::milliseconds kSoon{5};
  ProgressThread& owner_;
  Clock::time_point due_ = Clock::time_point::max(), rests_until_ = {};
};

class ProgressThread::ArmAll final : public Alarm {
 public:
  explicit ArmAll(ProgressThread& owner) noexcept : owner_(owner) {}
  bool arm() noexcept override {
    bool has_armed = false;
    owner_.visit_all([&](Driver& driver) { has_armed = driver.arm() || has_armed; });
    return has_armed;
  }

 private:
  ProgressThread& owner_;
};

void ProgressThread::loop() noexcept {
  // The rank's doorbell is only slept on while something is under way: a sleeper there costs every
  // peer that rings a system call.
  WaitAccount account;
  ArmAll alarm(*this);
  AskAll patience(*this);
  const Waiter waiter{nullptr, &bell_, kNoSpinning, &account, &alarm};
  while (!stopping_.load()) {
    const std::uint64_t woken = woken_.load();
    Driver::Step step = step_all();
    idle_since_.store(step == Driver::Step::idle ? woken : ~std::uint64_t{0});
    const auto disturbed = [&] { return stopping_.load() || woken_.load() != woken; };
    if (step == Driver::Step::moved) continue;
    if (step == Driver::Step::idle) {
      patience.end();
      auto due = Deadline::Clock::time_point::max();
      visit_all([&](const Driver& driver) { due = std::min(due, driver.due()); });
      wait_until(idle_bell_, due, disturbed);
    } else {
      patience.begin(Deadline::Clock::now());
      wait(waiter, patience, [&] {
        if (disturbed()) return true;
        step = step_all();
        return step != Driver::Step::waiting;
      });
    }
  }
}

}  // namespace tutti::control
