#include "plugins/nccl/under_way.h"

#include <utility>

namespace tutti::nccl_backend {

void UnderWay::begin(const Request& request) {
  begun_.reset();
  ++begun_count_;
  if (cuda_.is_capturing(request.stream)) return;  // a graph may run it at any time, and often
  {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) retire_first();
    if (!spare_.empty()) {
      begun_.emplace(std::move(spare_.back()));
      spare_.pop_back();
    }
  }
  if (!begun_) begun_.emplace(cuda_);
  begun_->what = {call_name(request), request.seq, begun_count_, request.stall.budget(), {}};
  begun_->reached.record(request.stream);
}

void UnderWay::end(Stream stream) {
  if (!begun_) return;
  begun_->ended.record(stream);
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(*begun_));
  begun_.reset();
}

bool UnderWay::retire_first() {
  if (operations_.empty() || !operations_.front().ended.done()) return false;
  reached_.store(operations_.front().what.number);
  spare_.push_back(std::move(operations_.front()));
  operations_.pop_front();
  return true;
}

std::optional<UnderWay::Operation> UnderWay::first_reached() {
  const std::lock_guard lock(mutex_);
  while (retire_first()) {
  }
  if (operations_.empty() || !operations_.front().reached.done()) return std::nullopt;
  reached_.store(operations_.front().what.number);
  return operations_.front().what;
}

void UnderWay::begin_stall(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (!operations_.empty()) operations_.front().what.stalls_since = now;
}

void UnderWay::clear() noexcept {
  const std::lock_guard lock(mutex_);
  begun_.reset();
  operations_.clear();
  spare_.clear();
}

}  // namespace tutti::nccl_backend
