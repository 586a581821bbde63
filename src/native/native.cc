#include "native/native.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "base/legality.h"
#include "base/memory_reserve.h"
#include "base/pages.h"
#include "group/check.h"
#include "group/native_spec.h"
#include "group/under_way.h"
#include "native/helping.h"
#include "native/messages.h"
#include "native/neighbours.h"
#include "native/queue.h"
#include "tutti/version.h"

namespace tutti::native {

namespace {

using Clock = Deadline::Clock;

/// One asynchronous send or recv. Keeps itself alive while it is under way.
class MessageWork final : public WorkState, private Transfer, public control::ProgramAwaits {
 public:
  static std::shared_ptr<MessageWork> start(Messages& messages, control::Membership& membership,
                                            Request request, group::Match* match) {
    auto work = std::make_shared<MessageWork>(messages, membership, std::move(request), match);
    work->self_ = work;
    membership.enter(work->request());
    work->begin();
    messages.submit(*work);
    return work;
  }
  MessageWork(Messages& messages, control::Membership& membership, Request request,
              group::Match* match)
      : WorkState(std::move(request)),
        Transfer(messages, WorkState::request(), match),
        messages_(messages),
        membership_(membership) {
    if (is_matched_only()) mark_seen();  // the operation that it is part of tells of a failure
  }

  bool help(Clock::time_point until) override {
    return native::help(
        messages_, membership_, until, [this] { return done(); }, this);
  }
  bool cancel() override {
    const Request& request = WorkState::request();
    return messages_.cancel(*this,
                            group::make_error(ErrorCode::kCancelled, request, membership_.self(),
                                              "taken back by Work::cancel"));
  }

 private:
  bool is_asynchronous() const noexcept override { return true; }
  void on_end() noexcept override {
    const std::shared_ptr<MessageWork> self = std::move(self_);
    leave();
    set_ended();
    end();
  }
  void on_failure(const Error& error) noexcept override {
    const std::shared_ptr<MessageWork> self = std::move(self_);
    leave();
    set_ended();
    std::optional<Error> failure;
    until_done([&] { failure = error; });
    end(*std::move(failure));
  }

  const control::Membership& membership() const noexcept override { return membership_; }
  bool look(std::optional<control::WaitPart>* part) override {
    if (!messages_.drive()) return false;
    if (!done() && !matched()) *part = membership_.awaits(WorkState::request(), false);
    return true;
  }

  void leave() const noexcept {
    if (!is_matched_only()) membership_.leave(WorkState::request());
  }

  Messages& messages_;
  control::Membership& membership_;
  std::shared_ptr<MessageWork> self_;
};

/// Whether connections begin with a proof that the peer knows the job's secret.
bool is_authenticated(const GroupSpec& spec) {
  const auto level = spec.settings.find("security");
  return level != spec.settings.end() && (level->second == "auth" || level->second == "integrity");
}

class Native final : public Backend, private control::Driver {
 public:
  explicit Native(const GroupSpec& spec)
      : membership_(group::membership_of(spec)),
        neighbours_(static_cast<const group::NativeSpec&>(spec)),
        collective_channels_(neighbours_.channels(Lane::collective)),
        message_channels_(neighbours_.channels(Lane::message)),
        collectives_(neighbours_.arena_of_all(), neighbours_.hosts(), make_table(spec.settings),
                     collective_channels_, membership_),
        queue_(collectives_, membership_, collective_channels_.alarm()),
        messages_(message_channels_, membership_),
        is_secure_(neighbours_.links() == nullptr || is_authenticated(spec)) {
    if (neighbours_.links() != nullptr) ensure_driver();
  }

  ~Native() override {
    if (has_driver_) membership_.remove_driver(*this);
    if (!is_busy()) return;
    membership_.fail(group::destroyed_too_early(membership_.rank()));
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
    is_message(request.op) ? run_message(request, nullptr) : run_collective(request, request);
  }
  Work start(Request request) override {
    return is_message(request.op) ? start_message(std::move(request), nullptr)
                                  : start_collective(std::move(request), std::nullopt);
  }

