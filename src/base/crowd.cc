#include "base/crowd.h"

namespace tutti {

// A bell of somebody who stands by is rung under the mutex: its place cannot go away meanwhile.

Crowd::Place::Place(Crowd& crowd, detail::Look done) noexcept : crowd_(crowd), done_(done) {
  const std::lock_guard lock(crowd_.mutex_);
  if (!crowd_.has_lookout_) {
    crowd_.has_lookout_ = true;
    is_lookout_.store(true);
  } else {
    crowd_.append(*this);
  }
}

Crowd::Place::~Place() {
  const std::lock_guard lock(crowd_.mutex_);
  if (is_lookout_.load()) {
    crowd_.name_lookout();
  } else {
    crowd_.remove(*this);
  }
}

/// The one who has stood by longest; nobody if nobody does.
void Crowd::name_lookout() noexcept {
  Place* const next = first_;
  has_lookout_ = next != nullptr;
  if (next == nullptr) return;
  remove(*next);
  next->is_lookout_.store(true);
  ring(next->own_);
}

void Crowd::append(Place& place) noexcept {
  place.previous_ = last_;
  (last_ != nullptr ? last_->next_ : first_) = &place;
  last_ = &place;
  standing_.fetch_add(1);
}

void Crowd::remove(Place& place) noexcept {
  (place.previous_ != nullptr ? place.previous_->next_ : first_) = place.next_;
  (place.next_ != nullptr ? place.next_->previous_ : last_) = place.previous_;
  standing_.fetch_sub(1);
}

void Crowd::wake_done_slow() noexcept {
  const std::lock_guard lock(mutex_);
  for (Place* place = first_; place != nullptr; place = place->next_) {
    if (place->done_() && !place->is_called_.exchange(true)) ring(place->own_);
  }
}

}  // namespace tutti
