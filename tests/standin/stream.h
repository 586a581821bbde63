// Streams of the stand-in: queues, each run in order by a thread of its own; and events.
//
// Nothing orders two streams but what the program asks for, locks included: with
// ThreadSanitizer a copy that waits for no event is a data race with the one it should wait for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "standin/point.h"
#include "standin/trouble.h"

namespace tutti::standin {

/// How late the work of streams begins.
class Delays {
 public:
  static Delays& get();

  void set(std::uint64_t seed, unsigned int most_microseconds);
  /// Before a stream's piece of work: `stream` and `piece` count from 0.
  void take(std::uint64_t stream, std::uint64_t piece) const;

 private:
  std::atomic<std::uint64_t> seed_{0};
  std::atomic<unsigned int> most_microseconds_{0};
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int its_device, std::uint64_t its_number) : device(its_device), number(its_number) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  struct Piece {
    std::function<void()> work;
    bool is_order = false;  ///< done on a broken device, too, so that others go on
    Injected injected = {};
  };
  /// Dropped while capturing. Returns what wait() takes.
  std::uint64_t push(Piece piece);
  /// Until the first `piece_count` pieces are done.
  void wait(std::uint64_t piece_count);
  void wait_all();
  bool is_idle();
  /// Ends the thread once what is queued is done.
  void end();

  const int device;
  const std::uint64_t number;
  std::atomic<bool> is_capturing{false};

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> queue_;                          // mutex_
  std::uint64_t pushed_count_ = 0, done_count_ = 0;  // mutex_
  bool has_thread_ = false, is_ending_ = false;      // mutex_
};

class Event {
 public:
  explicit Event(int its_device) : device(its_device) {}

  /// Null: was never recorded.
  std::shared_ptr<Point> latest();
  void set_latest(std::shared_ptr<Point> point);

  const int device;
  std::atomic<bool> is_captured{false};

 private:
  std::mutex mutex_;
  std::shared_ptr<Point> latest_;  // mutex_
};

/// What is living, by handle.
template <class Object>
class Living {
 public:
  static Living& get() {
    static auto& living = *new Living;  // streams use it until the process ends
    return living;
  }
  void* add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    void* const handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  std::shared_ptr<Object> find(void* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> take(void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto taken = std::move(found->second);
    objects_.erase(found);
    return taken;
  }
  std::size_t count() const {
    const std::shared_lock lock(mutex_);
    return objects_.size();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Object>> objects_;  // mutex_
};

}  // namespace tutti::standin
