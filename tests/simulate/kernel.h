// The world in which the product's own code is simulated: processes made of fibers, one clock, one
// memory, in one thread and by one seed.
//
// A process takes one *step* with each atomic operation that its code does on shared memory (it
// calls us there: steps.h). Between any two steps it may be put aside, be stopped, or
// die. Its fibers are its threads; they change at atomic operations on its own memory as well.
// Futexes, mutexes and yielding are ours (the linker's --wrap). Time stands still while somebody
// can run but for what steps cost, and then jumps to what is due next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "simulate/random.h"
#include "tutti/types.h"

namespace tutti::control {
class Process;
class Untold;
}  // namespace tutti::control

namespace tutti::simulate {

using Clock = Deadline::Clock;

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
  std::vector<int> stop_with = {};  ///< processes that stop for the same time
  std::vector<Fiber*> fibers;
  int runnable = 0;          ///< of the fibers
  std::size_t ready_at = 0;  ///< its place among those that have such fibers, from 1 on; 0: none
  std::weak_ptr<control::Process> control;
  std::shared_ptr<control::Untold> untold;
  Fiber* control_fiber = nullptr;
  std::atomic<int> pending_callbacks{0};
  std::map<const void*, Fiber*> threads;  ///< of the product's objects that have one
  bool has_no_memory = false;             ///< none is reserved any more
};

class Kernel {
 public:
  static constexpr std::chrono::nanoseconds kStep{20};  ///< what one costs
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
  const Proc& process(int id) const noexcept { return *processes_[static_cast<std::size_t>(id)]; }
  /// A fiber of `process`; the one that is running now if null.
  Fiber* spawn(Proc* process, std::function<void()> body);
  /// Until nothing is left that can run; false: `limit` has come first, or too many steps.
  bool run(Clock::time_point limit);

  /// Called when a process dies; it may kill others.
  std::function<void(Proc&)> on_death;
  void kill(Proc& process);

  /// Of the machine, as far as the product asks.
  int cores = 1;

  Clock::time_point now() const noexcept { return now_; }
  Random& random() noexcept { return random_; }
  std::uint64_t steps() const noexcept { return steps_; }
  std::chrono::nanoseconds hiccups() const noexcept { return hiccups_; }

  // ---- for what runs inside
  bool inside() const noexcept { return current_ != nullptr; }
  Proc& self() const noexcept { return *self_; }
  Fiber* current() const noexcept { return current_; }
  int core() const noexcept;
  void step() noexcept;
  /// An atomic operation on memory of the process: another thread of it may go on.
  void own_step() noexcept;
  /// Until somebody wakes `place` (it may be null) or `until` has come.
  void block(const void* place, Clock::time_point until) noexcept;
  void wake(const void* place) noexcept;
  void join(const Fiber* fiber) noexcept;

  // ---- mutexes: of one process, and robust ones
  void lock(void* mutex) noexcept;
  void unlocked(void* mutex) noexcept;
  int try_lock(void* mutex) noexcept;
  void unlock(void* mutex) noexcept { holders_.erase(mutex); }

 private:
  void switch_out() noexcept;
  void spend(std::chrono::nanoseconds time) noexcept;
  void spend_step() noexcept;
  void make_runnable(Fiber& fiber) noexcept;
  void stop_running(Proc& process) noexcept;
  void forget(Proc& process) noexcept;
  void leave_place(Fiber& fiber) noexcept;
  void resume(Fiber& fiber);
  std::uint64_t steps_until(double probability) noexcept;
  Fiber* choose();
  void wake_due() noexcept;
  Clock::time_point next_due() noexcept;

  static Kernel* running_;
  Random random_;
  const double put_aside_;
  Chance hiccup_;
  std::chrono::nanoseconds hiccups_{0};
  Clock::time_point now_{std::chrono::hours(1)};
  std::chrono::nanoseconds spent_{0};
  // Every process has a core of its own: what one spends the others spend as well.
  std::int64_t shared_by_ = 1;
  std::chrono::nanoseconds step_of_all_{0}, step_left_over_{0};  // of a step: for each, and in all
  std::uint64_t steps_ = 0, most_steps_ = 0;
  std::vector<std::unique_ptr<Proc>> processes_;
  std::vector<Fiber*> all_fibers_;
  Fiber* current_ = nullptr;
  Proc* self_ = nullptr;                               // its process
  std::uint64_t steps_left_ = 0, own_steps_left_ = 0;  // before the next switch
  std::vector<Proc*> ready_;                           // processes with fibers that can run
  std::unordered_map<const void*, std::vector<Fiber*>> waiting_at_;
  /// What waits for a time, a heap: the earliest is the last one. Some have been woken since.
  struct Timer {
    Clock::time_point at;
    std::uint64_t number;
    Fiber* fiber;
    bool operator<(const Timer& other) const noexcept {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  static bool is_over(const Timer& timer) noexcept;
  void add_timer(Timer timer);
  void pop_timer() noexcept;
  std::vector<Timer> timers_;
  std::uint64_t waits_ = 0;
  int waiting_for_mutexes_ = 0;
  std::unordered_map<void*, Proc*> holders_;
};

/// What steps.h has the product's code call.
void step(const volatile void* at) noexcept;

}  // namespace tutti::simulate
