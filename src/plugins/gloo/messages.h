// Messages whose two ends have found each other: one transfer each.
//
// Gloo can only be waited for, not asked, and a wait that gives up ends the group. So a transfer is
// *waited out* by one thread: that of a caller who wants to wait until its end, else the thread
// kept here, which takes them in the order in which they were given to it. They all move meanwhile.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "plugins/gloo/mesh.h"

namespace tutti::gloo_backend {

/// Threads   Any.
class Messages {
 public:
  explicit Messages(Mesh& mesh) noexcept : mesh_(mesh) {}
  /// Fails the mesh if something is under way.
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Posts the send or receive `request`, never waits. This must outlive the Work.
  /// Errors    Those of Mesh::run.
  Work start(Request request);

 private:
  class Transfer;

  void hand_over(std::shared_ptr<Transfer> transfer);
  void wait_out();

  Mesh& mesh_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> transfers_;  // mutex_
  bool stopped_ = false;                             // mutex_
  std::thread thread_;                               // mutex_, once it is there constant
};

}  // namespace tutti::gloo_backend