  // For a side group too: see Queue and Transfer.
  void run_collective(const Request& request, const Request& moved) {
    queue_.run(request, moved);
    if (has_driver_.load(std::memory_order_relaxed)) wake_if_pending();
  }
  Work start_collective(Request request, std::optional<Request> moved) {
    ensure_driver();
    Work work = queue_.start(std::move(request), std::move(moved));
    wake_if_pending();
    return work;
  }
  void run_message(const Request& request, group::Match* match) {
    note_use();
    try {
      messages_.run(request, match);
    } catch (const Error&) {
      note_use();
      drive_owed();
      throw;
    }
    note_use();
    if (!drive_owed()) membership_.throw_cause(request);
  }
  Work start_message(Request request, group::Match* match) {
    ensure_driver();
    Work work(MessageWork::start(messages_, membership_, std::move(request), match));
    wake_if_pending();
    return work;
  }

  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override { return make_native(spec); }

  Memory allocate(std::size_t byte_count) override {
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

  void abort(const Cause& cause) noexcept override {
    until_done([&] { membership_.fail(cause); });
  }

  void close(Deadline deadline) override {
    const Clock::time_point until = deadline.end(Clock::now());
    queue_.drain(until);
    help(messages_, membership_, until, [this] { return messages_.pending() == 0; });
    const std::size_t pending = queue_.pending() + messages_.pending();
    if (pending > 0) throw group::still_under_way(membership_.rank(), pending);
    messages_.set_closing();
    if (neighbours_.links() != nullptr) membership_.wake_driver();
  }

  BackendInfo info() const override {
    return {.name = "native",
            .version = build_info().version,
            .checks_itself = true,
            .secure = is_secure_};
  }

 private:
  /// How long the program has not used messages when the progress thread begins to listen, and how
  /// often it looks for connections that others have made: they ring the bell of those who wait.
  static constexpr std::chrono::milliseconds kQuiet{5};
  static constexpr std::chrono::milliseconds kLookForConnections{100};

  bool is_busy() const noexcept { return queue_.pending() > 0 || messages_.pending() > 0; }
  void ensure_driver() {
    if (has_driver_.load()) return;
    const std::lock_guard lock(driver_mutex_);
    if (has_driver_.load()) return;
    membership_.add_driver(*this);
    has_driver_.store(true);
  }
  /// After a message: what peers are still to get goes on without it. False: there is no thread
  /// for that, and the group has failed.
  bool drive_owed() noexcept {
    try {
      if (messages_.owes()) ensure_driver();
    } catch (const std::exception&) {
      membership_.fail_with_thrown();
      return false;
    }
    if (has_driver_.load(std::memory_order_relaxed)) wake_if_pending();
    return true;
  }
  void wake_if_pending() noexcept {
    if (is_busy() || messages_.has_come_to_owe()) membership_.wake_driver();
  }

  bool is_under_way() const noexcept { return is_busy() || messages_.owes(); }

  Step step() noexcept override {
    TcpLinks* const links = neighbours_.links();
    const bool was_under_way = is_under_way();  // others may end it meanwhile
    if (!was_under_way && links == nullptr) return Step::idle;
    due_ = Clock::time_point::max();
    if (membership_.abort_word().load() != 0) {
      queue_.fail_pending();
      messages_.fail_pending();
      return Step::idle;
    }
    if (!was_under_way) {
      listen(*links);
    } else {
      queue_.drive();
      if (links != nullptr || messages_.pending() > 0 || messages_.owes()) messages_.drive();
      if (links != nullptr) due_ = Clock::now() + kQuiet;  // to listen, if that was all
    }
    if (links != nullptr && links->has_ends()) links->look_at_ends(Clock::now(), &due_);
    return is_under_way() ? Step::waiting : Step::idle;
  }

  /// With links: while the program neither sends nor receives what comes is read all the same. One
  /// that does reads by itself, and so does this thread now and then.
  void listen(TcpLinks& links) noexcept {
    const std::uint64_t uses = uses_.load();
    if (std::exchange(seen_uses_, uses) != uses) {
      links.stop_listening();
      due_ = Clock::now() + kQuiet;
      return;
    }
    links.start_listening();
    bool has_read = false;
    do {
      has_read = messages_.drive();
    } while (has_read && message_channels_.alarm()->arm());
    if (!has_read) due_ = Clock::now() + kQuiet;
    if (has_read && links.awaits_connections()) due_ = Clock::now() + kLookForConnections;
  }
  void note_use() noexcept {
    TcpLinks* const links = neighbours_.links();
    if (links == nullptr) return;
    uses_.fetch_add(1);
    if (links->stop_listening()) membership_.wake_driver();
  }

  bool arm() noexcept override {
    TcpLinks* const links = neighbours_.links();
    if (links == nullptr) return false;
    const bool has_armed = links->arm_late(Lane::collective);
    return links->arm_late(Lane::message) || has_armed;
  }
  Clock::time_point due() const noexcept override { return due_; }

  void ask(Clock::time_point now, Clock::time_point* next) noexcept override {
    queue_.ask(now, next);
    messages_.ask(now, next);
    if (!is_under_way()) *next = std::min(*next, due_);
  }

  control::Membership& membership_;
  Neighbours neighbours_;
  Channels collective_channels_, message_channels_;
  Collectives collectives_;
  Queue queue_;
  Messages messages_;
  const bool is_secure_;
  std::mutex driver_mutex_;
  std::atomic<bool> has_driver_{false};
  std::atomic<std::uint64_t> uses_{0};  // of messages by the program; where there are links
  // By the progress thread:
  std::uint64_t seen_uses_ = 0;
  Clock::time_point due_ = Clock::time_point::max();
};

/// What native does beside another backend.
class NativeSide final : public group::Side {
 public:
  explicit NativeSide(std::unique_ptr<Native> native)
      : owned_(std::move(native)), native_(*owned_) {}
  explicit NativeSide(Native& native) : native_(native) {}

