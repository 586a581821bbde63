// The waits of a group: those of operations that have become long, for members of a new group, for
// goodbyes. Each reads the facts, asks its judge and does what that says.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/rank_list.h"
#include "control/board/describe.h"
#include "control/board/words.h"
#include "control/host_state.h"
#include "control/judge/agree.h"
#include "control/judge/decider.h"
#include "control/judge/meeting.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

/// Whether all members have done something, asked with every look: `missing` had not at the last
/// one, and is asked first.
template <class Has>
bool all_have(int size, int& missing, Has&& has) noexcept {
  const int first = missing;
  for (int i = 0; i < size; ++i) {
    missing = (first + i) % size;
    if (!has(missing)) return false;
  }
  return true;
}

}  // namespace

// ---- operations --------------------------------------------------------------------------------

Patience::Verdict Membership::ask(const Request& request, int awaited, WaitClock& clock,
                                  Clock::time_point now, Clock::time_point* next,
                                  ProgramWait* program, const GroupFacts* facts) {
  State& state = *state_;
  *next = now + kLongestBackoff;
  if (state.abort_word.load() != kRunning) return Patience::Verdict::keep_waiting;
  clock.begin(request, now, state.host->first_line_after);
  if (request.seq != 0) {
    state.line.waits({static_cast<std::uint32_t>(request.seq), awaited,
                      awaited < 0 ? WorldRank(0) : state.members.world_rank_of(awaited)},
                     clock.began);
  }
  if (state.adopt_failure()) return Patience::Verdict::keep_waiting;
  std::optional<GroupFacts> own_facts;
  if (facts == nullptr) facts = &own_facts.emplace(state.members.read());
  Look found;
  {
    const std::lock_guard lock(state.mutex);
    found = look(request, awaited, *facts, clock, state.arrive, now);
  }
  if (found.finding) state.fail(*found.finding, &request);
  state.members.ask(found.ask);
  if (!found.awaited.empty()) {
    log(LogLevel::warn,
        fmt::format("{}: waiting {} for {}", state.heading_of(request), seconds(now - clock.began),
                    state.doings(found.awaited, ", which ")));
  }
  if (program != nullptr && !found.finding && note_caller()) {
    const auto part =
        clock.matched ? std::nullopt : state.awaits(request, awaited, program->needs_all(), *facts);
    program->look(*this, part ? std::vector{*part} : std::vector<WaitPart>{}, now);
  }
  *next = found.next;
  return found.verdict;
}

GroupFacts Membership::read_facts() const { return state_->members.read(); }

bool Membership::has_word_of(int peer, Clock::time_point since, Clock::time_point now) {
  State& state = *state_;
  if (peer == kAnyRank || state.members.is_here(peer) || state.known_as_of(peer) >= since ||
      state.is_silent(peer))
    return true;
  if (now >= since + State::kAnswersSoon) {
    state.note_silent(peer, since);
    return true;
  }
  state.members.ask({peer});
  return false;
}

void Membership::fail_stalled(const Request& request) noexcept {
  const int only = is_message(request.op) ? request.message.peer : -1;
  state_->fail(stalled_in(request, only, state_->members.read()), &request);
  state_->await_cause();
}

void Membership::fail_mismatch(const Request& own, int peer, const Description* seen) noexcept {
  Sighting sighting{.member = peer};
  if (seen != nullptr) {
    sighting.shown = Shown{*seen};
    state_->ask_what_they_do({peer});
  }
  const Shown shown = shown_of(own, site(own.where));
  state_->fail(disagreement_with(state_->members.read(), shown, sighting), &own);
  state_->await_cause();
}

void Membership::fail_counts(const Request& request, int from, std::uint64_t sent, int to,
                             std::uint64_t awaited) noexcept {
  state_->ask_what_they_do({from == rank() ? to : from});
  fail({.code = ErrorCode::kCollectiveMismatch,
        .text = fmt::format(
            "rank {}'s {} sends {} to rank {}, whose {} has a count of {} for them. The "
            "counts of both ends must agree",
            from, state_->call_of(from, request), times_text(sent, "element"), to,
            state_->call_of(to, request), awaited),
        .culprits = {std::min(from, to), std::max(from, to)},
        .host = {}});
}

