// The progress thread of a rank: carries asynchronous operations forward while the program
// computes. One per rank and not per process, because it sleeps on its rank's doorbell and a thread
// can sleep on one only. Made with the first driver, gone with the rank; costs nothing before.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/wait.h"

namespace tutti::control {

/// Something with work of its own that never blocks: the queues of a group.
class Driver {
 public:
  enum class Step : std::uint8_t { idle, waiting, moved };
  virtual ~Driver() = default;
  /// Does what can be done now. idle: nothing is under way, or another thread drives and will call
  /// wake when it stops with work left. Called by the progress thread only;
  /// must not throw. Deadlines and the abort word are the driver's own matter.
  virtual Step step() noexcept = 0;
  /// Asked when nothing has moved for long, like Patience::ask; the answer is carried out by the
  /// driver itself.
  virtual void ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept = 0;
  /// Before the thread sleeps while something is under way: as Alarm::arm.
  virtual bool arm() noexcept { return false; }
  /// When it wants to be stepped although nothing is under way.
  virtual Deadline::Clock::time_point due() const noexcept {
    return Deadline::Clock::time_point::max();
  }
};

class ProgressThread {
 public:
  explicit ProgressThread(Doorbell& bell) noexcept : bell_(bell) {}
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Steps `driver` from now on; the first one starts the thread. May be called by a driver that is
  /// being stepped (an operation that has ended may start another one), as may remove.
  /// Errors  kSystem: there are no more threads; `driver` is not added then.
  void add(Driver& driver);
  /// Returns when `driver` is not being stepped and never will be again. A driver that removes
  /// itself while it is stepped ends the process: what it steps would be gone.
  void remove(Driver& driver) noexcept;
  /// Ends the thread; what that thread does itself ends the process.
  void stop() noexcept;
  /// How often all drivers were stepped.
  std::uint64_t visits() const noexcept { return visits_.load(); }
  /// Whether they were since there were `*visits`, which becomes how many there are; or nothing is
  /// under way.
  bool has_looked_since(std::uint64_t* visits) const noexcept {
    if (idle_since_.load() == woken_.load()) return true;
    const std::uint64_t before = *visits;
    *visits = visits_.load();
    return *visits != before;
  }
  /// There is new work: call after it is in the queue.
  void wake() noexcept;

 private:
  class AskAll;
  class ArmAll;
  void loop() noexcept;
  Driver::Step step_all() noexcept;
  /// Without holding `mutex_` meanwhile.
  template <class Visit>
  void visit_all(Visit&& visit) noexcept;

  // ---- progress_thread.cc
  void start_thread();                  // mutex_
  bool has_thread() const noexcept;     // mutex_, or nobody adds any more
  bool is_own_thread() const noexcept;  // the same
  void join() noexcept;

  Doorbell& bell_;
  Doorbell idle_bell_;
  Doorbell visit_bell_;  ///< rung after each visit
  std::mutex mutex_;
  std::vector<Driver*> drivers_;  // mutex_
  std::thread::id thread_id_;     // mutex_
  std::atomic<Driver*> visited_{nullptr};
  std::atomic<std::uint64_t> woken_{0};
  std::atomic<std::uint64_t> visits_{0};
  std::atomic<std::uint64_t> idle_since_{
      0};  // what woken_ was when nothing was under way; else another
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tutti::control
