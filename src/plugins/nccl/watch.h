// The one thread of a process that looks after all its communicators: nobody calls NCCL, and so
// learns of its errors, while the device works.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti::nccl_backend {

/// What is looked after.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Looks, in the watching thread; false: there is nothing to look after any more.
  virtual bool look() noexcept = 0;
};

/// Threads   Any.
class WatchList {
 public:
  void add(std::shared_ptr<Watched> watched);
  /// Lets the thread look at once.
  void wake() noexcept;

 private:
  friend class Watch;
  void work();
  bool await_work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Watched>> added_;  // mutex_
  bool woken_ = false;                           // mutex_
  bool stops_ = false;                           // mutex_: once there is nothing left
  bool ended_ = false;                           // mutex_
  std::vector<std::shared_ptr<Watched>> all_;    // the thread's own
};

/// The thread; it ends with the last owner of this.
class Watch {
 public:
  static std::shared_ptr<Watch> of_process();
  Watch();
  /// Whoever is watched has closed or failed by now. Waits until all have ended; not for ever, as
  /// NCCL may not let go of one.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const std::shared_ptr<WatchList>& list() const noexcept { return list_; }

 private:
  const std::shared_ptr<WatchList> list_;
  std::thread thread_;
};

}  // namespace tutti::nccl_backend