void Membership::throw_gave_up(const Request& request, const std::string& detail,
                               std::optional<Clock::time_point> known_since) const {
  static constexpr std::chrono::milliseconds kFresh{100};
  const int peer = request.message.peer;
  const Clock::time_point now = Clock::now();
  const Clock::time_point since = known_since.value_or(
      now - std::min<std::chrono::nanoseconds>(request.arrive.budget(), kFresh));
  ErrorContext context = state_->context_of(request);
  if (peer != kAnyRank) context.culprits = {peer};
  context.host = state_->host_of_first(context.culprits);
  const bool is_fresh =
      peer == kAnyRank || state_->members.is_here(peer) || state_->known_as_of(peer) >= since;
  const std::string silent =
      is_fresh ? "" : state_->ask_what_they_do(context.culprits, request.arrive.budget());
  const std::string waited =
      request.op == Op::send
          ? fmt::format("{} has posted no recv with tag {}", state_->person(peer),
                        request.message.tag)
          : fmt::format("nothing came from {} with tag {}",
                        peer != kAnyRank ? state_->person(peer) : "any rank", request.message.tag);
  const std::string text = fmt::format(
      "{}: {} for {} in {}{}{}{}. Nothing was {} and the group stays usable",
      state_->heading_of(request), waited, describe(shown_of(request, 0)),
      budget_text(request.arrive), peer != kAnyRank ? "; it " + state_->doing(peer) : "", silent,
      detail.empty() ? "" : "; " + detail, request.op == Op::send ? "sent" : "received");
  throw Error(ErrorCode::kTimeout, text, std::move(context));
}

// ---- making a group ----------------------------------------------------------------------------

/// Until there is a line for the group: those of groups that were closed are free once their
/// members have compared.
class Membership::State::Room final : public Patience {
 public:
  Room(State& state, State* ends_with, Deadline deadline) noexcept
      : state_(state), ends_with_(ends_with), deadline_(deadline) {
    deadline_.start(Clock::now());
  }

  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    *next = now + kLook;
    if (state_.adopt_failure()) return Verdict::keep_waiting;
    if (ends_with_ != nullptr && ends_with_->has_failed()) {
      state_.adopt_parent(*ends_with_);
      return Verdict::keep_waiting;
    }
    try {
      take();
    } catch (const Error& error) {
      why_ = error.what();
      return Verdict::give_up;
    }
    const bool is_over = !is_there() && (is_full_ || deadline_.expired(now));
    return is_over ? Verdict::give_up : Verdict::keep_waiting;
  }
  bool is_there() const noexcept { return !state_.no_place; }
  /// What there is no room for, once the wait was given up.
  std::string why() const {
    if (!why_.empty()) return why_;
    if (!is_full_) {
      return fmt::format(
          "{} has no room for another group: members of groups that it has closed have not left "
          "them, or its memory is short",
          state_.person(state_.rank));
    }
    return fmt::format(
        "{} is in {} groups already, and there is no room for more at a time; close and destroy "
        "some",
        state_.person(state_.rank), kMaxLines);
  }

 private:
  static constexpr std::chrono::milliseconds kLook{20};

  void take() {
    const std::lock_guard of_host(state_.host->mutex);
    is_full_ = state_.host->closed_lines.empty();
    const auto place =
        state_.host->open_line(state_.id, state_.asked_of, state_.members.world_ranks());
    if (!place) return;
    const std::lock_guard lock(state_.mutex);
    if (state_.first_cause) return state_.host->own.free_line(*place);  // nobody meets there
    state_.line = *place;
    state_.no_place.reset();
  }

  State& state_;
  State* const ends_with_;
  Deadline deadline_;
  bool is_full_ = false;  ///< of groups that are open
  std::string why_;       ///< there is no memory
};

