// Which threads of the program have called a world: a rank waits for others only if nobody else in
// its process may go on with the world meanwhile.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "control/board/owner.h"
#include "control/process.h"

namespace tutti::control {

/// Of one rank of one world; any thread.
class Callers {
 public:
  Callers(const Process& process, SlotOwner& own) noexcept : process_(process), own_(own) {}
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

  /// The calling thread calls the world. About a nanosecond, but for the first thread and when
  /// there are several.
  void note() noexcept {
    if (first_.load(std::memory_order_relaxed) != self()) note_another();
  }
  /// Whether the calling thread is the only one so far.
  bool is_only_one() const noexcept { return first_.load() == self() && !are_several_.load(); }

 private:
  static std::uintptr_t self() noexcept { return static_cast<std::uintptr_t>(pthread_self()); }
  void note_another() noexcept;

  const Process& process_;
  SlotOwner& own_;
  std::atomic<std::uintptr_t> first_{0};
  std::atomic<bool> are_several_{false};
};

/// A callback of Work::then that is yet to run, or one of on_failure that is due, in any world of
/// the process: it may start what others wait for.
class PendingCallback {
 public:
  PendingCallback() noexcept { count().fetch_add(1); }
  ~PendingCallback() { count().fetch_sub(1); }
  PendingCallback(const PendingCallback&) = delete;
  PendingCallback& operator=(const PendingCallback&) = delete;
  static bool are_any() noexcept { return count().load() != 0; }

  /// While it lives one counts for nothing: that behind what this thread waits for, which runs once
  /// that has ended.
  class Aside {
   public:
    Aside() noexcept { count().fetch_sub(1); }
    ~Aside() { count().fetch_add(1); }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
  };

 private:
  static std::atomic<int>& count() noexcept;  // of the process: process.cc
};

}  // namespace tutti::control
