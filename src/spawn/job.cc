#include "spawn/job.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/of_rank.h"
#include "base/rank_list.h"
#include "base/signals.h"
#include "net/process_info.h"
#include "spawn/wording.h"

namespace tutti::spawning {
namespace {

using namespace std::chrono_literals;

/// What a culprit has to end in, where only its victims have ended.
constexpr auto kSettles = 1s;
/// For the kernel to give back a large memory, after SIGKILL.
constexpr auto kGoes = 9s;
constexpr auto kLooksAgain = 1ms;
/// For a keeper whose guard has ended.
constexpr auto kEndsAlone = 400ms;

Job::Clock::time_point after(Job::Clock::time_point now, std::chrono::nanoseconds time) {
  Deadline deadline = Deadline::after(time);
  return deadline.end(now);
}

bool has_run(const Report& report) { return report.stage.load() >= Stage::runs; }

}  // namespace

Job::Job(const JobOptions& options, Function function)
    : options_(options),
      door_(options.world_size, "spawn"),
      reports_(std::make_shared<const Reports>(
          Reports::make(options.world_size, options.call_site, options.callable, options.times))),
      states_(static_cast<std::size_t>(options.world_size)) {
  const RanksOptions ranks{options.world_size, std::move(function), door_.address(), reports_};
  const bool are_threads = options.start == Start::thread;
  // Before one comes to the door: their process is the same, and says nothing.
  for (int rank = 0; are_threads && rank < options.world_size; ++rank) {
    door_.rank_started(rank, ::getpid());
  }
  if (!are_threads) end_signals_.emplace();  // before there is a rank that could be lost
  ranks_ = are_threads ? start_threads(ranks) : start_processes(ranks, options.start);
  // After the fork: from here on this process has threads.
  const SignalsBlocked blocked;
  server_ = std::make_unique<store::Server>(door_.open());
  if (options.start == Start::exec) late_at_ = after(Clock::now(), options.start_timeout);
}

Job::~Job() { server_.reset(); }

bool Job::wait(Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (!changed_.wait(lock, deadline)) return is_over_;
  }
  return true;
}

void Job::end(EndedBy why, std::string text) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_ || ended_by_ != EndedBy::nobody) return;
    ended_by_ = why;
    why_ = std::move(text);
  }
  news_.signal();
}

RankState Job::state_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return of_rank(states_, rank);
}

int Job::running_count() const noexcept {
  return static_cast<int>(std::count_if(states_.begin(), states_.end(),
                                        [](const RankState& rank) { return !rank.wait_status; }));
}

void Job::run() noexcept {
  try {
    while (!is_over_) step();
  } catch (const std::exception& failure) {  // the system refuses, or a bug
    const std::lock_guard lock(mutex_);
    ranks_->force();
    failure_ = Error(ErrorCode::kSystem, fmt::format("spawn at {}: its ranks are not looked after "
                                                     "any more, and are killed: {}",
                                                     options_.call_site, failure.what()));
    ranks_->leave_behind();
    end_signals_.reset();
    is_over_ = true;
    changed_.notify_all();
  }
}

void Job::step() {
  const auto [channel, guard] = ranks_->fds();
  net::Watch watches[] = {
      {.fd = channel, .want_read = true},
      {.fd = guard, .want_read = true},
      {.fd = news_.fd(), .want_read = true},
      {.fd = end_signals_ && !has_heard_signal_ ? end_signals_->fd() : -1, .want_read = true}};
  const Clock::time_point next = next_event();
  Deadline deadline = next == Clock::time_point::max() ? Deadline() : Deadline::at(next);
  net::poll_any(watches, deadline);
  news_.drain();
  for (const Event& event : ranks_->read()) take(event);
  act(Clock::now());
}

Job::Clock::time_point Job::next_event() const {
  if (is_finishing_) return Clock::now() + kLooksAgain;
  return std::min({settled_at_, forced_at_, given_up_at_, late_at_});
}

void Job::take(const Event& event) {
  switch (event.kind) {
    case Event::Kind::started: {
      if (options_.start != Start::thread) door_.rank_started(event.rank, event.value);
      const std::lock_guard lock(mutex_);
      of_rank(states_, event.rank).pid = event.value;
      return;
    }
    case Event::Kind::ended:
      return rank_ended(event.rank, event.value);
    case Event::Kind::not_started: {
      {
        const std::lock_guard lock(mutex_);
        of_rank(states_, event.rank).not_started = event.value;
      }
      return rank_ended(event.rank, W_EXITCODE(127, 0));
    }
    case Event::Kind::guard_gone:  // its keeper ends everything, unless it is stopped again
      if (running_count() == 0) return;
      keeper_died();
      forced_at_ = std::min(forced_at_, after(Clock::now(), kEndsAlone));
      return;
    case Event::Kind::keeper_gone:  // the kernel has killed its ranks
      if (running_count() > 0) keeper_died();
      for (int rank = 0; rank < options_.world_size; ++rank) {
        if (!of_rank(states_, rank).wait_status) rank_ended(rank, W_EXITCODE(0, SIGKILL));
      }
      return;
  }
}

/// It, or its guard, by another hand than ours, and those who run will end by that. It is the
/// reason if there was none before.
void Job::keeper_died() {
  if (is_forced_) return;
  has_keeper_died_ = true;
  const std::lock_guard lock(mutex_);
  for (RankState& rank : states_) rank.is_asked = rank.is_asked || !rank.wait_status;
  if (ended_by_ != EndedBy::nobody || outcome_.failed()) return;
  ended_by_ = EndedBy::keeper_death;
  why_ =
      "the keeper of its ranks, or its guard, was killed, and they with it; or there was no "
      "process left for it";
}

