#include "ddp/reducer.h"

#include <exception>
#include <utility>

namespace tutti::ddp {

Reducer::Reducer(std::size_t parameter_count, ReducerActions actions)
    : actions_(std::move(actions)), bucket_of_(parameter_count) {
  ready_.assign(parameter_count, false);
  order_.reserve(parameter_count);
}

void Reducer::set_buckets(const std::vector<BucketShape>& buckets) {
  parameters_in_.clear();
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (const Slot& slot : buckets[bucket].slots) bucket_of_[slot.parameter] = bucket;
    parameters_in_.push_back(buckets[bucket].slots.size());
  }
  begin_anew();
}

Reducer::Mark Reducer::mark_ready(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  if (ready_[parameter]) return Mark::repeated;
  ready_[parameter] = true;
  order_.push_back(parameter);
  --pending_[bucket_of_[parameter]];
  while (launched_ < pending_.size() && pending_[launched_] == 0) {
    actions_.launch(launched_);
    ++launched_;
  }
  return Mark::accepted;
}

bool Reducer::in_step() const {
  const std::lock_guard lock(mutex_);
  return !order_.empty();
}

bool Reducer::all_ready() const {
  const std::lock_guard lock(mutex_);
  return order_.size() == ready_.size();
}

std::vector<std::size_t> Reducer::missing() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> parameters;
  for (std::size_t parameter = 0; parameter < ready_.size(); ++parameter) {
    if (!ready_[parameter]) parameters.push_back(parameter);
  }
  return parameters;
}

void Reducer::finish() {
  std::exception_ptr first_failure;
  for (std::size_t bucket = 0; bucket < launched_; ++bucket) {
    try {
      actions_.wait(bucket);
    } catch (...) {
      if (!first_failure) first_failure = std::current_exception();
    }
  }
  launched_ = 0;  // nothing is under way any more
  if (first_failure) {
    begin_anew();
    std::rethrow_exception(first_failure);
  }
  if (finished_steps_ == 0) observed_order_ = order_;
  ++finished_steps_;
  begin_anew();
}

void Reducer::reset() noexcept {
  for (std::size_t bucket = 0; bucket < launched_; ++bucket) actions_.drop(bucket);
  begin_anew();
}

void Reducer::begin_anew() {
  const std::lock_guard lock(mutex_);
  ready_.assign(ready_.size(), false);
  order_.clear();
  pending_ = parameters_in_;
  launched_ = 0;
}

}  // namespace tutti::ddp
