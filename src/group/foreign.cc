#include "group/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/inside_call.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "group/through_aborts.h"
#include "group/under_way.h"

namespace tutti::group {

Side::~Side() = default;

namespace {

using Clock = Deadline::Clock;

/// How long the thread tests one message before it looks at the others.
constexpr std::chrono::microseconds kTest{20};

/// How often it is said that a backend does not end what it was told to abort.
constexpr std::chrono::seconds kSayAgain{30};

/// A message on its way: how it was matched on the side, and what is left to do.
class Matched {
 public:
  /// `request` must outlive it.
  explicit Matched(const Request& request) : request_(request) {}
  Matched(const Matched&) = delete;
  Matched& operator=(const Matched&) = delete;

  Match& match() noexcept { return match_; }
  bool has_moved() const noexcept { return match_.moved; }
  /// What the backend is to move.
  Request real() const {
    Request real = request_;
    real.observer = nullptr;
    real.count = match_.count;
    real.message = {.peer = match_.rank, .tag = request_.message.tag, .number = match_.number};
    if (real.op == Op::recv) {
      real.output.data = match_.data;
      real.output.count = match_.count;
    }
    return real;
  }
  void tell_caller() const noexcept {
    const Request::Message& message = request_.message;
    if (message.matched == nullptr) return;
    *message.matched = {match_.rank, message.tag, request_.dtype, match_.count};
  }

 private:
  const Request& request_;
  Match match_;
};

}  // namespace

/// What precedes a collective on the side group: nothing but the meeting, or an exchange of the
/// counts that only pairs of ranks have in common. All ranks see all counts, so that all find the
/// same.
class Foreign::Check {
 public:
  /// `request` must outlive it.
  Check(const Request& request, int group_size)
      : request_(request), ranks_(static_cast<std::size_t>(group_size)) {
    const bool by_edge = request.uneven && (request.op == Op::gather || request.op == Op::scatter ||
                                            request.op == Op::all_to_all);
    if (!by_edge) return;
    own_.resize(2 * ranks_);
    all_.resize(2 * ranks_ * ranks_);
    note_edges();
  }
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;

  Exchange exchange() noexcept { return {own_, all_}; }

  /// Fails the group and throws if the two ends of an edge differ.
  void compare(control::Membership& membership) const {
    for (std::size_t from = 0; from < ranks_ && !all_.empty(); ++from) {
      for (std::size_t to = 0; to < ranks_; ++to) {
        if (sent(from, to) == awaited(from, to)) continue;
        membership.fail_counts(request_, static_cast<int>(from), sent(from, to),
                               static_cast<int>(to), awaited(from, to));
        membership.throw_cause(request_);
      }
    }
  }

 private:
  std::uint64_t sent(std::size_t from, std::size_t to) const {
    return all_[2 * ranks_ * from + to];
  }
  std::uint64_t awaited(std::size_t from, std::size_t to) const {
    return all_[2 * ranks_ * to + ranks_ + from];
  }
  /// First what goes to every rank, then what comes from every rank.
  void note_edges() {
    const auto root = static_cast<std::size_t>(std::max(request_.root, 0));
    std::copy(request_.send_counts.begin(), request_.send_counts.end(), own_.begin());
    std::copy(request_.recv_counts.begin(), request_.recv_counts.end(),
              own_.begin() + static_cast<std::ptrdiff_t>(ranks_));
    if (request_.op == Op::gather) own_[root] = request_.input.count;
    if (request_.op == Op::scatter) own_[ranks_ + root] = request_.output.count;
  }

  const Request& request_;
  const std::size_t ranks_;
  std::vector<std::uint64_t> own_, all_;
};

/// One asynchronous operation. The thread *steps* it until it has ended.
class Foreign::Entry : public WorkState, public control::ProgramAwaits {
 public:
  Entry(Foreign& group, Request request) : WorkState(std::move(request)), group_(group) {}
  bool help(Clock::time_point until) override {
    return wait_through_aborts(
        group_.membership_, until, [this] { return done(); }, this);
  }
  /// Does what can be done now; true once it has ended.
  bool step() noexcept {
    try {
      if (!advance()) return false;
      group_.membership_.leave(request());
      end();
    } catch (const Error& failure) {
      end_failed(failure);
    } catch (const std::exception&) {
      group_.membership_.fail_with_thrown();
      end_with_cause();
    }
    return true;
  }
  /// Whether it is in the backend, which wakes nobody.
  virtual bool is_tested() const noexcept { return false; }

 protected:
  virtual bool advance() = 0;
  /// Whether the others can go on without this rank's part in it.
  virtual bool is_private(const Error& failure) const noexcept = 0;
  Foreign& group() const noexcept { return group_; }
  const control::Membership& membership() const noexcept override { return group_.membership_; }