class Membership::State::Meeting final : public Patience {
 public:
  Meeting(const Membership& membership, State* parent, Deadline deadline) noexcept
      : membership_(membership),
        state_(*membership.state_),
        parent_(parent),
        clock_{.deadline = deadline} {
    clock_.began = Clock::now();
    clock_.next_line = after(clock_.began, state_.host->first_line_after);
    clock_.deadline.start(clock_.began);
  }

  bool all_have_come() noexcept {
    return all_have(state_.size(), missing_,
                    [this](int member) { return state_.members.state_of(member).has_value(); });
  }

  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    state_.line.looks();
    *next = now + kLongestBackoff;
    if (state_.adopt_failure()) return Verdict::keep_waiting;
    MeetingQuestion question = {.group = state_.id,
                                .asked_of = state_.asked_of,
                                .world_ranks = state_.members.world_ranks(),
                                .left_parent = left_parent()};
    const GroupFacts facts = state_.members.read_meetings();
    question.parent_failed = state_.ends_with(parent_) && parent_->has_failed();
    const MeetingLook found = look_at_meeting(question, facts, clock_, now);
    *next = found.next;
    state_.members.ask(found.ask);
    if (found.ends_with_parent) state_.adopt_parent(*parent_);
    if (found.finding) state_.fail(*found.finding, nullptr);
    if (!found.awaited.empty()) {
      log(LogLevel::warn,
          fmt::format("making group {} (rank {}): waiting {} for {}", state_.name, state_.rank,
                      seconds(now - clock_.began), state_.doings_anywhere(found.awaited)));
    }
    const bool may_be_stuck = !found.finding && !found.is_disputed && state_.asked_of != 0;
    if (may_be_stuck && membership_.note_caller()) program_.look(membership_, {awaits(facts)}, now);
    return Verdict::keep_waiting;
  }

 private:
  std::vector<int> left_parent() const {
    std::vector<int> left;
    for (int member = 0; parent_ != nullptr && member < state_.size(); ++member) {
      const GroupMembers& parent = parent_->members;
      const auto there = parent.state_of(parent.member_of(state_.members.world_rank_of(member)));
      if (there && has_left(*there)) left.push_back(member);
    }
    return left;
  }

  WaitPart awaits(const GroupFacts& facts) const {
    WaitPart part{.group = state_.id, .makes_group = true};
    std::vector<int> missing;
    for (int member = 0; member < facts.size(); ++member)
      if (!facts.line_of(member)) missing.push_back(member);
    state_.set_awaited(part, {missing, missing}, facts);
    return part;
  }

  const Membership& membership_;
  State& state_;
  State* const parent_;
  int missing_ = 0;  ///< member that had not come
  MeetingClock clock_;
  ProgramWait program_;
};

void Membership::meet(const Membership* parent_in, const Where& where, Deadline deadline) {
  State& state = *state_;
  State* const parent = parent_in != nullptr ? parent_in->state_.get() : nullptr;
  deadline.start(Clock::now());
  if (state.is_given_up) throw state.make_error(nullptr);
  if (state.no_place) {
    State::Room room(state, state.ends_with(parent) ? parent : nullptr, deadline);
    if (wait(state.waiter, room, [&] { return room.is_there(); }) == WaitResult::gave_up)
      fail({ErrorCode::kSystem, room.why(), {state.rank}, {}});
    if (!room.is_there()) throw state.make_error(nullptr);
  }
  if (!state.call.empty()) state.host->own.publish_purpose(state.id, state.call);
  state.line.set_times(static_cast<std::uint32_t>(state.times));
  state.line.set_site(state.host->own.site(where));
  notify_all();
  State::Meeting meeting(*this, parent, deadline);
  // Once all have come the group is there, even if it has failed by now: its first call says so.
  if (wait(state.waiter, meeting, [&] { return meeting.all_have_come(); }) != WaitResult::ready)
    throw state.make_error(nullptr);
  state.line.set_state(LineState::open);
}

