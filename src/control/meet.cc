// How the members of a new group find each other: on the board. Each opens a line for the group and
// waits for the others' lines.
//
// Two members that ask the same group for different ones, each of which holds both, would wait for
// each other for ever: a group makes one group at a time. They find each other's line by whom it
// asked and the members it awaits. One that has given up for this reason leaves that line
// behind, with the time, so that the other finds the same.
//
// One that is slow may still stand in a meeting that a failure has ended for everybody else. So a
// member has asked for another group only if it goes on waiting there after it has looked at what
// has happened: it counts its looks in the line's progress.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/words.h"
#include "tutti/error.h"

namespace tutti::control {

class Membership::State::Meeting final : public Patience {
 public:
  Meeting(State& state, State* ends_with, Deadline& deadline) noexcept
      : state_(state),
        ends_with_(ends_with),
        deadline_(deadline),
        next_line_(after(began_, state.host->first_line_after)) {}

  bool all_have_come() const noexcept {
    for (int member = 0; member < state_.size(); ++member)
      if (state_.line_of(member) == nullptr) return false;
    return true;
  }

  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    *next = std::min(after(now, deadline_.left(now)), now + std::chrono::milliseconds(20));
    state_.line.progress.fetch_add(1);
    if (state_.adopt_failure()) return Verdict::keep_waiting;
    const std::vector<int> awaited = absent();
    // A member that asked for another group may have failed the parent on its way out.
    if (awaited.empty() || asked_otherwise(awaited) || parent_failed() || member_left(awaited))
      return Verdict::keep_waiting;
    if (deadline_.expired(now)) {
      fail(ErrorCode::kTimeout, awaited,
           fmt::format(
               "not called after {} by {}. If it is only slow, give the world a longer timeout",
               budget_text(deadline_), what_they_do(awaited)));
    } else if (now >= next_line_) {
      log(LogLevel::warn, fmt::format("making group {} (rank {}): waiting {} for {}", state_.name,
                                      state_.rank, seconds(now - began_), what_they_do(awaited)));
      next_line_ = after(now, now - began_);
    }
    return Verdict::keep_waiting;
  }

 private:
  std::vector<int> absent() const noexcept {
    std::vector<int> members;
    for (int member = 0; member < state_.size(); ++member)
      if (state_.line_of(member) == nullptr) members.push_back(member);
    return members;
  }

  std::string what_they_do(const std::vector<int>& members) const {
    std::string text;
    for (const int member : members) {
      const int slot = state_.world_ranks[static_cast<std::size_t>(member)];
      text += fmt::format("{}{}, which {}", text.empty() ? "" : "; ", state_.person(member),
                          describe_doing(state_.host->shared, slot));
    }
    return text;
  }

  void fail(ErrorCode code, std::vector<int> culprits, std::string text) {
    state_.line.since.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    state_.fail({code, std::move(text), std::move(culprits), {}}, Tell::everybody);
  }

  bool parent_failed() { return ends_with_ != nullptr && state_.adopt_parent(*ends_with_); }

  bool member_left(const std::vector<int>& awaited) {
    std::vector<int> left;
    for (const int member : awaited)
      if (has_left(state_.slot_of(member))) left.push_back(member);
    if (left.empty()) return false;
    // Who has left may have gone because of a failure of the parent, published since the last look.
    if (parent_failed()) return true;
    const std::string verb = left.size() == 1 ? "has" : "have";
    fail(ErrorCode::kClosed, left, fmt::format("{} {} left the world", ranks_text(left), verb));
    return true;
  }

  bool asked_otherwise(const std::vector<int>& awaited) {
    if (state_.line.asked_of.load() == 0) return false;
    for (const int member : awaited) {
      const Line* theirs = line_that_awaits_us(member);
      if (theirs == nullptr) continue;
      if (theirs->failure.load() == 0 && !has_looked(member, *theirs)) continue;
      fail(ErrorCode::kCollectiveMismatch, {member}, disagreement(member, *theirs));
      return true;
    }
    return false;
  }

  /// Whether the owner has begun and ended a look since the line was first seen here.
  bool has_looked(int member, const Line& theirs) {
    constexpr std::uint64_t kUnderWay = 1;
    const Seen now = {theirs.group.load(), theirs.progress.load()};
    Seen& first = seen_.try_emplace(member, now).first->second;
    if (first.group != now.group) first = now;
    return now.looks > first.looks + kUnderWay;
  }

  std::string disagreement(int member, const Line& theirs) const {
    return fmt::format(
        "{} is in {} while {} is in {}, and each awaits the other. All ranks must make the same "
        "groups, of the "
        "same ranks in the same order",
        state_.person(state_.rank), describe_making(state_.host->own.slot(), state_.line),
        state_.person(member), describe_making(state_.slot_of(member), theirs));
  }

