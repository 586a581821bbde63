#include "plugins/gloo/messages.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/signals.h"
#include "plugins/gloo/sigpipe.h"
#include "plugins/gloo/slots.h"

namespace tutti::gloo_backend {

using Clock = Deadline::Clock;

class Messages::Transfer final : public WorkState, public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(Messages& messages, Request request)
      : WorkState(std::move(request)), messages_(messages) {}

  void post() {
    const Request& message = request();
    messages_.mesh_.run(message, [&] {
      const std::size_t byte_count = message.count * size_of(message.dtype);
      if (byte_count == 0) return;
      void* const data = is_send() ? const_cast<void*>(message.input.data) : message.output.data;
      buffer_ = messages_.mesh_.context()->createUnboundBuffer(data, byte_count);
      if (is_send()) {
        buffer_->send(message.message.peer, slot_of_message(message));
      } else {
        buffer_->recv(message.message.peer, slot_of_message(message));
      }
    });
    begin();
    if (!buffer_) end();
  }

  /// Waits for its end, in this thread; called once.
  void wait_out() noexcept {
    std::optional<Error> failure;
    try {
      const std::chrono::milliseconds stall = stall_of(request());
      is_send() ? messages_.mesh_.wait_for_send(*buffer_, stall)
                : messages_.mesh_.wait_for_recv(*buffer_, stall);
    } catch (const std::exception& thrown) {
      failure = messages_.mesh_.explain(request(), thrown);
    }
    const std::lock_guard lock(mutex_);
    failure ? end(*failure) : end();
    ended_.notify_all();
  }

  bool help(Clock::time_point until) override {
    if (done()) return true;
    if (!taken_.exchange(true)) {
      if (until == Clock::time_point::max()) {
        wait_out();
        return true;
      }
      messages_.hand_over(shared_from_this());
    }
    std::unique_lock lock(mutex_);
    return ended_.wait_until(lock, until, [this] { return done(); });
  }

 private:
  bool is_send() const noexcept { return request().op == Op::send; }

  Messages& messages_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;  // null: without content
  std::atomic<bool> taken_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
};

Messages::~Messages() {
  bool pending;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    pending = !transfers_.empty();
  }
  if (pending) mesh_.fail({ErrorCode::kClosed, "the group was destroyed", {}, {}});
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work Messages::start(Request request) {
  auto transfer = std::make_shared<Transfer>(*this, std::move(request));
  transfer->post();
  return Work(std::move(transfer));
}

void Messages::hand_over(std::shared_ptr<Transfer> transfer) {
  const std::lock_guard lock(mutex_);
  transfers_.push_back(std::move(transfer));
  changed_.notify_all();
  if (thread_.joinable()) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { wait_out(); });
}

void Messages::wait_out() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || !transfers_.empty(); });
    if (transfers_.empty()) return;
    const std::shared_ptr<Transfer> transfer = transfers_.front();
    lock.unlock();
    transfer->wait_out();
    lock.lock();
    transfers_.pop_front();  // only now: whoever destroys this sees what is under way
  }
}

}  // namespace tutti::gloo_backend