  void meet(const Request& collective, const group::Exchange& exchange) override {
    native_.run_collective(collective, meeting(collective, exchange));
  }
  Work start_meet(const Request& collective, const group::Exchange& exchange) override {
    return native_.start_collective(unwatched(collective), meeting(collective, exchange));
  }
  void match(const Request& message, group::Match& match) override {
    native_.run_message(message, &match);
  }
  Work start_match(const Request& message, group::Match& match) override {
    return native_.start_message(unwatched(message), &match);
  }
  std::unique_ptr<Side> make_group(const GroupSpec& spec) override { return make_side(spec); }
  void abort(const Cause& cause) noexcept override { native_.abort(cause); }
  void close(Deadline deadline) override { native_.close(deadline); }

 private:
  /// What the ranks do in order to meet in `collective`.
  static Request meeting(const Request& collective, const group::Exchange& exchange) {
    Request moved;
    moved.op = exchange.own.empty() ? Op::barrier : Op::all_gather;
    moved.group = collective.group;
    moved.seq = collective.seq;
    moved.chain = collective.chain;
    moved.arrive = collective.arrive;
    moved.stall = collective.stall;
    if (exchange.own.empty()) return moved;
    moved.dtype = DType::u64;
    moved.count = exchange.own.size();
    moved.input = exchange.own;
    moved.output = exchange.all;
    return moved;
  }
  /// Its observer is told of what follows.
  static Request unwatched(Request request) {
    request.observer = nullptr;
    return request;
  }

  const std::unique_ptr<Native> owned_;  // null: it is a backend of the group, too
  Native& native_;
};

}  // namespace

std::unique_ptr<Backend> make_native(const GroupSpec& spec) {
  return std::make_unique<Native>(spec);
}

std::unique_ptr<group::Side> make_side(const GroupSpec& spec) {
  return std::make_unique<NativeSide>(std::make_unique<Native>(spec));
}

std::unique_ptr<group::Side> make_side_of(Backend& native) {
  return std::make_unique<NativeSide>(dynamic_cast<Native&>(native));
}

}  // namespace tutti::native
