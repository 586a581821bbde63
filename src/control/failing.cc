// How a group fails: the first cause, telling the others, taking over what others tell.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "control/host_state.h"
#include "control/judge/standing.h"
#include "control/untold.h"
#include "tutti/error.h"

namespace tutti::control {

void Membership::State::fail(Cause cause, const std::vector<GroupId>& with) noexcept {
  if (Process::forked()) return;
  const auto self = shared_from_this();  // a callback may destroy the group and its world at once
  until_done([&] { enter(cause, with); });
}

void Membership::State::enter(const Cause& cause, const std::vector<GroupId>& with) {
  Verdict verdict{.code = cause.code, .groups = {id}, .text = cause.text, .finder = host->rank};
  verdict.groups.insert(verdict.groups.end(), with.begin(), with.end());
  for (const int member : cause.culprits)
    if (member >= 0 && member < size()) verdict.culprits.push_back(members.world_rank_of(member));
  const auto stands = [&] { return abort_word.load() == kRunning && !adopt_missed(); };
  if (!with.empty()) {
    host->enter_parts(verdict, stands);
    return;
  }
  const bool entered =
      host->enter([&]() { return stands() ? std::optional<Verdict>(verdict) : std::nullopt; });
  if (!entered) return;
  for (int member = 0; member < size(); ++member) {
    if (member != rank && members.is_here(member))
      rouse_control(host->shared, members.here().slot_index_of(member));
  }
}

void Membership::State::fail(const Finding& finding, const Request* request) noexcept {
  const auto* const otherwise = std::get_if<AskedOtherwise>(&finding.what);
  until_done([&] {
    fail({finding.code, words_of(finding, request), finding.culprits, {}},
         otherwise != nullptr ? otherwise->groups : std::vector<GroupId>());
  });
}

void Membership::State::fail_by(const Verdict& verdict) {
  settle({verdict.code, verdict.text, members.members_of(verdict.culprits), {}});
}

void Membership::State::settle(Cause cause) {
  std::vector<WorldRank> culprits;
  for (const int member : cause.culprits) culprits.push_back(members.world_rank_of(member));
  {
    // Whoever finds it settled finds all of it.
    const std::lock_guard lock(mutex);
    if (first_cause) return;
    if (cause.host.empty()) cause.host = host_of_first(cause.culprits);
    Untold::of_process().add({.group = id,
                              .rank = rank,
                              .of = host->rank,
                              .world = host->number,
                              .code = cause.code,
                              .culprits = culprits,
                              .world_size = host->roster.world_size(),
                              .text = for_the_world(cause)});
    // On the board first: whoever finds that this rank has gone away must also find why.
    host->own.publish_failure(line, cause.code, culprits);
    if (comes_too_late(members.read(), cause.code)) Untold::of_process().keep(id, rank);
    host->process->post([self = shared_from_this(), due = std::make_shared<PendingCallback>()] {
      self->announce();
    });
    // Last: where there was no memory for what comes before, all of it is done again.
    first_cause = std::move(cause);
    std::uint64_t running = kRunning;
    abort_word.compare_exchange_strong(running, kFailed);
  }
  ring(host->own.bell());
}

void Membership::State::await_cause() noexcept {
  if (host->others == nullptr || host->process->on_control_thread()) return;
  // Hosts that reach nobody part after kPart.
  static constexpr std::chrono::seconds kCauseComes{20};
  class Awaiting final : public Patience {
   public:
    explicit Awaiting(State& state) noexcept : state_(state) {}
    Verdict ask(Clock::time_point now, Clock::time_point* next) override {
      *next = now + std::chrono::milliseconds(20);
      if (end_ == Clock::time_point{}) end_ = now + kCauseComes;
      if (!state_.adopt_failure() && now >= end_) return Verdict::give_up;
      return Verdict::keep_waiting;
    }

   private:
    State& state_;
    Clock::time_point end_ = {};
  };
  Awaiting awaiting(*this);
  if (wait(waiter, awaiting, [] { return false; }) != WaitResult::gave_up) return;
  until_done([&] {
    settle({ErrorCode::kInternal,
            "this host's relay has entered no cause into the log of verdicts for 20 s; the status "
            "board shows what its ranks do",
            {rank},
            {}});
  });
}

Clock::time_point Membership::State::known_as_of(int member) const noexcept {
  return host->others->facts_of(id, members.world_rank_of(member)).asked;
}

bool Membership::State::is_silent(int member) const noexcept {
  const Clock::time_point known = known_as_of(member);
  const std::lock_guard lock(mutex);
  const auto found = asked_in_vain.find(member);
  return found != asked_in_vain.end() && known < found->second;
}

void Membership::State::note_silent(int member, Clock::time_point since) {
  const std::lock_guard lock(mutex);
  asked_in_vain[member] = since;
}

std::string Membership::State::ask_what_they_do(const std::vector<int>& about,
                                                std::chrono::nanoseconds most) noexcept try {
  std::vector<int> asked, silent;
  for (const int member : about)
    if (!members.is_here(member)) (is_silent(member) ? silent : asked).push_back(member);
  if (host->process->on_control_thread()) return {};
  class Asking final : public Patience {
   public:
    Asking(State& state, std::vector<int> silent, Clock::time_point end)
        : state_(state), silent_(std::move(silent)), end_(end) {}
    bool is_answered() noexcept {
      std::erase_if(silent_, [this](int member) { return state_.known_as_of(member) >= began_; });
      return silent_.empty();
    }
    Verdict ask(Clock::time_point now, Clock::time_point* next) override {
      state_.members.ask(silent_);
      *next = now + std::chrono::milliseconds(20);
      return now < end_ ? Verdict::keep_waiting : Verdict::give_up;
    }
    const std::vector<int>& silent() const noexcept { return silent_; }

   private:
    State& state_;
    std::vector<int> silent_;
    const Clock::time_point began_ = Clock::now(), end_;
  };
  // Their relays answer at once; one that is stopped is not waited for.
  most = std::min<std::chrono::nanoseconds>(most, kAnswersSoon);
  if (!asked.empty()) {
    const Clock::time_point began = Clock::now();
    Asking asking(*this, std::move(asked), began + most);
    wait(waiter, asking, [&] { return asking.is_answered(); });
    for (const int member : asking.silent()) {
      note_silent(member, began);
      silent.push_back(member);
    }
  }
  return old_news(silent, most);
} catch (...) {  // no memory: the words come without
  return {};
}

void Membership::State::announce() {
  const Error error = make_error(nullptr);  // first: it may have to be tried again
  std::vector<std::function<void(const Error&)>> due;
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    first = !std::exchange(announced, true);
    due.swap(callbacks);
  }
  // The program first: a line may have to wait for whoever reads it.
  for (auto& callback : due) {
    try {
      callback(error);
    } catch (const std::exception& thrown) {
      with_reserve([&] {
        log(LogLevel::error, fmt::format("a failure callback threw: {}", thrown.what()));
      });
    } catch (...) {
      log(LogLevel::error, "a failure callback threw something that is not an exception");
    }
  }
  if (first) log(LogLevel::error, error.what());
}

