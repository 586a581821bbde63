// The group of Tutti's behind a group of torch's.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti::python {

/// torch's group of all ranks is a world of Tutti's, and its other groups are made from that: one
/// status board, and deadlocks are seen across all of them. A group of torch's whose group of all
/// ranks has another backend is a world by itself.
///
/// Threads   Any, but for what ProcessGroup says of submitting.
class Group {
 public:
  /// Returns when all members have come.
  /// Errors  torch's: see as_torch_of_meeting.
  static std::shared_ptr<Group> make(const c10d::DistributedBackendOptions& options);
  /// `timeout`: of calls that give none.
  Group(std::shared_ptr<Group> world, ProcessGroup group, std::string name,
        std::chrono::nanoseconds timeout);

  ProcessGroup& operator*() { return group_; }
  ProcessGroup* operator->() { return &group_; }
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }
  /// "torch's group 0".
  const std::string& name() const noexcept { return purpose_.text; }
  /// Before Python ends: says goodbye, or aborts it with the text of an exception; no call may
  /// follow. What is under way at `deadline` ends there. Without goodbye where a thread is in a
  /// call: see Inside.
  void leave(std::chrono::nanoseconds deadline, const std::string& exception);
  /// It has been closed or aborted: groups that come are not made from it.
  void retire();
  /// Keeps the first error that a call on it got, if the group has failed. Whether that is `error`.
  bool note(const Error& error);
  /// What the group has failed with; as a call was told it, if one was. Notes it.
  std::optional<Error> failure();
  /// For the messages of Tutti: which group of torch's a call is on, and, with
  /// TORCH_DISTRIBUTED_DEBUG=INFO or DETAIL, the line of Python that made it.
  Where where() const;

  /// A thread that is in a call on it, which must not lose it.
  class Inside {
   public:
    /// Does not come back once leave_all has begun in another thread.
    explicit Inside(Group& group);
    ~Inside();
    /// Before what may take Python's lock. Once leave_all has begun it comes back in the thread
    /// that called it alone, and so does the destructor: Python 3.11 ends a thread that takes its
    /// lock then, which ends the process. That is about to end.
    void pause_at_end() const noexcept;

   private:
    std::atomic<int>& count_;
  };

 private:
  std::shared_ptr<Group> world_;  // outlives group_; null in a world
  Purpose purpose_;
  ProcessGroup group_;
  const std::chrono::nanoseconds timeout_;
  std::atomic<int> inside_ = 0;
  std::mutex mutex_;
  std::optional<Error> noted_;  // mutex_
};

/// Aborts the groups that the program has not destroyed, also those that a thread is in a call on.
///
/// Threads   Without Python's lock.
void abort_all(const std::string& exception);

/// Before Python ends: leaves the groups that the program has not destroyed, so that the others are
/// not told that this rank was lost; within 2 s in all. With the text of an exception that ends the
/// program it aborts them.
///
/// Threads   Without Python's lock.
void leave_all(const std::string& exception);

}  // namespace tutti::python