/// Whoever fails to make a group because of somebody else is about to learn why. A connection ends
/// after the mark of its process has fallen, and before a rank that failed has said so.
class Membership::State::Blame final : public Patience {
 public:
  Blame(State& state, State* ends_with, ErrorCode own) noexcept
      : state_(state), ends_with_(ends_with), own_(own) {}

  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    *next = now + kPause;
    if (state_.adopt_failure()) return Verdict::keep_waiting;
    if (ends_with_ != nullptr && ends_with_->has_failed()) {
      state_.adopt_parent(*ends_with_);
      return Verdict::keep_waiting;
    }
    const auto waited = looks_++ * kPause;
    has_seen_death_ = somebody_died();
    return awaits_cause(own_, waited, has_seen_death_) ? Verdict::keep_waiting : Verdict::give_up;
  }
  bool has_seen_death() const noexcept { return has_seen_death_; }

 private:
  /// Time is counted in looks: this process may have been stopped meanwhile, with the thread that
  /// reaches verdicts.
  static constexpr std::chrono::milliseconds kPause{5};

  bool somebody_died() const noexcept {
    const State& concerned = ends_with_ != nullptr ? *ends_with_ : state_;
    for (int member = 0; member < concerned.size(); ++member) {
      if (member == concerned.rank || !concerned.members.is_here(member)) continue;
      if (concerned.members.here().has_died(member)) return true;
    }
    return false;
  }

  State& state_;
  State* const ends_with_;
  const ErrorCode own_;
  int looks_ = 0;
  bool has_seen_death_ = false;  ///< at the last look
};

Error Membership::blame(const Error& error, const Membership* parent_in) {
  State& state = *state_;
  state.host->process->rouse_self();
  State* const parent = parent_in != nullptr ? parent_in->state_.get() : nullptr;
  State::Blame blame(state, state.ends_with(parent) ? parent : nullptr, error.code());
  wait(state.waiter, blame, [] { return false; });
  // Nobody waits for a rank that could not make the group; what failed first counts.
  std::vector<int> culprits = error.context().culprits;
  const bool is_own = culprits.empty() && error.context().op != "store";  // which somebody served
  if (is_own) culprits = {rank()};
  // Had anybody died, the log or a mark would say so by now: whoever ended it lives.
  const bool lives = error.code() == ErrorCode::kPeerLost && !blame.has_seen_death();
  const ErrorCode code = lives ? ErrorCode::kAborted : error.code();
  fail({code, error.what(), std::move(culprits), {}});
  return state.make_error(nullptr);
}

// ---- closing -----------------------------------------------------------------------------------

/// Waits for the goodbyes of all; compares each as soon as it is there.
class Membership::State::Farewell final : public Patience {
 public:
  Farewell(State& state, Deadline deadline) noexcept : state_(state), deadline_(deadline) {}

  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    *next = now + kLongestBackoff;
    if (state_.adopt_failure() || find_difference()) return Verdict::keep_waiting;
    if (deadline_.expired(now)) {
      late_ = absent();
      return late_.empty() ? Verdict::keep_waiting : Verdict::give_up;
    }
    if (deadline_.left(now) < kAnswersSoon) state_.members.ask(absent());  // for the error's words
    *next = std::min(after(now, deadline_.left(now)), now + kLook);
    return Verdict::keep_waiting;
  }
  bool all_have_left() noexcept {
    return all_have(state_.size(), missing_, [this](int member) { return has_left(member); }) &&
           !awaits_cause();
  }
  /// With other hosts a member may show a failure before the entry has come that says why. For long
  /// it is not waited for: that may be none of this rank's.
  bool awaits_cause() noexcept {
    static constexpr std::chrono::seconds kCauseComes{2};
    const bool is_told_elsewhere = state_.host->others != nullptr &&
                                   state_.abort_word.load() == kRunning &&
                                   state_.members.shows_failure();
    if (!is_told_elsewhere) return false;
    const auto now = Clock::now();
    if (!shown_) shown_ = now;
    return now < *shown_ + kCauseComes && !deadline_.expired(now);
  }
  bool has_left(int member) const noexcept {
    // All have had a line since they met: the owner of one that is gone has made room for another.
    const auto theirs = state_.members.state_of(member);
    return !theirs || control::has_left(*theirs);
  }
  /// Members that have not left.
  std::vector<int> absent() const {
    std::vector<int> found;
    for (int member = 0; member < state_.size(); ++member)
      if (!has_left(member)) found.push_back(member);
    return found;
  }
  /// Members that had not left when the time was over; they may have done so since.
  const std::vector<int>& late() const noexcept { return late_; }
  /// True: a disagreement was found, or a failure that explains it; the group has failed.
  bool find_difference() {
    const auto finding = compare_goodbyes(state_.members.read());
    if (finding) state_.fail(*finding, nullptr);
    return finding.has_value();
  }

 private:
  static constexpr std::chrono::milliseconds kLook{20};

  State& state_;
  int missing_ = 0;  ///< member that had not left
  std::vector<int> late_;
  Deadline deadline_;
  std::optional<Clock::time_point> shown_;  ///< since when somebody shows a failure
};

