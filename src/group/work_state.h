// The shared half of a Work: what the backend that runs an asynchronous operation and those who
// wait for it have in common.
//
// A backend derives from WorkState, *begins* it when the operation starts to run and *ends* it
// once, with or without an error. Whoever waits *helps*: it runs the backend's queue in its own
// thread until the operation has ended.
#pragma once

#include <atomic>
#include <optional>
#include <utility>

#include "tutti/backend.h"

namespace tutti::detail {

/// Lifetime  Shared by the Work and the backend's queue; lives until both have let go.
/// Threads   begin and end: by whoever runs the operation, one after the other. All else: any
/// thread.
class WorkState {
 public:
  explicit WorkState(Request request) noexcept : request_(std::move(request)) {}
  virtual ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  const Request& request() const noexcept { return request_; }
  bool done() const noexcept { return done_.load(std::memory_order_seq_cst); }
  /// The failure; empty while the operation is under way and when it has succeeded.
  std::optional<Error> error() const;

  /// Tells the request's observer that the operation runs now.
  void begin() noexcept;
  /// The last thing that is done to it; the flag is stored seq_cst, so ringing after it is enough.
  void end() noexcept { finish(std::nullopt); }
  void end(Error failure) noexcept { finish(std::move(failure)); }

  /// Helps until the operation has ended (true) or `until` has come (false). The wait itself is
  /// bounded by the operation's own deadlines, after which it has ended with an error.
  virtual bool help(Deadline::Clock::time_point until) = 0;

  /// Whether somebody has been told of the failure; the destructor of Work logs it otherwise.
  void mark_seen() noexcept { seen_.store(true, std::memory_order_relaxed); }
  bool seen() const noexcept { return seen_.load(std::memory_order_relaxed); }

 private:
  void finish(std::optional<Error> failure) noexcept;

  const Request request_;
  std::optional<Error> failure_;  // written before done_ is set, constant afterwards
  std::atomic<bool> done_{false};
  std::atomic<bool> seen_{false};
};

}  // namespace tutti::detail