  const Line* line_that_awaits_us(int member) const noexcept {
    constexpr std::uint32_t kDisagreed = failure_word(ErrorCode::kCollectiveMismatch);
    for (const Line& other : state_.slot_of(member).lines) {
      const GroupId group = other.group.load();
      if (group == 0 || group == state_.id ||
          other.asked_of.load() != state_.line.asked_of.load() || other.entered.load() != 0)
        continue;
      const bool meets = other.state.load() == LineState::meeting && other.failure.load() == 0;
      const bool gave_up = other.failure.load() == kDisagreed &&
                           other.since.load() >= began_.time_since_epoch().count();
      if ((meets || gave_up) &&
          read_set(other.ranks).test(static_cast<std::size_t>(state_.host->rank)))
        return &other;
    }
    return nullptr;
  }

  State& state_;
  State* const ends_with_;
  Deadline& deadline_;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point next_line_;
  struct Seen {
    GroupId group = 0;
    std::uint64_t looks = 0;
  };
  std::map<int, Seen> seen_;  ///< by member: its other line, when that was first found
};

/// Whoever fails to make a group because of somebody else is about to learn why. A connection ends
/// after the mark of its process has fallen, and before a rank that failed has said so.
class Membership::State::Blame final : public Patience {
 public:
  Blame(State& state, State* ends_with, std::chrono::nanoseconds budget) noexcept
      : state_(state), ends_with_(ends_with), budget_(budget) {}

  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    *next = now + kPause;
    if (state_.adopt_failure() || (ends_with_ != nullptr && state_.adopt_parent(*ends_with_)))
      return Verdict::keep_waiting;
    const auto waited = looks_++ * kPause;
    if (waited < budget_ || (waited < kVerdictBudget && somebody_died()))
      return Verdict::keep_waiting;
    return Verdict::give_up;
  }

 private:
  /// Time is counted in looks: this process may have been stopped meanwhile, with the thread that
  /// reaches verdicts.
  static constexpr std::chrono::milliseconds kPause{5};
  /// The verdict takes 40 ms; longer if the decider is stopped or the machine is busy.
  static constexpr std::chrono::seconds kVerdictBudget{3};

  bool somebody_died() const noexcept {
    const State& concerned = ends_with_ != nullptr ? *ends_with_ : state_;
    return std::any_of(concerned.world_ranks.begin(), concerned.world_ranks.end(), [&](int slot) {
      Slot& other = state_.host->shared.slot(slot);
      return slot != state_.host->rank && other.state.load() == RankState::running &&
             other.mark.look() == Mark::State::owner_died;
    });
  }

  State& state_;
  State* const ends_with_;
  const std::chrono::nanoseconds budget_;
  int looks_ = 0;
};

bool Membership::State::adopt_parent(State& parent) {
  if (parent.abort_word.load() == kRunning && !parent.adopt_failure()) return false;
  const Error failure = parent.make_error(nullptr);
  std::vector<int> culprits;
  for (const int of_parent : failure.context().culprits) {
    const int slot = parent.world_ranks[static_cast<std::size_t>(of_parent)];
    if (const int member = member_of(slot); member >= 0) culprits.push_back(member);
  }
  line.since.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  fail({failure.code(),
        fmt::format("its parent failed meanwhile: {}", failure.what()),
        std::move(culprits),
        {}},
       Tell::everybody);
  return true;
}

Error Membership::blame(const Error& error, const Membership* ends_with) {
  State& state = *state_;
  using std::chrono::milliseconds;
  // Whoever has seen another rank go waits longer than that rank does with an error of its own.
  const bool may_follow = error.code() == ErrorCode::kSystem ||
                          error.code() == ErrorCode::kTimeout ||
                          error.code() == ErrorCode::kAborted;
  const milliseconds budget = error.code() == ErrorCode::kPeerLost ? milliseconds(1500)
                              : may_follow                         ? milliseconds(500)
                                                                   : milliseconds(0);
  state.host->process->rouse_self();
  State::Blame blame(state, ends_with != nullptr ? ends_with->state_.get() : nullptr, budget);
  wait(state.waiter, blame, [] { return false; });
  // Nobody waits for a rank that could not make the group; what failed first counts.
  std::vector<int> culprits = error.context().culprits;
  const bool is_own = culprits.empty() && error.context().op != "store";  // which somebody served
  if (is_own) culprits = {rank()};
  fail({error.code(), error.what(), std::move(culprits), {}});
  return state.make_error(nullptr);
}

void Membership::meet(const Membership* ends_with, const Where& where, Deadline deadline) {
  State& state = *state_;
  if (!state.call.empty()) state.host->own.publish_purpose(state.id, state.call);
  state.line.site.store(state.host->own.site(where), std::memory_order_release);
  notify_all();
  State::Meeting meeting(state, ends_with != nullptr ? ends_with->state_.get() : nullptr, deadline);
  deadline.start(Clock::now());
  // Once all have come the group is there, even if it has failed by now: its first call says so.
  if (wait(state.waiter, meeting, [&] { return meeting.all_have_come(); }) != WaitResult::ready)
    throw state.make_error(nullptr);
  state.line.state.store(LineState::open);
}

}  // namespace tutti::control
