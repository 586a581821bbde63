#include "base/rank_thread.h"

#include <utility>

namespace tutti {
namespace {

thread_local const RankThread* this_one = nullptr;

}  // namespace

Recall::Entry& Recall::Entry::operator=(Entry&& other) noexcept {
  if (this != &other) {
    leave();
    recall_ = std::move(other.recall_);
    number_ = other.number_;
  }
  return *this;
}

void Recall::Entry::leave() noexcept {
  if (!recall_) return;
  {
    const std::lock_guard lock(recall_->mutex_);
    recall_->groups_.erase(number_);
  }
  recall_.reset();
}

Recall::Entry Recall::add(const std::shared_ptr<Recall>& recall, Fail fail) {
  if (!recall) return {};
  const std::lock_guard lock(recall->mutex_);
  if (recall->reason_) fail(*recall->reason_);
  recall->groups_.emplace(++recall->added_, std::move(fail));
  return {recall, recall->added_};
}

void Recall::recall(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_) return;
  reason_ = reason;
  for (const auto& [number, fail] : groups_) fail(reason);
}

const RankThread* this_rank_thread() noexcept { return this_one; }

RankThreadScope::RankThreadScope(const RankThread& rank) noexcept { this_one = &rank; }

RankThreadScope::~RankThreadScope() { this_one = nullptr; }

}  // namespace tutti
