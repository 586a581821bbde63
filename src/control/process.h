// The one process-wide object: the control thread, and what a forked child must not use.
//
// The *control thread* is made with the first world of the process and gone with the last. It holds
// the marks of the process's ranks (a robust mutex belongs to a thread), looks at the others' every
// 20 ms or when its *control bell* is rung, and runs what other threads post to it: callbacks, log
// lines. A child made by fork has no such thread: its copies of all groups are marked unusable.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/roster.h"
#include "base/wait.h"

namespace tutti::control {

/// Values of a group's abort word. Anything but kRunning ends every wait.
inline constexpr std::uint64_t kRunning = 0;
inline constexpr std::uint64_t kFailed = 1;
inline constexpr std::uint64_t kForked = 2;

/// How often marks are looked at.
inline constexpr std::chrono::milliseconds kTick{20};

/// What the control thread looks after: one per rank of this process and world.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Looks at the board. May set `*next` to an earlier time at which to be called again. What finds
  /// no memory is done at the next tick.
  virtual void tick(Deadline::Clock::time_point now,
                    Deadline::Clock::time_point* next) noexcept = 0;
  /// The bell others ring for this rank, unless the process sleeps on another slot's (then this
  /// rank publishes `slot` as its control_slot).
  virtual Doorbell& control_bell() noexcept = 0;
  virtual const void* board() const noexcept = 0;
  virtual SlotIndex slot_index() const noexcept = 0;
  virtual void sleep_at(SlotIndex slot) noexcept = 0;
};

class Process {
 public:
  /// The process's object, made if there is none. Throws kInvalidArgument in a forked child whose
  /// parent had a world.
  static std::shared_ptr<Process> get();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Whether this is a child made by fork while there was a world.
  static bool forked() noexcept;
  /// Throws kInvalidArgument there.
  static void refuse_in_child();

  bool on_control_thread() const noexcept;
  /// Runs `task` on the control thread, soon. The task must not block, and may throw bad_alloc:
  /// then it is run again.
  void post(std::function<void()> task);
  /// The same, and waits until it has run; throws what it throws.
  void run(std::function<void()> task);
  /// `task` is run first: it takes the mark. If it returns true ticks begin.
  void watch(Watched& watched, const std::function<bool()>& task);
  /// Ends the ticks, then runs `task`: it lets go of the mark.
  void unwatch(Watched& watched, const std::function<void()>& task) noexcept;
  /// Wakes the control thread for a tick.
  void rouse_self() noexcept;

  /// Abort words that become kForked in a child.
  void guard(std::atomic<std::uint64_t>& abort_word);
  void unguard(std::atomic<std::uint64_t>& abort_word) noexcept;

 private:
  Process() = default;
  ~Process() = default;
  static void release(Process* process) noexcept;
  void start();
  void loop() noexcept;
  void choose_bell();
  static void before_fork() noexcept;
  static void after_fork_in_parent() noexcept;
  static void after_fork_in_child() noexcept;

  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;          // mutex_
  std::vector<std::atomic<std::uint64_t>*> guarded_;  // mutex_
  Doorbell* bell_ = &own_bell_;                       // mutex_; written by the control thread
  bool stopping_ = false;                             // mutex_
  bool deletes_itself_ = false;                       // mutex_
  std::atomic<std::uint64_t> posted_{0};
  Doorbell own_bell_;
  std::vector<Watched*> watched_;  // control thread only
  std::thread thread_;
};

}  // namespace tutti::control
