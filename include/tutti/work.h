// The handle of an asynchronous operation.
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "tutti/error.h"

namespace tutti {

class Work;
class WorkState;  // tutti/backend.h
namespace group {
/// As Work::then, but for the library itself: the program has not been told of a failure by it.
Work continue_with(Work work, std::function<void(const Error* failure)> callback);
}  // namespace group

/// Waits until all have ended; then throws the first failure, by place in `works`.
///
///     wait_all(works);           // a vector of them
///     wait_all({sent, received});
TUTTI_API void wait_all(std::span<Work> works);
TUTTI_API void wait_all(std::initializer_list<std::reference_wrapper<Work>> works);
/// Waits until one of them has ended, well or not, and returns its index: `works[i].wait()` then
/// throws what it failed with. Helps all of them forward. One that has ended is returned again:
/// take it out before the next call.
///
/// Errors  kInvalidArgument if `works` is empty.
TUTTI_API std::size_t wait_any(std::span<Work> works);

/// An operation under way: wait for it, ask it, or let it go on its own.
///
///     Work work = group.all_reduce(gradients, tutti::async);
///     compute_something_else();
///     work.wait();                       // throws what the operation failed with
///
/// Lifetime  Keeps alive what the operation needs; the group must outlive it. The destructor waits
///           (bounded by the operation's deadline, on device memory until the device is done)
///           unless `wait` has returned, and logs a failure; it never throws.
/// Threads   wait, wait_for, done and error may be called from any thread.
class [[nodiscard]] TUTTI_API Work {
 public:
  Work() noexcept;  ///< already done
  explicit Work(std::shared_ptr<WorkState> state) noexcept;
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  /// Blocks until the operation has completed; helps it forward. Throws the failure, each time.
  ///
  /// On device memory it returns earlier: once the operation is queued on the device, and has been
  /// put before whatever the stream of its buffers is given next. Through a staged backend (native,
  /// gloo, mpi) that is when the ranks have exchanged their data; on nccl when all have come. See
  /// wait_host.
  void wait();
  /// Blocks until the operation has completed, on its device too. Throws the failure, each time.
  void wait_host();
  /// Waits at most `duration`, or 5 ms where that is longer. False: still under way, which is not a
  /// failure. Throws the failure.
  bool wait_for(std::chrono::nanoseconds duration);
  template <class Number>
    requires std::is_arithmetic_v<Number>
  bool wait_for(Number) {
    static_assert(
        !std::is_arithmetic_v<Number>,
        "tutti: a time needs a unit: std::chrono::seconds(1), or 1s with `using namespace "
        "std::chrono_literals`");
    return false;
  }
  /// Whether the operation has completed, on its device too, or failed. Never blocks.
  bool done() const noexcept;
  /// Whether it is of no operation: made without one, or moved from.
  bool is_empty() const noexcept { return state_ == nullptr; }
  /// The failure, if there was one. Never blocks.
  std::optional<Error> error() const;
  /// Takes back a send or recv that nothing has matched. True: it has moved nothing and never will;
  /// its buffer is free once `wait` has returned, which throws kCancelled. False: it is matched or
  /// has ended, or is a collective, which only all ranks together could take back. Asks the peer of
  /// a send if that is on another host, and waits for its answer; else never blocks.
  /// Errors  kInvalidArgument: inside a callback of `then`.
  bool cancel();
  /// Lets the operation finish on its own: `std::move(work).detach();`
  void detach() && noexcept;
  template <class Self = Work>
  void detach() & {
    static_assert(!std::same_as<Self, Self>, "tutti: detach ends a Work: std::move(work).detach()");
  }

  /// Calls `callback` once when the operation has ended, well (null) or with a failure: in the
  /// thread that ended it, one that waits or one of Tutti's, and at once in this thread if it has
  /// ended already. The Work that is returned takes this one's place: it ends after the callback,
  /// with what that threw (kInvalidArgument if it is no Error), else with the operation's failure.
  ///
  ///     Work saved = group.all_reduce(x, tutti::async).then([&](const Error* failure) {
  ///       if (failure == nullptr) results.push_back(x);
  ///     });
  ///
  /// Lifetime  The group must outlive the callback. One that destroys the group of its own
  ///           operation (by exit() with a static group, for example) aborts it; its memory stays.
  /// Ordering  Other operations of the group do not go on while it runs: keep it short.
  /// Errors    Inside the callback a call that would block (an operation that is not asynchronous,
  ///           new_group, close, wait) is kInvalidArgument.
  Work then(std::function<void(const Error* failure)> callback) &&;
  template <class Callback>
  Work then(Callback&&) & {
    static_assert(!std::same_as<Callback, Callback>,
                  "tutti: then takes the place of a Work: work = std::move(work).then(callback)");
    return Work();
  }

 private:
  friend std::size_t wait_any(std::span<Work> works);
  friend Work group::continue_with(Work work, std::function<void(const Error*)> callback);
  void throw_failure() const;
  std::shared_ptr<WorkState> state_;
};

}  // namespace tutti
