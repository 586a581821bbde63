// Deadlocks: a rank shows what its program waits for, and the control thread of the lowest rank of
// a knot enters it into the log. What ranks of other hosts show it asks for, along the knot.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/board/waits.h"
#include "control/host_state.h"
#include "control/judge/standing.h"
#include "control/program_wait.h"

namespace tutti::control {

/// How old an answer may be before the question is put again.
static constexpr std::chrono::milliseconds kAskAgain{50};

// ---- showing -----------------------------------------------------------------------------------

void ProgramWait::look(const Membership& membership, const std::vector<WaitPart>& parts,
                       Clock::time_point now) {
  if (since_ == Clock::time_point{}) since_ = now;
  shown_by_ = membership.show_wait(since_, parts, now) ? &membership : nullptr;
}

void ProgramWait::look(ProgramAwaits& awaits, Clock::time_point now, Clock::time_point* next) {
  *next = std::min(*next, now + backoff_);
  backoff_ = std::min(2 * backoff_, kLongestBackoff);
  std::optional<WaitPart> part;
  // What is shown stays, and this was no look.
  if (!awaits.look(&part)) return;
  std::vector<WaitPart> parts;
  if (part) parts.push_back(*std::move(part));
  look(awaits.membership(), parts, now);
}

void ProgramWait::take_back() noexcept { shown_by_->take_back_wait(); }

bool Membership::show_wait(Clock::time_point since, const std::vector<WaitPart>& parts,
                           Clock::time_point now) const {
  return state_->host->show_wait(since, parts, now);
}

bool Membership::note_caller() const noexcept {
  Host::State& host = *state_->host;
  host.callers.note();
  return host.deadlock != Deadlock::off && host.callers.is_only_one();
}

void Membership::take_back_wait() const noexcept { state_->host->take_back_wait(); }

void Membership::watch_sent(std::function<bool()> has_sent) {
  const std::lock_guard lock(state_->mutex);
  state_->has_sent = std::move(has_sent);
}

bool Membership::is_in_world_of(const Membership& other) const noexcept {
  return state_->host == other.state_->host;
}

std::optional<WaitPart> Membership::awaits(const Request& request, bool needs_all) const {
  return state_->awaits(request, request.message.peer, needs_all, state_->members.read());
}

std::optional<WaitPart> Membership::State::awaits(const Request& request, int peer, bool needs_all,
                                                  const GroupFacts& facts) const {
  if (request.has_own_timeout || abort_word.load() != kRunning) return std::nullopt;
  WaitPart part{.group = id, .what = shown_of(request, host->own.site(request.where))};
  AwaitedMembers awaited;
  if (!is_message(request.op)) {
    awaited = awaited_in(facts, request.seq, needs_all);
  } else if (peer >= 0) {
    awaited.members = {peer};
  } else {
    part.one_suffices = true;
    awaited.members = possible_senders(facts);
  }
  set_awaited(part, std::move(awaited), facts);
  if (part.awaited.empty()) return std::nullopt;
  return part;
}

/// Whom the part awaits, and by how old an answer; those on other hosts are asked again.
void Membership::State::set_awaited(WaitPart& part, AwaitedMembers awaited,
                                    const GroupFacts& facts) const {
  if (!part.one_suffices) keep_first_elsewhere(awaited);
  for (const int member : awaited.members) part.awaited.push_back(members.world_rank_of(member));
  std::sort(part.awaited.begin(), part.awaited.end());
  for (const int member : awaited.known_by)
    part.as_of = std::min(part.as_of, facts.of(member).asked);
  members.ask(asked_before(Clock::now() - kAskAgain, awaited.known_by, facts));
}

/// Of who is awaited all must come, so it is true of any of them; and each is asked, by all that
/// wait.
void Membership::State::keep_first_elsewhere(AwaitedMembers& awaited) const {
  constexpr int kMost = 8;
  int kept = 0;
  std::set<int> dropped;
  for (const int member : awaited.members)
    if (!members.is_here(member) && ++kept > kMost) dropped.insert(member);
  const auto is_dropped = [&](int member) { return dropped.contains(member); };
  // What else it follows from has still to be new.
  std::erase_if(awaited.members, is_dropped);
  std::erase_if(awaited.known_by, is_dropped);
}

/// Whether ranks of other hosts have yet to read what this one has sent. All are asked at once.
bool Host::State::has_sent() const {
  bool has_sent = false;
  for (const auto& membership : all_memberships()) {
    const std::lock_guard lock(membership->mutex);
    if (membership->has_sent) has_sent = membership->has_sent() || has_sent;
  }
  return has_sent;
}

/// Whether a wait has lasted for so long that other hosts are asked about it: short ones, as those
/// of a pipeline, send nothing.
bool Host::State::may_ask(Clock::time_point since, Clock::time_point now) const noexcept {
  return now - since >= deadlock_after / 4;
}

bool Host::State::show_wait(Clock::time_point since, const std::vector<WaitPart>& parts,
                            Clock::time_point now) {
  if (parts.empty() || parts.size() > kWaitParts || !callers.is_only_one() ||
      PendingCallback::are_any()) {
    take_back_wait();
    return false;
  }
  std::uint64_t activity = 0;
  for (const auto& membership : all_memberships()) activity += membership->activity();
  const bool all_was_read = others == nullptr || (may_ask(since, now) && !has_sent());
  const std::lock_guard lock(shown_mutex);
  if (!shown_wait || shown_wait->parts != parts || shown_wait->activity != activity) {
    shown_wait = ShownParts{parts, activity, progress.visits(), now};
    own.show_wait(since, parts);
    return true;
  }
  const bool is_new = std::all_of(parts.begin(), parts.end(), [this](const WaitPart& part) {
    return part.as_of >= shown_wait->looked;
  });
  if (is_new && all_was_read && progress.has_looked_since(&shown_wait->visits)) {
    own.add_look();
    shown_wait->looked = now;
  }
  return true;
}

void Host::State::take_back_wait() noexcept {
  const std::lock_guard lock(shown_mutex);
  if (!std::exchange(shown_wait, std::nullopt)) return;
  own.take_back_wait();
}

// ---- looking -----------------------------------------------------------------------------------

std::vector<WaitFacts> Host::State::wait_facts(Asks asks) const {
  std::vector<WaitFacts> facts(static_cast<std::size_t>(roster.world_size()));
  for (const SlotIndex slot : shared.slots()) {
    const WorldRank of = roster.rank_in(slot);
    facts[of.index()] = read_wait(shared, slot);
    if (ended.contains(slot) || is_lost(of)) facts[of.index()].is_running = false;
  }
  if (others != nullptr) add_elsewhere(facts, asks);
  return facts;
}

/// Of ranks on other hosts the facts of those for whom this one waits, directly or in turn.
void Host::State::add_elsewhere(std::vector<WaitFacts>& facts, Asks asks) const {
  std::vector<bool> is_reached(facts.size());
  std::vector<WorldRank> reached = {rank};
  is_reached[rank.index()] = true;
  for (std::size_t next = 0; next < reached.size(); ++next) {
    for (const WaitPart& part : facts[reached[next].index()].parts) {
      for (const WorldRank awaited : part.awaited) {
        if (is_reached[awaited.index()]) continue;
        is_reached[awaited.index()] = true;
        WaitFacts& theirs = facts[awaited.index()];
        if (!roster.is_here(awaited)) theirs = wait_elsewhere(awaited, asks);
        const bool waits = theirs.is_running && theirs.version != 0;
        if (waits) reached.push_back(awaited);
        if (!waits && part.one_suffices) break;
      }
    }
  }
}

WaitFacts Host::State::wait_elsewhere(WorldRank of, Asks asks) const {
  WaitFacts facts = others->wait_of(of);
  facts.is_elsewhere = true;
  facts.is_running = facts.is_running && !is_lost(of) && !others->has_left(of);
  if (asks == Asks::yes) others->ask_wait(of);
  return facts;
}

/// Whether it is time to ask: for long waits alone, and less often where many wait.
Host::State::Asks Host::State::asks_elsewhere(Clock::time_point now) {
  const std::optional<Clock::time_point> since = own.waits_since();
  if (others == nullptr || now < next_wait_questions || !since || !may_ask(*since, now))
    return Asks::no;
  const std::chrono::microseconds pause{500 * roster.world_size()};
  next_wait_questions = now + std::max<Clock::duration>(kDeadlockLook, pause);
  return Asks::yes;
}

std::size_t Host::State::count_failed(const Verdict& verdict) const {
  const auto all = all_memberships();
  const auto has_failed = [&](GroupId group) {
    const auto is_here = [&](const auto& membership) {
      return membership->id == group && membership->abort_word.load() != kRunning;
    };
    // This rank need not be a member of all of them.
    const auto is_remembered = [&](const Verdict& each) { return each.fails(group); };
    return std::any_of(all.begin(), all.end(), is_here) ||
           std::any_of(remembered.begin(), remembered.end(), is_remembered);
  };
  const auto count = std::count_if(verdict.groups.begin(), verdict.groups.end(), has_failed);
  return static_cast<std::size_t>(count);
}

bool Host::State::concerns(const EndedGroups& groups, const DeadlockClock& clock) const noexcept {
  if (groups.all) return true;
  return std::any_of(clock.seen.begin(), clock.seen.end(), [&](const DeadlockClock::Seen& seen) {
    return std::any_of(groups.ids.begin(), groups.ids.end(), [&](GroupId group) {
      return roster.is_here(seen.rank) ? shared.has_line(roster.slot_of(seen.rank), group)
                                       : others->state_of(group, seen.rank).has_value();
    });
  });
}

void Host::State::look_for_deadlocks(Clock::time_point now) try {
  if (deadlock == Deadlock::off || now < next_deadlock_look) return;
  next_deadlock_look = now + kDeadlockLook;
  // Who does not wait is in no knot, and need not read what the others show.
  const bool waits = own.waits_since().has_value();
  const std::vector<WaitFacts> facts =
      waits ? wait_facts(asks_elsewhere(now)) : std::vector<WaitFacts>();
  {
    const std::lock_guard lock(log_mutex);
    apply_new_entries();
    if (concerns(std::exchange(ended_groups, {}), deadlock_clock)) deadlock_clock.seen.clear();
  }
  if (!waits) return;
  const std::optional<Knot> knot =
      look_for_deadlock(rank, facts, deadlock_clock, now, deadlock_after);
  if (!knot) return;
  const std::string text = words_of(*knot, facts);
  if (deadlock == Deadlock::warn) return tutti::log(LogLevel::warn, text);
  Verdict verdict{.code = ErrorCode::kDeadlock,
                  .groups = groups_of(*knot, facts),
                  .culprits = knot->ranks(),
                  .text = text,
                  .finder = rank};
  const bool stood = enter_parts(verdict, [&] {
    // Whose group has failed is told of that cause.
    return !concerns(ended_groups, deadlock_clock) && count_failed(verdict) == 0 &&
           still_stands(deadlock_clock, wait_facts(Asks::no));
  });
  if (!stood) deadlock_clock = {};  // what is left of it is a knot that is seen first from now on
} catch (const std::bad_alloc&) {
  deadlock_clock = {};  // part of a look is none
  throw;
}

}  // namespace tutti::control
