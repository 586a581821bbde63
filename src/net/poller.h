// The poller: the only place where the library waits for a descriptor, for time, or on a condition.
//
// A *watch* is one descriptor and what one wants to know about it. Every wait has a deadline. An
// *interrupt* ends a wait early: an abort word that has become nonzero, or a *wake-up*, an eventfd
// that another thread signals.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "net/fd.h"
#include "tutti/types.h"

struct epoll_event;

namespace tutti::net {

struct Watch {
  int fd = -1;  ///< a negative one is skipped
  bool want_read = false;
  bool want_write = false;
  bool readable = false;  ///< answer; a closed or broken descriptor is readable and writable
  bool writable = false;  ///< answer
};

/// Another thread's way to end a poll. Signals are kept until drained.
class Wakeup {
 public:
  Wakeup();
  void signal() noexcept;  ///< from any thread, and from signal handlers
  void drain() noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  Fd fd_;
};

struct Interrupt {
  const std::atomic<std::uint64_t>* abort_word =
      nullptr;  ///< looked at every 20 ms, and when woken
  const Wakeup* wakeup = nullptr;
  /// Called every 20 ms, if given; what it throws ends the wait.
  const std::function<void()>* look = nullptr;
};

enum class PollResult : std::uint8_t { ready, expired, aborted, woken };

/// Waits until one of `watches` is ready. Survives EINTR.
PollResult poll_any(std::span<Watch> watches, Deadline& deadline, const Interrupt& interrupt = {});
PollResult poll_readable(int fd, Deadline& deadline, const Interrupt& interrupt = {});
PollResult poll_writable(int fd, Deadline& deadline, const Interrupt& interrupt = {});
/// Waits for time to pass: `expired` when the deadline came first, else `ready`.
PollResult pause(std::chrono::nanoseconds duration, Deadline& deadline,
                 const Interrupt& interrupt = {});

/// Waits until something has happened that `epoll` watches, or `until` has come. Returns how much
/// of it was put into `happened`. Survives EINTR, by returning nothing.
std::size_t poll_events(int epoll, std::span<epoll_event> happened,
                        Deadline::Clock::time_point until);

/// A condition variable whose waits have deadlines.
class Condition {
 public:
  /// Returns false once the deadline has passed. May wake for no reason.
  bool wait(std::unique_lock<std::mutex>& lock, Deadline& deadline);
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace tutti::net
