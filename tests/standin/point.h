// A point that a thread comes to, once, and others wait for.
#pragma once

#include <condition_variable>
#include <mutex>

namespace tutti::standin {

class Point {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }
  bool is_reached() {
    const std::lock_guard lock(mutex_);
    return is_reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
};

}  // namespace tutti::standin
