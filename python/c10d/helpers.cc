#include "c10d/helpers.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace tutti::python {
namespace {

using Job = std::function<void()>;

class Helpers {
 public:
  void add(Job job) {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      forget(std::move(job));
      return;
    }
    jobs_.push_back(std::move(job));
    if (idle_ >= jobs_.size()) {
      changed_.notify_one();
    } else {
      start_one();
    }
  }

  bool stop(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    for (Job& job : jobs_) forget(std::move(job));
    jobs_.clear();
    changed_.notify_all();
    return ended_.wait_for(lock, patience, [this] { return alive_ == 0; });
  }

  /// What a job holds may need Python's lock to be freed.
  static void forget(Job job) { static_cast<void>(new Job(std::move(job))); }

 private:
  /// Where the system has no thread for it the others get to it, later.
  void start_one() {
    try {
      std::thread([this] { serve(); }).detach();
      ++alive_;
    } catch (const std::system_error& error) {
      TORCH_WARN("tutti: no thread for the callbacks of a future: ", error.what());
    }
  }

  /// One waits for more; those that a burst has made end with it.
  void serve() {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      if (jobs_.empty()) {
        if (idle_ > 0) break;
        ++idle_;
        changed_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
        --idle_;
        continue;
      }
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
    --alive_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::deque<Job> jobs_;
  std::size_t idle_ = 0, alive_ = 0;
  bool stopped_ = false;
};

/// Those of this process: a forked child has none of its parent's threads. Never destroyed: one of
/// them may still wait when the process ends.
Helpers& helpers() {
  static std::mutex& mutex = *new std::mutex;
  static Helpers* all = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != ::getpid()) {
    all = new Helpers;
    owner = ::getpid();
  }
  return *all;
}

}  // namespace

void run_by_helper(std::function<void()> job) { helpers().add(std::move(job)); }

bool stop_helpers(std::chrono::milliseconds patience) { return helpers().stop(patience); }

}  // namespace tutti::python
