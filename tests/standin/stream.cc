#include "standin/stream.h"

#include <chrono>
#include <thread>
#include <utility>

namespace tutti::standin {

namespace {

/// The finalizer of SplitMix64.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

Delays& Delays::get() {
  static auto& delays = *new Delays;  // streams use it until the process ends
  return delays;
}

void Delays::set(std::uint64_t seed, unsigned int most_microseconds) {
  seed_.store(seed, std::memory_order_relaxed);
  most_microseconds_.store(most_microseconds, std::memory_order_relaxed);
}

void Delays::take(std::uint64_t stream, std::uint64_t piece) const {
  const auto most = most_microseconds_.load(std::memory_order_relaxed);
  if (most == 0) return;
  const auto seed = seed_.load(std::memory_order_relaxed);
  const auto delay = mixed(mixed(mixed(seed) + stream) + piece) % (std::uint64_t{most} + 1);
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
}

std::uint64_t Stream::push(Piece piece) {
  const std::lock_guard lock(mutex_);
  if (is_capturing) return 0;
  queue_.push_back(std::move(piece));
  if (!std::exchange(has_thread_, true)) {
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
  return ++pushed_count_;
}

void Stream::wait(std::uint64_t piece_count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_count_ >= piece_count; });
}

void Stream::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, until = pushed_count_] { return done_count_ >= until; });
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return done_count_ == pushed_count_;
}

void Stream::end() {
  const std::lock_guard lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
}

void Stream::run() {
  Trouble& trouble = Trouble::get();
  for (std::uint64_t i = 0;; ++i) {
    Piece piece;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || is_ending_; });
      if (queue_.empty()) return;
      piece = std::move(queue_.front());
      queue_.pop_front();
    }
    Delays::get().take(number, i);
    if (piece.injected.gate != nullptr) piece.injected.gate->wait();
    const int later = piece.injected.later;
    if (later != kSuccess) trouble.break_device(later);
    // A piece that breaks its device is not done, also where that has been forgotten since.
    const bool is_whole = later == kSuccess && trouble.broken() == kSuccess;
    if (piece.is_order || is_whole) piece.work();
    piece = {};  // its memory is in use no more
    const std::lock_guard lock(mutex_);
    ++done_count_;
    changed_.notify_all();
  }
}

std::shared_ptr<Point> Event::latest() {
  const std::lock_guard lock(mutex_);
  return latest_;
}

void Event::set_latest(std::shared_ptr<Point> point) {
  const std::lock_guard lock(mutex_);
  latest_ = std::move(point);
}

}  // namespace tutti::standin