void Membership::give_up() noexcept {
  if (Process::forked()) return;
  OwnLine& line = state_->line;
  if (has_left(line.state())) return;
  line.say_goodbye();
  line.set_state(LineState::closed);
  notify_all();
}

/// Other hosts know then that this rank has closed: its process may end without another word.
void Membership::State::await_told() noexcept {
  if (host->remote == nullptr) return;
  for (int member = 0; member < size(); ++member)
    if (!members.is_here(member)) return host->remote->await_told();
}

void Membership::close(std::uint64_t last_seq, std::uint64_t chain, Deadline deadline,
                       const Where& where) {
  State& state = *state_;
  if (state.abort_word.load() != kRunning) {
    give_up();
    throw state.close_error(where);
  }
  const std::string site = name_of(where);
  const std::string call = site.empty() ? "the destructor" : "close at " + site;
  state.host->own.publish_closing(state.id, call);
  state.line.say_goodbye(last_seq, chain);
  state.line.set_state(LineState::closing);
  notify_all();

  State::Farewell farewell(state, deadline);
  WaitResult result;
  bool failed = false;
  do {
    result = wait(state.waiter, farewell, [&] { return farewell.all_have_left(); });
    // What these return counts, not the abort word alone: the control thread may be about to set
    // it. Who has failed meanwhile is compared with nobody; why it has is in the log by then.
    failed = result == WaitResult::ready &&
             (state.adopt_failure() || farewell.find_difference() || state.adopt_failure());
  } while (result == WaitResult::ready && !failed && farewell.awaits_cause());
  if (failed) state.await_cause();
  const std::vector<int>& late = farewell.late();
  if (result == WaitResult::gave_up) {  // for whoever asks later, when they may have left
    std::vector<int> in_world;
    for (const int member : late) in_world.push_back(state.members.world_rank_of(member).value);
    state.host->own.publish_closing(
        state.id, fmt::format("{} ({} had not left)", call, ranks_text(in_world)));
  }
  // Only now: a member that sees this makes room for another group.
  state.line.set_state(result == WaitResult::gave_up ? LineState::gave_up : LineState::closed);
  if (failed || state.abort_word.load() != kRunning) throw state.close_error(where);
  if (result == WaitResult::ready) return state.await_told();

  ErrorContext context{.op = "close", .rank = state.rank, .call_site = site};
  context.culprits = late;
  context.host = state.host_of_first(context.culprits);
  const std::string who =
      ranks_text(context.culprits) + (context.culprits.size() == 1 ? " has" : " have");
  std::vector<int> silent;
  for (const int member : context.culprits) {
    const bool is_here = state.members.is_here(member);
    if (!is_here && Clock::now() - state.known_as_of(member) > State::kAnswersSoon)
      silent.push_back(member);
  }
  const std::string doings = state.doings(context.culprits, " ");
  throw Error(ErrorCode::kTimeout,
              fmt::format("{}: {} not left after {}{}{}{}", heading(context, state.name), who,
                          budget_text(deadline), doings.empty() ? "" : "; ", doings,
                          state.old_news(silent, State::kAnswersSoon)),
              context);
}

}  // namespace tutti::control