 private:
  void end_failed(const Error& failure) noexcept {
    if (!group_.failed() && is_private(failure)) {
      group_.membership_.leave(request());
      return end_with([&] { return failure; });
    }
    group_.fail(failure, request());
    end_with_cause();
  }
  /// Why, not what the backend made of it.
  void end_with_cause() noexcept {
    end_with([this] { return group_.membership_.error(&request()); });
  }
  template <class Make>
  void end_with(Make&& make) noexcept {
    std::optional<Error> failure;
    until_done([&] { failure = make(); });
    end(*std::move(failure));
  }

  Foreign& group_;
};

class Foreign::Collective final : public Entry {
 public:
  Collective(Foreign& group, Request request)
      : Entry(group, std::move(request)),
        check_(WorkState::request(), group.membership_.group_size()) {}

 private:
  bool advance() override {
    if (group().failed()) group().membership_.throw_cause(request());
    if (!begun_) {
      begun_ = true;
      if (group().check_) {
        side_ = group().side_.start_meet(request(), check_.exchange());
      } else {
        group().membership_.enter(request());
      }
    }
    if (!side_.done()) return false;
    side_.wait();
    check_.compare(group().membership_);
    begin();
    group().backend_.run(request());
    return true;
  }
  bool is_private(const Error&) const noexcept override { return false; }
  bool look(std::optional<control::WaitPart>* part) override {
    if (!done()) *part = group().awaited_in(request());
    return true;
  }

  Check check_;
  bool begun_ = false;
  Work side_;  // last: its end is awaited before what it reads goes
};

class Foreign::Message final : public Entry {
 public:
  /// What is matched on the side is matched; if nothing is, the thread ends this one.
  bool cancel() override {
    if (!side_.cancel()) return false;
    group().thread_.wake();
    return true;
  }
  bool is_tested() const noexcept override { return is_matched_; }
  Message(Foreign& group, Request request)
      : Entry(group, std::move(request)),
        matched_(WorkState::request()),
        side_(group.side_.start_match(WorkState::request(), matched_.match())) {
    begin();
  }

 private:
  bool advance() override {
    if (!side_.done()) return false;
    if (!is_matched_) {
      side_.wait();
      is_matched_ = true;
      if (!matched_.has_moved()) real_ = group().backend_.start(matched_.real());
    }
    if (!real_.wait_for(kTest)) return false;
    matched_.tell_caller();
    return true;
  }
  bool look(std::optional<control::WaitPart>* part) override {
    // Once matched it is the backend's.
    if (!side_.done()) *part = membership().awaits(request(), false);
    return true;
  }
  /// A receive that found nothing.
  bool is_private(const Error&) const noexcept override { return !is_matched_; }

  Matched matched_;
  bool is_matched_ = false;
  Work side_, real_;  // last: their ends are awaited before what they use goes
};

/// A blocking collective that awaits its turn.
class Foreign::Queued final : public control::ProgramAwaits {
 public:
  Queued(Foreign& group, const Request& request) noexcept : group_(group), request_(request) {}
  const control::Membership& membership() const noexcept override { return group_.membership_; }
  bool look(std::optional<control::WaitPart>* part) override {
    *part = group_.awaited_in(request_);
    return true;
  }

