#include "native/native.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "base/legality.h"
#include "group/check.h"
#include "native/helping.h"
#include "native/messages.h"
#include "native/queue.h"
#include "tutti/version.h"

namespace tutti::native {

namespace {

using Clock = Deadline::Clock;

/// One asynchronous send or recv. Keeps itself alive while it is under way.
class MessageWork final : public WorkState, private Transfer {
 public:
  static std::shared_ptr<MessageWork> start(Messages& messages, control::Membership& membership,
                                            Request request) {
    auto work = std::make_shared<MessageWork>(messages, membership, std::move(request));
    work->self_ = work;
    membership.enter(work->request());
    work->begin();
    messages.submit(*work);
    return work;
  }
  MessageWork(Messages& messages, control::Membership& membership, Request request)
      : WorkState(std::move(request)),
        Transfer(messages, WorkState::request()),
        messages_(messages),
        membership_(membership) {}

  bool help(Clock::time_point until) override {
    return native::help(messages_, membership_, until, [this] { return done(); });
  }
  bool cancel() override {
    const Request& request = WorkState::request();
    return messages_.cancel(*this,
                            group::make_error(ErrorCode::kCancelled, request, membership_.rank(),
                                              "taken back by Work::cancel"));
  }

 private:
  bool is_asynchronous() const noexcept override { return true; }
  void on_end() noexcept override {
    const std::shared_ptr<MessageWork> self = std::move(self_);
    membership_.leave(WorkState::request());
    set_ended();
    end();
  }
  void on_failure(const Error& error) noexcept override {
    const std::shared_ptr<MessageWork> self = std::move(self_);
    membership_.leave(WorkState::request());
    set_ended();
    end(error);
  }

  Messages& messages_;
  control::Membership& membership_;
  std::shared_ptr<MessageWork> self_;
};

class Native final : public Backend, private control::Driver {
 public:
  explicit Native(const GroupSpec& spec)
      : membership_(*spec.membership),
        arena_(spec.world_ranks.size() > 1 ? Arena::make(spec) : nullptr),
        collective_channels_(arena_.get(), Lane::collective),
        message_channels_(arena_.get(), Lane::message),
        collectives_(arena_.get(), collective_channels_, membership_),
        queue_(collectives_, membership_),
        messages_(message_channels_, membership_) {}

  ~Native() override {
    if (has_driver_) membership_.remove_driver(*this);
    if (!is_busy()) return;
    membership_.fail({ErrorCode::kAborted,
                      fmt::format("rank {} destroyed the group while asynchronous operations were "
                                  "under way; close it first",
                                  membership_.rank()),
                      {membership_.rank()},
                      {}});
    queue_.fail_pending();
    messages_.fail_pending();
  }

  Support supports(const OpKey& key) const override {
    if (key.device != Device::Kind::cpu) {
      return {false, "native moves CPU memory only; copy the data to the CPU first"};
    }
    const std::string_view why = why_illegal(key.op, key.dtype, key.reduce);
    if (!why.empty()) {
      return {false, std::string(why)};
    }
    return {};
  }

  void run(const Request& request) override {
    is_message(request.op) ? run_message(request) : queue_.run(request);
    if (has_driver_.load(std::memory_order_relaxed)) wake_if_pending();
  }

  Work start(Request request) override {
    ensure_driver();
    Work work = is_message(request.op)
                    ? Work(MessageWork::start(messages_, membership_, std::move(request)))
                    : queue_.start(std::move(request));
    wake_if_pending();
    return work;
  }

  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override { return make_native(spec); }

  Memory allocate(std::size_t byte_count) override {
    constexpr std::size_t kPageBytes = 4096;
    const std::size_t mapped =
        (std::max<std::size_t>(byte_count, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* data = mapped < byte_count ? MAP_FAILED
                                     : mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      const int reason = mapped < byte_count ? ENOMEM : errno;
      throw Error(ErrorCode::kSystem,
                  fmt::format("allocate: no memory for {} bytes: {}", byte_count,
                              std::generic_category().message(reason)));
    }
    return {std::shared_ptr<void>(data, [mapped](void* at) { munmap(at, mapped); }), byte_count};
  }

  void abort(const Cause& cause) noexcept override { membership_.fail(cause); }

  void close(Deadline deadline) override {
    const Clock::time_point now = Clock::now();
    const std::chrono::nanoseconds left = deadline.left(now);
    const bool forever = left == std::chrono::nanoseconds::max();
    const Clock::time_point until = forever ? Clock::time_point::max() : now + left;
    queue_.drain(until);
    help(messages_, membership_, until, [this] { return messages_.pending() == 0; });
    const std::size_t pending = queue_.pending() + messages_.pending();
    if (pending > 0) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("close (rank {}): {} asynchronous operations are still under way; "
                              "wait for them before closing, or give a later deadline",
                              membership_.rank(), pending));
    }
  }

  BackendInfo info() const override {
    return {
        .name = "native", .version = build_info().version, .checks_itself = true, .secure = true};
  }

 private:
  bool is_busy() const noexcept { return queue_.pending() > 0 || messages_.pending() > 0; }
  void ensure_driver() {
    if (has_driver_.load()) return;
    const std::lock_guard lock(driver_mutex_);
    if (has_driver_.load()) return;
    membership_.add_driver(*this);
    has_driver_.store(true);
  }
  void run_message(const Request& request) {
    try {
      messages_.run(request);
    } catch (const Error&) {
      try {
        if (messages_.has_untold()) ensure_driver();
      } catch (const Error&) {  // no thread: the next call tells
      }
      wake_if_pending();
      throw;
    }
  }
  void wake_if_pending() noexcept {
    if (is_busy() || messages_.has_untold()) membership_.wake_driver();
  }

  Step step() noexcept override {
    if (!is_busy() && !messages_.has_untold()) return Step::idle;
    if (membership_.abort_word().load() != 0) {
      queue_.fail_pending();
      messages_.fail_pending();
      return Step::idle;
    }
    queue_.drive();
    if (messages_.pending() > 0 || messages_.has_untold()) messages_.drive();
    return is_busy() || messages_.has_untold() ? Step::waiting : Step::idle;
  }

  void ask(Clock::time_point now, Clock::time_point* next) noexcept override {
    queue_.ask(now, next);
    messages_.ask(now, next);
  }

  control::Membership& membership_;
  const std::unique_ptr<Arena> arena_;  // null in a group of one
  Channels collective_channels_, message_channels_;
  Collectives collectives_;
  Queue queue_;
  Messages messages_;
  std::mutex driver_mutex_;
  std::atomic<bool> has_driver_{false};
};

}  // namespace

std::unique_ptr<Backend> make_native(const GroupSpec& spec) {
  return std::make_unique<Native>(spec);
}

}  // namespace tutti::native
