#include "native/queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "native/helping.h"

namespace tutti::native {

using Clock = Deadline::Clock;

/// One asynchronous collective.
class Queue::Entry final : public WorkState {
 public:
  Entry(Queue& queue, Request request, std::optional<Request> moved)
      : WorkState(std::move(request)), queue_(queue), moved_(std::move(moved)) {
    if (moved_) mark_seen();  // the operation that it is part of tells of a failure
  }
  const Request& moved() const noexcept { return moved_ ? *moved_ : request(); }
  /// On the board, unless the request goes on elsewhere.
  void leave() const noexcept {
    if (!moved_) queue_.membership_.leave(request());
  }
  bool help(Clock::time_point until) override {
    return native::help(queue_, queue_.membership_, until, [this] { return done(); });
  }
  control::WaitClock clock;

 private:
  Queue& queue_;
  const std::optional<Request> moved_;
};

Queue::~Queue() { take_token(); }  // nobody is inside any more

void Queue::run(const Request& request, const Request& moved) {
  if (pending() > 0 && !drain(Clock::time_point::max())) membership_.throw_cause(request);
  membership_.enter(request);
  run_blocking(collectives_.begin(moved, request), request, membership_);
  if (&moved == &request) membership_.leave(request);
}

Work Queue::start(Request request, std::optional<Request> moved) {
  auto entry = std::make_shared<Entry>(*this, std::move(request), std::move(moved));
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    pending_.fetch_add(1);
  }
  drive();
  return Work(std::move(entry));
}

void Queue::drive() noexcept {
  if (pending() == 0 || !token_.try_take()) return;
  try {
    while (membership_.abort_word().load() == 0 && begin_head() && operation_->step()) {
      head_->leave();
      end_head(std::nullopt);
    }
  } catch (const Error& error) {
    membership_.fail({error.code(), error.what(), error.context().culprits, {}});
  } catch (const std::exception& error) {
    membership_.fail({ErrorCode::kSystem, error.what(), {membership_.rank()}, {}});
  }
  give_token();
}

/// Makes sure that the oldest entry is running; false if there is none.
bool Queue::begin_head() {
  if (head_ != nullptr) return true;
  std::shared_ptr<Entry> oldest;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return false;
    oldest = entries_.front();
  }
  membership_.enter(oldest->request());
  oldest->begin();
  operation_ = &collectives_.begin(oldest->moved(), oldest->request());
  head_ = std::move(oldest);
  return true;
}

void Queue::end_head(std::optional<Error> failure) noexcept {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    entry = std::move(entries_.front());
    entries_.pop_front();
  }
  head_.reset();
  operation_ = nullptr;
  ended_ = true;
  pending_.fetch_sub(1);  // from here on a blocking call may use the Collectives
  if (failure) {
    entry->end(*std::move(failure));
  } else {
    entry->end();
  }
}

void Queue::ask(Clock::time_point now, Clock::time_point* next) noexcept {
  if (pending() == 0) return;
  if (!token_.try_take()) {
    *next = std::min(*next, now + std::chrono::milliseconds(1));
    return;
  }
  if (head_ != nullptr) {
    auto wanted = Clock::time_point::max();
    membership_.ask(head_->request(), operation_->awaited(), head_->clock, now, &wanted);
    *next = std::min(*next, wanted);
  }
  give_token();
}

void Queue::fail_pending() noexcept {
  take_token();
  while (pending() > 0) {
    if (head_ == nullptr) {
      const std::lock_guard lock(mutex_);
      head_ = entries_.front();
    }
    end_head(membership_.error(&head_->request()));
  }
  give_token();
}

bool Queue::drain(Clock::time_point until) {
  const bool empty = help(*this, membership_, until, [this] { return pending() == 0; });
  return empty && membership_.abort_word().load() == 0;
}

/// The holder never blocks, so this is short.
void Queue::take_token() noexcept {
  while (!token_.try_take()) std::this_thread::yield();
}

void Queue::give_token() noexcept {
  const bool wake = std::exchange(ended_, false);
  const bool refused = token_.give();
  if (wake) crowd_.wake_done();
  if (wake || refused) membership_.notify(membership_.rank());
}

}  // namespace tutti::native