void Membership::State::peers_lost(const std::set<WorldRank>& lost, const std::string& why) {
  std::vector<int> concerned;
  for (int member = 0; member < size(); ++member)
    if (lost.contains(members.world_rank_of(member))) concerned.push_back(member);
  if (!concerned.empty()) members_lost(members.read(), concerned, why);
}

void Membership::State::members_lost(const GroupFacts& facts, const std::vector<int>& lost,
                                     const std::string& why) {
  if (has_compared(facts.does(facts.rank).state)) return;  // this rank has left, and needs nobody
  Cause cause;
  cause.code = ErrorCode::kPeerLost;
  // A goodbye from another host is known to some members before others, and all must say the same.
  cause.culprits = members.all_are_here() ? lost_to(facts, lost) : lost;
  if (cause.culprits.empty()) return;
  cause.text = doings(cause.culprits, " was lost: ", " was lost; last known: ") +
               (why.empty() ? "" : ". " + why) +
               ". The group is closed: make a group or a world without it, or start the job again";
  settle(std::move(cause));
}

bool Membership::State::adopt_failure() noexcept {
  const std::lock_guard lock(host->log_mutex);
  // Where there is no memory for it, it is asked again.
  with_reserve([this] {
    host->apply_new_entries();
    if (abort_word.load() == kRunning) adopt_missed();
  });
  return abort_word.load() != kRunning;
}

