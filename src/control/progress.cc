#include "control/progress.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

namespace tutti::control {

namespace {

/// The program's own threads want the cores.
constexpr WaitPolicy kNoSpinning{0, std::chrono::nanoseconds(0), std::chrono::nanoseconds(200'000)};

}  // namespace

void ProgressThread::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake();
  thread_.join();
}

void ProgressThread::add(Driver& driver) {
  {
    const std::lock_guard lock(mutex_);
    drivers_.push_back(&driver);
    if (!thread_.joinable()) {
      sigset_t all;
      sigset_t before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      thread_ = std::thread([this] { loop(); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  wake();
}

void ProgressThread::remove(Driver& driver) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(drivers_, &driver);
}

void ProgressThread::wake() noexcept {
  woken_.fetch_add(1);
  ring(idle_bell_);
  ring(bell_);
}

Driver::Step ProgressThread::step_all() noexcept {
  const std::lock_guard lock(mutex_);
  Driver::Step most = Driver::Step::idle;
  for (Driver* driver : drivers_) most = std::max(most, driver->step());
  return most;
}

void ProgressThread::loop() noexcept {
  pthread_setname_np(pthread_self(), "tutti-progress");
  /// Lets every driver look at its deadlines.
  class AskAll final : public Patience {
   public:
    explicit AskAll(ProgressThread& owner) noexcept : owner_(owner) {}
    Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
      const std::lock_guard lock(owner_.mutex_);
      *next = Deadline::Clock::time_point::max();
      for (Driver* driver : owner_.drivers_) {
        auto wanted = Deadline::Clock::time_point::max();
        driver->ask(now, &wanted);
        *next = std::min(*next, wanted);
      }
      return Verdict::keep_waiting;
    }

   private:
    ProgressThread& owner_;
  };

  // The rank's doorbell is only slept on while something is under way: a sleeper there costs every
  // peer that rings a system call.
  const Waiter waiter{nullptr, &bell_, kNoSpinning};
  while (!stopping_.load()) {
    const std::uint64_t woken = woken_.load();
    Driver::Step step = step_all();
    const auto disturbed = [&] { return stopping_.load() || woken_.load() != woken; };
    if (step == Driver::Step::moved) continue;
    if (step == Driver::Step::idle) {
      wait_until(idle_bell_, Deadline::Clock::time_point::max(), disturbed);
    } else {
      AskAll patience(*this);
      wait(waiter, patience, [&] {
        if (disturbed()) return true;
        step = step_all();
        return step != Driver::Step::waiting;
      });
    }
  }
}

}  // namespace tutti::control
