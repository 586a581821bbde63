#include "tutti/work.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/log.h"
#include "control/callers.h"
#include "control/membership.h"
#include "control/process.h"
#include "control/program_wait.h"
#include "control/untold.h"
#include "group/callback.h"
#include "tutti/backend.h"
#include "tutti/observer.h"

namespace tutti {

WorkState::~WorkState() = default;

std::optional<Error> WorkState::error() const { return done() ? failure_ : std::nullopt; }

void WorkState::begin() noexcept {
  if (request_.observer != nullptr) request_.observer->entered(request_);
}

void WorkState::finish(std::optional<Error> failure) noexcept {
  failure_ = std::move(failure);
  if (request_.observer != nullptr) {
    request_.observer->left(request_, failure_ ? &*failure_ : nullptr);
  }
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(callbacks_mutex_);
    done_.store(true, std::memory_order_seq_cst);
    due.swap(callbacks_);
  }
  for (const auto& callback : due) callback();
}

void WorkState::when_done(std::function<void()> callback) {
  {
    const std::lock_guard lock(callbacks_mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

using Clock = Deadline::Clock;

namespace {

/// The program gets `failure`, of `state`.
void tell(WorkState& state, const Error& failure) noexcept {
  state.mark_seen();
  control::Untold::of_process().told(state.request().group, failure.context().rank, failure.code());
}

}  // namespace

namespace {

/// For the destructor: until the operation has ended. What unwinds past it is not seen meanwhile,
/// and the operation may have to wait for a call that this rank does not come to.
void wait_dropped(WorkState& state) {
  constexpr std::chrono::milliseconds kSoon{500};
  const bool unwinds = std::uncaught_exceptions() > 0;
  if (unwinds && !state.help(Clock::now() + kSoon)) {
    log(LogLevel::warn,
        fmt::format("an exception unwinds past a Work, whose destructor waits for {}: catch it "
                    "inside, or abort the group first",
                    group::place_of(state.request())));
  }
  state.help(Clock::time_point::max());
}

}  // namespace

Work::Work() noexcept = default;
Work::Work(std::shared_ptr<WorkState> state) noexcept : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  Work old = std::move(*this);  // waits, like the destructor it is
  state_ = std::move(other.state_);
  return *this;
}

Work::~Work() {
  if (!state_) return;
  if (control::Process::forked()) {  // who would end the operation is in the parent
    (void)new (std::nothrow) std::shared_ptr<WorkState>(std::move(state_));
    return;
  }
  try {
    if (state_->in_order()) return;  // what its stream is given next comes after it
    if (!state_->done() && group::inside_callback()) {
      log(LogLevel::warn, "a Work was dropped inside a callback while its operation was under way");
      return;
    }
    if (!state_->done()) wait_dropped(*state_);
    const std::optional<Error> failure = state_->error();
    if (failure && !state_->seen()) {
      log(LogLevel::warn, fmt::format("nobody waited for a Work that failed: {}", failure->what()));
    }
  } catch (const std::exception& caught) {
    log(LogLevel::error, fmt::format("waiting in the destructor of a Work: {}", caught.what()));
  }
}

void Work::wait() { wait_for(std::chrono::nanoseconds::max()); }

void Work::wait_host() {
  if (!state_) return;
  if (!state_->done()) {
    control::Process::refuse_in_child();
    group::refuse_in_callback({.op = "Work::wait_host"});
    state_->help(Clock::time_point::max());
  }
  throw_failure();
}

void Work::throw_failure() const {
  const std::optional<Error> failure = state_->error();
  if (!failure) return;
  tell(*state_, *failure);
  throw *failure;
}

bool Work::wait_for(std::chrono::nanoseconds duration) {
  if (!state_) return true;
  if (!state_->done()) {
    control::Process::refuse_in_child();
    group::refuse_in_callback({.op = "Work::wait"});
    if (!state_->help_in_order(Deadline::after(duration).end(Clock::now()))) return false;
  }
  throw_failure();
  state_->mark_in_order();
  return true;
}

bool Work::done() const noexcept { return !state_ || state_->done(); }

std::optional<Error> Work::error() const {
  if (!state_) return std::nullopt;
  std::optional<Error> failure = state_->error();
  if (failure) tell(*state_, *failure);
  return failure;
}

bool Work::cancel() {
  if (!state_ || state_->done()) return false;
  control::Process::refuse_in_child();
  group::refuse_in_callback({.op = "Work::cancel"});  // which may hold what it would wait for
  if (!state_->cancel()) return false;
  state_->mark_seen();
  return true;
}

void Work::detach() && noexcept { state_.reset(); }

Work Work::then(std::function<void(const Error* failure)> callback) && {
  auto told = [state = state_, callback = std::move(callback)](const Error* failure) {
    if (failure != nullptr) tell(*state, *failure);
    callback(failure);
  };
  using group::Callback;
  return Work(Callback::make(std::move(state_), std::move(told), Callback::Of::program));
}

Work group::continue_with(Work work, std::function<void(const Error* failure)> callback) {
  return Work(Callback::make(std::move(work.state_), std::move(callback), Callback::Of::library));
}

namespace {

template <class Works>
void wait_for_each(const Works& works) {
  std::optional<Error> first;
  for (Work& work : works) {
    try {
      work.wait();
    } catch (const Error& failure) {
      if (!first) first = failure;
    }
  }
  if (first) throw *first;
}

}  // namespace

void wait_all(std::span<Work> works) { wait_for_each(works); }
void wait_all(std::initializer_list<std::reference_wrapper<Work>> works) { wait_for_each(works); }

namespace {

/// What the others see of a wait_any that lasts.
class ShownAny {
 public:
  /// `works` stay where they are, and are under way.
  explicit ShownAny(std::vector<WorkState*> works) : works_(std::move(works)) {}

  void look(Clock::time_point now) {
    if (now < next_) return;
    next_ = now + kLook;
    std::vector<control::WaitPart> parts;
    const control::Membership* membership = nullptr;
    for (WorkState* const work : works_) {
      control::ProgramAwaits* const awaits = awaits_of(work);
      if (awaits == nullptr) return;  // of a plugin
      if (membership == nullptr) membership = &awaits->membership();
      if (!membership->note_caller()) return;
      std::optional<control::WaitPart> part;
      if (!awaits->look(&part)) return;
      if (!part || !membership->is_in_world_of(awaits->membership())) {
        parts.clear();
        break;
      }
      parts.push_back(*std::move(part));
    }
    shown_.look(*membership, parts, now);
  }

 private:
  static constexpr std::chrono::milliseconds kLook{50};

  static control::ProgramAwaits* awaits_of(WorkState* work) {
    return dynamic_cast<control::ProgramAwaits*>(group::operation_behind(work));
  }

  const std::vector<WorkState*> works_;
  control::ProgramWait shown_;
  Clock::time_point next_ = {};
};

}  // namespace

std::size_t wait_any(std::span<Work> works) {
  if (works.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "wait_any: there is no Work to wait for");
  }
  if (std::none_of(works.begin(), works.end(), [](const Work& work) { return work.done(); })) {
    control::Process::refuse_in_child();
    group::refuse_in_callback({.op = "wait_any"});
  }
  // They may belong to several groups, each driven by whoever waits for it: a little of each in
  // turn.
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(1);
  std::chrono::nanoseconds slice = std::chrono::microseconds(20);
  std::optional<ShownAny> shown;
  for (;;) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      if (works[i].done() || works[i].state_->help(Clock::now() + slice)) return i;
    }
    if (slice < kLongest) {
      slice = std::min(slice * 2, kLongest);
      continue;
    }
    if (!shown) {
      std::vector<WorkState*> states;
      for (const Work& work : works) states.push_back(work.state_.get());
      shown.emplace(std::move(states));
    }
    shown->look(Clock::now());
  }
}

}  // namespace tutti