bool Membership::State::adopt_missed() {
  if (!host->has_missed_entries.load() || !members.shows_failure()) return false;
  host->apply_new_entries();  // what a line shows was entered before: the log says more, if it can
  return abort_word.load() != kRunning || adopt_from_lines();
}

bool Membership::State::adopt_from_lines() {
  if (!members.shows_failure()) return false;
  const GroupFacts facts = members.read();
  const std::optional<Told> told = find_failure(facts);
  if (!told) return false;
  const FailureFacts& failure = told->failure;
  if (failure.code == ErrorCode::kPeerLost && failure.text.empty()) {
    members_lost(facts, failure.culprits, {});
  } else {
    const std::string text =
        failure.text.empty()
            ? fmt::format("{} has failed ({})", person(told->member), name_of(failure.code))
            : failure.text;
    settle({failure.code, text, failure.culprits, {}});
  }
  const std::lock_guard lock(mutex);
  return first_cause.has_value();
}

bool Membership::State::has_failed() noexcept {
  return abort_word.load() != kRunning || adopt_failure();
}

void Membership::State::adopt_parent(State& parent) {
  const std::optional<Cause> failure = [&] {
    const std::lock_guard lock(parent.mutex);
    return parent.first_cause;
  }();
  if (!failure) return;
  std::vector<WorldRank> culprits;
  for (const int of_parent : failure->culprits)
    culprits.push_back(parent.members.world_rank_of(of_parent));
  Cause cause{failure->code,
              fmt::format("{}: group {}: {}", kParentFailed, parent.name, failure->text),
              members.members_of(culprits),
              {}};
  {
    // An entry of this group might be chosen before the one of its parent, and name nobody where
    // the culprits are no members of it: the others find by themselves that the parent has failed.
    const std::lock_guard lock(host->log_mutex);
    if (host->ahead_of_log.contains(parent.id)) return settle(std::move(cause));
  }
  fail(std::move(cause));
}

Error Membership::State::make_error(const Request* request) const {
  if (request != nullptr) return error_in(context_of(*request), heading_of(*request));
  return error_in({.rank = rank}, fmt::format("group {} (rank {})", name, rank));
}

Error Membership::State::close_error(const Where& where) const {
  const ErrorContext context{.op = "close", .rank = rank, .call_site = name_of(where)};
  return error_in(context, heading(context, name));
}

Error Membership::State::error_in(ErrorContext context, const std::string& who) const {
  Cause cause;
  if (abort_word.load() == kForked) {
    cause.code = ErrorCode::kInvalidArgument;
    cause.text =
        "used in a forked child; groups belong to the process that made them. Start the child with "
        "exec, or fork before the first init_process_group";
  } else {
    // A verdict may fail several groups, one after the other: who is told in one of them finds the
    // others failed.
    host->apply_log();
    const std::lock_guard lock(mutex);
    if (first_cause) cause = *first_cause;
  }
  context.culprits = cause.culprits;
  context.host = cause.host;
  // A backend's own error begins with the operation, for all to read.
  const bool is_told = cause.text.starts_with(who + ": ");
  return Error(cause.code, is_told ? cause.text : fmt::format("{}: {}", who, cause.text),
               std::move(context));
}

}  // namespace tutti::control
