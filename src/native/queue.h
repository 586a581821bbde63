// The collectives of a group in submission order.
//
// A blocking call on an idle group runs in the caller's thread. An asynchronous one joins the
// queue; whoever holds the driver token, the progress thread or any waiter, steps its head. A
// blocking call on a busy group helps until the queue is empty and then runs.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/crowd.h"
#include "native/collectives.h"
#include "native/driver_token.h"
#include "tutti/work.h"

namespace tutti::native {

/// Threads   run and start: one thread at a time. Everything else: any thread.
class Queue {
 public:
  /// `alarm`: of the collectives' connections, or null.
  Queue(Collectives& collectives, control::Membership& membership, Alarm* alarm) noexcept
      : collectives_(collectives),
        membership_(membership),
        waiter_(waiter_with(membership, alarm)) {}
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void run(const Request& request) { run(request, request); }
  Work start(Request request) { return start(std::move(request), std::nullopt); }
  /// Carries `moved` out on behalf of `request`, which stays on the board: it is not over yet.
  void run(const Request& request, const Request& moved);
  Work start(Request request, std::optional<Request> moved);

  /// Asynchronous operations that have not ended.
  std::size_t pending() const noexcept { return pending_.load(); }
  /// Those who wait for any of them.
  Crowd& crowd() noexcept { return crowd_; }
  const Waiter& waiter() const noexcept { return waiter_; }
  /// Steps the head as far as it goes, unless somebody else does.
  /// False: somebody does.
  bool drive() noexcept;
  /// The patience of the head.
  void ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept;
  /// Ends everything with the cause of the group's failure.
  void fail_pending() noexcept;
  /// Helps until nothing is pending (true) or `until` has come, or the group has failed (false).
  /// `awaits`: see native::help.
  bool drain(Deadline::Clock::time_point until, control::ProgramAwaits* awaits = nullptr);

 private:
  class Entry;
  class Call;

  /// As control::ProgramAwaits says.
  bool look(const Request& request, const Request& moved, std::optional<control::WaitPart>* part);
  bool begin_head();
  void end_head(std::optional<Error> failure) noexcept;
  void give_token() noexcept;

  Collectives& collectives_;
  control::Membership& membership_;
  const Waiter waiter_;
  std::atomic<std::size_t> pending_{0}, with_own_timeout_{0};

  Crowd crowd_;

  std::mutex mutex_;
  std::deque<std::shared_ptr<Entry>> entries_;  // mutex_; the head included

  DriverToken token_;  // guards everything below, and the Collectives while something is pending
  std::shared_ptr<Entry> head_;  // once it has begun
  Operation* operation_ = nullptr;
  bool ended_ = false;
};

}  // namespace tutti::native