/// Whom a rank blames that has ended: by the board, else by what it threw.
std::vector<int> Job::culprits_of(int rank) const {
  std::vector<int> culprits = door_.blamed_by(rank);
  const Report& report = reports_->of(rank);
  if (!culprits.empty() || report.stage.load() != Stage::failed) return culprits;
  const Error error = error_in(report);
  const bool is_of_another =
      error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kClosed ||
      error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kTimeout;
  if (is_of_another) culprits = error.context().culprits;
  return culprits;
}

void Job::rank_ended(int rank, int wait_status) {
  // A thread's world may be somewhere else by now, and live on.
  if (options_.start != Start::thread || !door_.is_in_world(rank)) {
    door_.rank_exited(rank, wait_status);
  }
  // One that ended well before it came to the call has failed.
  const bool is_early = wait_status == 0 && !has_run(reports_->of(rank));
  const std::lock_guard lock(mutex_);
  RankState& state = of_rank(states_, rank);
  state.wait_status = wait_status;
  outcome_.add({.rank = rank,
                .wait_status = is_early ? W_EXITCODE(1, 0) : wait_status,
                .ours = state.is_asked,
                .culprits = culprits_of(rank),
                .disagreement = door_.disagreement_of(rank),
                .failure = door_.failure_of(rank),
                .doing = door_.doing_of(rank),
                .untold = options_.start == Start::thread ? std::nullopt : door_.untold_by(rank)});
}

void Job::look_for_late(Clock::time_point now) {
  if (now < late_at_) return;
  late_at_ = Clock::time_point::max();
  std::vector<int> late;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (!has_run(reports_->of(rank)) && !of_rank(states_, rank).wait_status) late.push_back(rank);
  }
  if (late.empty() || ended_by_ != EndedBy::nobody) return;
  ended_by_ = EndedBy::late_start;
  why_ = fmt::format("{} had not come to this call {:g} s after the start", ranks_text(late),
                     std::chrono::duration<double>(options_.start_timeout).count());
}

void Job::look_for_signal() {
  if (has_heard_signal_ || !end_signals_ || end_signals_->number() == 0) return;
  has_heard_signal_ = true;
  // Whatever it was ended by before: the process is to end.
  ended_by_ = EndedBy::signal;
  why_ = fmt::format("its program was asked to end by {}",
                     agent::describe_signal(end_signals_->number()));
}

/// One that is stopped tells nothing of its ranks.
void Job::look_at_keeper() {
  const pid_t keeper = reports_->call().keeper.load();
  if (options_.start != Start::thread && net::is_stopped(keeper)) stopped_keeper_ = keeper;
}

/// For those who are asked to end.
std::string Job::reason_to_end() const {
  if (ended_by_ != EndedBy::nobody) return "the spawn that started it is ended: " + why_;
  const std::optional<int> root = outcome_.root_cause();
  return (root ? fmt::format("rank {} of its spawn has failed", *root)
               : std::string("its spawn has failed")) +
         ", which ends all its ranks; join() says why";
}

void Job::begin_end(Clock::time_point now) {
  is_ending_ = true;
  look_at_keeper();
  for (int rank = 0; rank < options_.world_size; ++rank) {
    RankState& state = of_rank(states_, rank);
    if (state.wait_status) continue;
    state.is_asked = true;
    state.doing = door_.doing_of(rank);
    if (options_.start == Start::thread || state.pid == 0 || !net::is_stopped(state.pid)) continue;
    state.doing =
        "was stopped by a signal" + (state.doing.empty() ? "" : " where it " + state.doing);
  }
  const std::string reason = reason_to_end();
  if (options_.start == Start::thread) server_->fail(Error(ErrorCode::kAborted, reason));
  ranks_->ask(reason);
  forced_at_ = std::min(forced_at_, after(now, options_.grace));  // sooner without a guard
}

void Job::act(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  look_for_signal();
  look_for_late(now);
  const bool has_running = running_count() > 0;
  if (!is_ending_ && has_running) {
    if (outcome_.failed() && settled_at_ == Clock::time_point::max()) settled_at_ = now + kSettles;
    const bool is_settled = outcome_.failed() && (outcome_.root_cause() || now >= settled_at_);
    if (ended_by_ != EndedBy::nobody || is_settled) begin_end(now);
  }
  if (is_ending_) settled_at_ = Clock::time_point::max();
  if (has_running && now >= forced_at_) {
    look_at_keeper();
    is_forced_ = true;
    ranks_->force();
    forced_at_ = Clock::time_point::max();
    // Nothing ends a thread: there is nothing to wait for.
    given_up_at_ = options_.start == Start::thread ? now : now + kGoes;
  }
  if (!has_running && !is_finishing_) {
    is_finishing_ = true;
    given_up_at_ = now + kGoes;
  }
  if (is_finishing_ && ranks_->finish()) return conclude({});
  if (now >= given_up_at_) conclude(ranks_->leave_behind());
}

void Job::conclude(const std::string& left) {
  failure_ = failure_of({options_, *reports_, states_, outcome_, ended_by_, why_, has_keeper_died_,
                         stopped_keeper_, left});
  server_.reset();
  end_signals_.reset();  // it may end the process
  is_over_ = true;
  changed_.notify_all();
}

}  // namespace tutti::spawning
