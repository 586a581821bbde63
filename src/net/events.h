// Many sockets under one watch: whoever wants to know what happens at one is called, once for each
// time that it *arms* it.
//
// One thread runs the calls; any thread may arm, and nothing is lost between an arming and the
// event: what is there already counts. A socket that nobody has armed costs nothing, however much
// comes in. So a rank that reads its sockets itself, as long as it runs, arms them before it
// sleeps.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory_reserve.h"
#include "net/fd.h"
#include "net/poller.h"
#include "tutti/types.h"

namespace tutti::net {

class Events {
 public:
  using Clock = Deadline::Clock;
  /// On the thread that runs the calls; must not block.
  using Call = std::function<void()>;
  enum class Want : std::uint8_t { read = 1, write = 2, both = 3 };

  Events();  ///< Throws kSystem.

  /// A socket (or another descriptor that can be polled) that is watched as long as this lives.
  class Watched {
   public:
    ~Watched();  ///< its call does not run any more when this returns, unless it is the caller
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    /// Calls once it can be read or written, as wanted, or is broken. Any thread; arming it again
    /// before that adds to what is wanted. One system call, none if it is armed so already: false.
    bool arm(Want want) noexcept;

   private:
    friend class Events;
    Watched(Events& events, std::uint64_t id, int fd, Call call)
        : events_(events), id_(id), fd_(fd), call_(std::make_shared<const Call>(std::move(call))) {}
    Events& events_;
    const std::uint64_t id_;
    const int fd_;
    const std::shared_ptr<const Call> call_;  ///< runs to its end, whatever it ends
    std::mutex mutex_;
    std::uint8_t wanted_ = 0;  // mutex_; since the last call
  };
  /// `fd` must stay open for as long. Throws kSystem.
  std::unique_ptr<Watched> watch(int fd, Call call);

  /// Calls soon, in the order of posting. Any thread, signal handlers excepted. Where there is no
  /// memory it waits for some.
  void post(Call call) noexcept;
  /// Destroys `gone` when the call that now runs is over: it may be the one that runs it.
  template <class T>
  void discard(std::unique_ptr<T> gone) noexcept {
    std::shared_ptr<T> kept;
    until_done([&] {
      if (gone) kept = std::move(gone);
      post([kept] {});
    });
  }
  /// Runs what is due; returns when something was, or the time has come. One thread. What a call
  /// throws is thrown once all that are due have run; a socket whose call has thrown is armed as it
  /// was before.
  void run(Clock::time_point until);

 private:
  void call(std::uint64_t id) noexcept;
  void call_posted() noexcept;
  bool guarded(const Call& call) noexcept;

  const Fd epoll_;
  Wakeup wakeup_;

  std::mutex mutex_;  // guards what follows
  Condition idle_;
  std::map<std::uint64_t, Watched*> watched_;
  std::uint64_t last_id_ = 0;
  std::uint64_t running_ = 0;  ///< whose call runs; 0: none
  std::thread::id runner_;
  std::vector<Call> posted_;

  std::exception_ptr thrown_;  // by a call of this run, the first; of who runs
};

}  // namespace tutti::net
