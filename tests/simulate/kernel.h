// The world in which the product's own code is simulated: processes made of fibers, one clock, one
// memory, in one thread and by one seed.
//
// A process takes one *step* with each atomic operation that its code does on shared memory (the
// compiler calls us there: steps.cc). Between any two steps it may be put aside, be stopped, or
// die. Its fibers are its threads; they change only where the product waits, so that its mutexes
// are never contended. Time stands still while somebody can run but for what steps cost, and then
// jumps to what is due next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/wait.h"

namespace tutti::control {
class Process;
}

namespace tutti::simulate {

using Clock = Deadline::Clock;

/// SplitMix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept;
  /// 0 to below - 1.
  std::uint64_t below(std::uint64_t below) noexcept { return next() % below; }
  int from_to(int first, int last) noexcept {
    return first + static_cast<int>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  bool chance(double probability) noexcept {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }

 private:
  std::uint64_t state_;
};

struct Fiber;

struct Proc {
  int id = 0;
  bool dead = false;
  Clock::time_point died = {};
  Clock::time_point stopped_until = {};
  std::uint64_t steps = 0;
  std::uint64_t die_at = 0;   ///< step; 0: never
  std::uint64_t stop_at = 0;  ///< the same
  std::chrono::nanoseconds stop_for{0};
  Fiber* held = nullptr;  ///< put aside in the middle of its steps
  std::vector<Fiber*> fibers;
  std::weak_ptr<control::Process> control;
  Fiber* control_fiber = nullptr;
};

class Kernel {
 public:
  /// With each step a process is put aside with the first probability, and with the second it
  /// stops for some milliseconds.
  Kernel(std::uint64_t seed, double put_aside, double hiccup);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  /// The one that runs; null outside of it.
  static Kernel* running() noexcept { return running_; }

  Proc& add_process();
  Proc& process(int id) noexcept { return *processes_[static_cast<std::size_t>(id)]; }
  /// A fiber of `process`; the one that is running now if null.
  Fiber* spawn(Proc* process, std::function<void()> body);
  /// Until nothing is left that can run; false: `limit` has come first, or too many steps.
  bool run(Clock::time_point limit);

  Clock::time_point now() const noexcept { return now_; }
  Random& random() noexcept { return random_; }
  std::uint64_t steps() const noexcept { return steps_; }
  std::chrono::nanoseconds hiccups() const noexcept { return hiccups_; }

  // ---- for what runs inside
  bool inside() const noexcept { return current_ != nullptr; }
  Proc& self() const noexcept;
  Fiber* current() const noexcept { return current_; }
  bool has_ended(const Fiber* fiber) const noexcept;
  /// Memory whose atomics are steps.
  void share(const void* begin, std::size_t byte_count) noexcept;
  bool is_shared(const void* at) const noexcept { return at >= shared_begin_ && at < shared_end_; }
  void step() noexcept;
  /// Until `bell` rings (it may be null) or `until` has come.
  void block(Doorbell* bell, Clock::time_point until) noexcept;
  void ring(const Doorbell& bell) noexcept;

  // ---- robust mutexes
  int try_lock(void* mutex) noexcept;
  void unlock(void* mutex) noexcept { holders_.erase(mutex); }

 private:
  void switch_out() noexcept;
  void spend(std::chrono::nanoseconds time) noexcept;
  void resume(Fiber& fiber);
  Fiber* choose();
  Clock::time_point next_due() const noexcept;

  static Kernel* running_;
  Random random_;
  const double put_aside_;
  const double hiccup_;
  std::chrono::nanoseconds hiccups_{0};
  Clock::time_point now_{std::chrono::hours(1)};
  std::chrono::nanoseconds spent_{0};
  std::uint64_t steps_ = 0;
  std::vector<std::unique_ptr<Proc>> processes_;
  std::vector<Fiber*> all_fibers_;
  Fiber* current_ = nullptr;
  const void* shared_begin_ = nullptr;
  const void* shared_end_ = nullptr;
  std::unordered_map<void*, Proc*> holders_;
};

}  // namespace tutti::simulate
