#include "native/queue.h"

#include <algorithm>
#include <utility>

#include "base/memory_reserve.h"
#include "native/helping.h"

namespace tutti::native {

using Clock = Deadline::Clock;

/// One asynchronous collective.
class Queue::Entry final : public WorkState, public control::ProgramAwaits {
 public:
  Entry(Queue& queue, Request request, std::optional<Request> moved)
      : WorkState(std::move(request)), queue_(queue), moved_(std::move(moved)) {
    if (moved_) mark_seen();  // the operation that it is part of tells of a failure
  }
  const Request& moved() const noexcept { return moved_ ? *moved_ : request(); }
  bool has_own_timeout() const noexcept { return request().has_own_timeout; }
  /// On the board, unless the request goes on elsewhere.
  void leave() const noexcept {
    if (!moved_) queue_.membership_.leave(request());
  }
  bool help(Clock::time_point until) override {
    return native::help(
        queue_, queue_.membership_, until, [this] { return done(); }, this);
  }
  control::WaitClock clock;

 private:
  const control::Membership& membership() const noexcept override { return queue_.membership_; }
  bool look(std::optional<control::WaitPart>* part) override {
    return queue_.look(request(), moved(), part);
  }

  Queue& queue_;
  const std::optional<Request> moved_;
};

/// A blocking call that awaits its turn.
class Queue::Call final : public control::ProgramAwaits {
 public:
  Call(Queue& queue, const Request& request, const Request& moved) noexcept
      : queue_(queue), request_(request), moved_(moved) {}
  const control::Membership& membership() const noexcept override { return queue_.membership_; }
  bool look(std::optional<control::WaitPart>* part) override {
    return queue_.look(request_, moved_, part);
  }

 private:
  Queue& queue_;
  const Request& request_;
  const Request& moved_;
};

Queue::~Queue() { token_.take(); }  // nobody is inside any more

void Queue::run(const Request& request, const Request& moved) {
  if (pending() > 0) {
    membership_.queue(request);
    Call call(*this, request, moved);
    if (!drain(Clock::time_point::max(), &call)) membership_.throw_cause(request);
  }
  membership_.enter(request);
  run_blocking(collectives_.begin(moved, request), request, moved, membership_, waiter_);
  if (&moved == &request) membership_.leave(request);
}

Work Queue::start(Request request, std::optional<Request> moved) {
  auto entry = std::make_shared<Entry>(*this, std::move(request), std::move(moved));
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    with_own_timeout_.fetch_add(entry->has_own_timeout() ? 1 : 0);
    pending_.fetch_add(1);
  }
  drive();
  return Work(std::move(entry));
}

bool Queue::drive() noexcept {
  if (pending() == 0) return true;
  if (!token_.try_take()) return false;
  try {
    while (membership_.abort_word().load() == 0 && begin_head() && operation_->step()) {
      head_->leave();
      end_head(std::nullopt);
    }
  } catch (const std::exception&) {
    membership_.fail_with_thrown();
  }
  give_token();
  return true;
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
  with_own_timeout_.fetch_sub(entry->has_own_timeout() ? 1 : 0);
  pending_.fetch_sub(1);  // from here on a blocking call may use the Collectives
  if (failure) {
    entry->end(*std::move(failure));
  } else {
    entry->end();
  }
}

/// What a thread awaits that waits for `request`, carried out by `moved`, or for its turn.
bool Queue::look(const Request& request, const Request& moved,
                 std::optional<control::WaitPart>* part) {
  if (!drive()) return false;
  // What is ahead of it may end by a time of its own.
  if (with_own_timeout_.load() == 0)
    *part = membership_.awaits(request, control::needs_all(moved, membership_.rank()));
  return true;
}

void Queue::ask(Clock::time_point now, Clock::time_point* next) noexcept {
  if (pending() == 0) return;
  if (!token_.try_take()) {
    *next = std::min(*next, now + std::chrono::milliseconds(1));
    return;
  }
  if (head_ != nullptr) {
    auto wanted = Clock::time_point::max();
    try {
      membership_.ask(head_->request(), operation_->awaited(), head_->clock, now, &wanted);
    } catch (const std::exception&) {
      membership_.fail_with_thrown();
    }
    *next = std::min(*next, wanted);
  }
  give_token();
}

void Queue::fail_pending() noexcept {
  token_.take();
  while (pending() > 0) {
    if (head_ == nullptr) {
      const std::lock_guard lock(mutex_);
      head_ = entries_.front();
    }
    std::optional<Error> failure;
    until_done([&] { failure = membership_.error(&head_->request()); });
    end_head(std::move(failure));
  }
  give_token();
}

bool Queue::drain(Clock::time_point until, control::ProgramAwaits* awaits) {
  const bool empty = help(
      *this, membership_, until, [this] { return pending() == 0; }, awaits);
  return empty && membership_.abort_word().load() == 0;
}

void Queue::give_token() noexcept {
  const bool wake = std::exchange(ended_, false);
  const bool refused = token_.give();
  if (wake) crowd_.wake_done();
  if (wake || refused) membership_.notify(membership_.rank());
}

}  // namespace tutti::native
