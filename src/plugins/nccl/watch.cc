#include "plugins/nccl/watch.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/signals.h"

namespace tutti::nccl_backend {

namespace {

constexpr std::chrono::milliseconds kPeriod{100};
/// How soon it looks again at what has failed, and is in somebody's call meanwhile.
constexpr std::chrono::milliseconds kSoon{2};
/// How long the last owner waits.
constexpr std::chrono::seconds kLastWait{10};

}  // namespace

void WatchList::add(std::shared_ptr<Watched> watched) {
  const std::lock_guard lock(mutex_);
  added_.push_back(std::move(watched));
}

void WatchList::wake() noexcept {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

/// False: there is none, and none will come.
bool WatchList::await_work() {
  std::unique_lock lock(mutex_);
  const auto period = stops_ ? kSoon : kPeriod;
  changed_.wait_for(lock, period, [this] { return woken_; });
  woken_ = false;
  all_.insert(all_.end(), added_.begin(), added_.end());
  added_.clear();
  return !(stops_ && all_.empty());
}

void WatchList::work() {
  while (await_work()) {
    std::erase_if(all_, [](const std::shared_ptr<Watched>& watched) { return !watched->look(); });
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

std::shared_ptr<Watch> Watch::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<Watch> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Watch> watch = known.lock();
  if (watch == nullptr) known = watch = std::make_shared<Watch>();
  return watch;
}

Watch::Watch() : list_(std::make_shared<WatchList>()) {
  const SignalsBlocked blocked;
  thread_ = std::thread([list = list_] { list->work(); });
}

Watch::~Watch() {
  std::unique_lock lock(list_->mutex_);
  list_->stops_ = list_->woken_ = true;
  list_->changed_.notify_all();
  if (list_->changed_.wait_for(lock, kLastWait, [this] { return list_->ended_; })) {
    lock.unlock();
    thread_.join();
    return;
  }
  thread_.detach();
  log(LogLevel::warn, "backend nccl: NCCL does not let go of a communicator; it is left behind");
}

}  // namespace tutti::nccl_backend