 private:
  Foreign& group_;
  const Request& request_;
};

Foreign::Foreign(Backend& backend, Side& side, control::Membership& membership, bool check)
    : backend_(backend),
      side_(side),
      membership_(membership),
      check_(check && membership.group_size() > 1),
      thread_(*membership.waiter().bell) {}

Foreign::~Foreign() {
  if (collectives_pending_.load() + messages_pending_.load() > 0) {
    const Cause cause = destroyed_too_early(membership_.rank());
    membership_.fail(cause);
    backend_.abort(cause);
    wait_for_the_aborted();
  }
  thread_.stop();
}

/// They use memory that goes with this, so there is no giving up; but it is said.
void Foreign::wait_for_the_aborted() noexcept {
  const auto left = [this] { return collectives_pending_.load() + messages_pending_.load(); };
  while (!wait_through_aborts(membership_, Clock::now() + kSayAgain, [&] { return left() == 0; })) {
    log(LogLevel::warn,
        fmt::format("rank {}: {} asynchronous operations do not end, although the backend \"{}\" "
                    "was told to abort them; waiting",
                    membership_.rank(), left(), backend_.info().name));
  }
}

void Foreign::run(const Request& request) {
  const InsideCall inside;
  try {
    is_message(request.op) ? run_message(request) : run_collective(request);
  } catch (const Error&) {
    if (failed()) membership_.throw_cause(request);          // why, not what the backend made of it
    if (is_message(request.op)) membership_.leave(request);  // a receive that found nothing
    throw;
  }
}

void Foreign::run_collective(const Request& request) {
  wait_for_collectives(request);
  if (check_) {
    Check check(request, membership_.group_size());
    side_.meet(request, check.exchange());
    check.compare(membership_);
  } else {
    membership_.enter(request);
  }
  in_backend(request, [&] { backend_.run(request); });
  membership_.leave(request);
}

void Foreign::run_message(const Request& request) {
  Matched matched(request);
  side_.match(request, matched.match());
  if (!matched.has_moved()) {
    const Request real = matched.real();
    in_backend(real, [&] { backend_.start(real).wait(); });
  }
  membership_.leave(request);
  matched.tell_caller();
}

/// The other ranks are inside by now and cannot go on without this one: whatever it throws is the
/// end of the group.
template <class Call>
void Foreign::in_backend(const Request& request, Call&& call) {
  try {
    call();
  } catch (const Error& failure) {
    fail(failure, request);
    throw;
  } catch (const std::exception&) {
    membership_.fail_with_thrown();
    membership_.throw_cause(request);
  }
}

void Foreign::fail(const Error& failure, const Request& request) noexcept {
  if (failed()) return;
  if (failure.code() == ErrorCode::kTimeout) return membership_.fail_stalled(request);
  until_done([&] {
    std::vector<int> culprits = failure.context().culprits;
    if (culprits.empty()) culprits = {membership_.rank()};
    membership_.fail({failure.code(), failure.what(), std::move(culprits), {}});
  });
}

/// Whose programs are awaited by whoever waits for a collective, or for its turn: those that have
/// not called it. Once all have, it is the backend's.
std::optional<control::WaitPart> Foreign::awaited_in(const Request& collective) const {
  if (!check_ || with_own_timeout_.load() > 0) return std::nullopt;
  return membership_.awaits(collective, true);
}

/// Collectives complete in the order of submission.
void Foreign::wait_for_collectives(const Request& request) {
  if (collectives_pending_.load() == 0) return;
  Queued queued(*this, request);
  wait_through_aborts(
      membership_, Clock::time_point::max(), [this] { return collectives_pending_.load() == 0; },
      &queued);
  if (failed()) membership_.throw_cause(request);
}

void Foreign::ensure_thread() {
  if (has_thread_.load()) return;
  const std::lock_guard lock(mutex_);
  if (has_thread_.load()) return;
  thread_.add(*this);
  has_thread_.store(true);
}

Work Foreign::start(Request request) {
  ensure_thread();
  std::shared_ptr<Entry> entry;
  if (is_message(request.op)) {
    auto message = std::make_shared<Message>(*this, std::move(request));
    const std::lock_guard lock(mutex_);
    new_messages_.push_back(message);
    messages_pending_.fetch_add(1);
    entry = std::move(message);
  } else {
    auto collective = std::make_shared<Collective>(*this, std::move(request));
    const std::lock_guard lock(mutex_);
    new_collectives_.push_back(collective);
    with_own_timeout_.fetch_add(collective->request().has_own_timeout ? 1 : 0);
    collectives_pending_.fetch_add(1);
    entry = std::move(collective);
  }
  thread_.wake();
  return Work(std::move(entry));
}

void Foreign::drain(Deadline deadline) {
  const auto pending = [this] { return collectives_pending_.load() + messages_pending_.load(); };
  if (wait_through_aborts(membership_, deadline.end(Clock::now()),
                          [&] { return pending() == 0; })) {
    return;
  }
  throw still_under_way(membership_.rank(), pending());
}

// ---- the thread

control::Driver::Step Foreign::step() noexcept {
  const InsideCall inside;
  {
    const std::lock_guard lock(mutex_);
    collectives_.splice(collectives_.end(), new_collectives_);
    messages_.splice(messages_.end(), new_messages_);
  }
  bool ended = false;
  bool tested = false;
  for (auto message = messages_.begin(); message != messages_.end();) {
    if (!(*message)->step()) {
      tested |= (*message)->is_tested();
      ++message;
      continue;
    }
    message = messages_.erase(message);
    messages_pending_.fetch_sub(1);
    ended = true;
  }
  if (!collectives_.empty() && collectives_.front()->step()) {
    with_own_timeout_.fetch_sub(collectives_.front()->request().has_own_timeout ? 1 : 0);
    collectives_.pop_front();
    collectives_pending_.fetch_sub(1);
    ended = true;
  }
  if (ended) membership_.notify(membership_.rank());
  if (collectives_.empty() && messages_.empty()) return Step::idle;
  return ended || tested ? Step::moved : Step::waiting;
}

/// The side group has deadlines of its own, and so has the backend.
void Foreign::ask(Clock::time_point, Clock::time_point*) noexcept {}

}  // namespace tutti::group
