#include "simulate/votes/hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti::simulate::votes {

using control::Ballot;
using control::HostFacts;
using control::Verdict;
using control::Vote;
using std::chrono::milliseconds;

namespace {

/// The decider of a host looks for further deaths so long.
constexpr milliseconds kFreeze{20};
/// A link without an ACK for so long is cut.
constexpr milliseconds kCut{2000};

double ms(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

State::State(const Plan& plan) : links(plan.hosts()) {
  for (const int processes : plan.processes) {
    Host host;
    host.board = control::first_vote(plan.hosts());
    host.processes.resize(static_cast<std::size_t>(processes));
    hosts.push_back(std::move(host));
  }
}

bool State::runs(int index) const {
  const Host& each = host(index);
  if (each.relay < 0) return false;
  const Process& relay = each.processes[static_cast<std::size_t>(each.relay)];
  return !relay.dead && relay.stopped_until <= now;
}

std::optional<Entry> State::want_of(int self, const std::vector<HostFacts>& facts) const {
  const Host& own = host(self);
  if (!own.board.hosts.contains(self)) return std::nullopt;
  Entry losses;
  const auto lose = [&](int index, int process) {
    const WorldRank rank(rank_of(index, process));
    if (!own.lost.contains(rank)) losses.verdict.culprits.push_back(rank);
  };
  for (int index = 0; index < count(); ++index) {
    const auto state = facts[static_cast<std::size_t>(index)].state;
    const bool is_lost = index != self && state != HostFacts::State::left &&
                         (state != HostFacts::State::reachable ||
                          (own.board.vote.cut_off - own.board.vote.gone).contains(index));
    if (is_lost) losses.out.insert(index);
    const auto& processes = host(index).processes;
    for (int process = 0; process < static_cast<int>(processes.size()); ++process) {
      const Process& each = processes[static_cast<std::size_t>(process)];
      if (is_lost || (index == self && each.dead && each.died + kFreeze <= now))
        lose(index, process);
    }
  }
  losses.verdict.finder = WorldRank(self * kRanksOfAHost);
  if (!losses.verdict.culprits.empty()) return losses;
  if (own.pending.empty()) return std::nullopt;
  Entry failure;
  failure.verdict.code = ErrorCode::kAborted;
  failure.verdict.groups = {own.pending.front().group};
  failure.verdict.finder = WorldRank(self * kRanksOfAHost);
  failure.verdict.text = fmt::format("as host {} has it", self);
  return failure;
}

// ---- what must hold -----------------------------------------------------------------------------

bool Checks::have_parted(int one, int other) const {
  return state_.host(one).board.vote.cut_off.contains(other) ||
         state_.host(other).board.vote.cut_off.contains(one);
}

void Checks::wanted(const Entry& entry) {
  if (wanted_.empty() || wanted_.back() != entry.verdict) wanted_.push_back(entry.verdict);
}

std::string Checks::written(int host, const HostVote& before, const HostVote& after) {
  std::string wrong = is_legal(host, before, after);
  for (std::uint64_t number = before.vote.number + 1; wrong.empty() && number <= after.vote.number;
       ++number)
    if (const Entry* const entry = control::entry_of(after, number))
      wrong = entered(host, number, *entry);
  if (wrong.empty()) wrong = cut_off(host, before, after);
  return wrong;
}

std::string Checks::is_legal(int host, const HostVote& before, const HostVote& after) {
  const Vote &was = before.vote, &is = after.vote;
  if (is.number < was.number || !was.cut_off.is_within(is.cut_off) || !was.gone.is_within(is.gone))
    return fmt::format("host {} forgets what it knew", host);
  if (is.number == was.number && is.promised < was.promised)
    return fmt::format("host {} forgets a promise", host);
  if (is.number == was.number && is.accepted != was.accepted && is.accepted < was.promised)
    return fmt::format("host {} accepts a ballot below its promise", host);
  if (is.accepted.is_none()) return "";
  for (const auto& [number, ballot, value] : proposed_)
    if (number == is.number && ballot == is.accepted) {
      if (value == is.value) return "";
      return fmt::format("ballot ({}, host {}) for entry {} has two values", ballot.round,
                         ballot.host, number + 1);
    }
  proposed_.emplace_back(is.number, is.accepted, is.value);
  return "";
}

std::string Checks::entered(int host, std::uint64_t number, const Entry& entry) {
  for (int other = 0; other < state_.count(); ++other) {
    const auto& entries = state_.host(other).entries;
    if (other == host || state_.host(other).is_dead() || have_parted(host, other)) continue;
    if (number > entries.size() || state_.host(other).has_slept_through[number - 1]) continue;
    if (entries[number - 1] != entry)
      return fmt::format("(a) entry {} differs on host {} and host {}", number, host, other);
  }
  if (std::find(wanted_.begin(), wanted_.end(), entry.verdict) == wanted_.end())
    return fmt::format("entry {} on host {} is what nobody wanted", number, host);
  return is_true(entry);
}

/// Nobody is lost who lives and can be reached.
std::string Checks::is_true(const Entry& entry) const {
  if (!entry.verdict.is_loss()) return "";
  for (const auto [rank] : entry.verdict.culprits) {
    const int named = host_of(rank);
    const int process = rank % kRanksOfAHost;
    bool is_excused = state_.host(named).processes[static_cast<std::size_t>(process)].dead;
    for (int other = 0; other < state_.count(); ++other)
      is_excused = is_excused || have_parted(named, other) ||
                   (other != named && state_.links.longest_down(named, other, state_.now) >= kCut);
    if (!is_excused) return fmt::format("rank {} lives, can be reached, and is lost", rank);
  }
  return "";
}

std::string Checks::cut_off(int host, const HostVote& before, const HostVote& after) const {
  for (const int gone : (after.vote.gone - before.vote.gone).members())
    if (!state_.host(gone).is_dead())
      return fmt::format("host {} lives, and host {} takes it for dead", gone, host);
  if (!after.hosts.contains(host)) return "";
  const HostSet now_off = after.vote.cut_off - after.vote.gone - before.vote.cut_off;
  for (const int other : now_off.members()) {
    const bool told = state_.host(other).board.vote.cut_off.contains(host);
    const bool unheard = state_.links.longest_down(host, other, state_.now) >= kCut;
    bool between = false;
    for (const int third : (before.hosts - before.vote.cut_off).members())
      between = between || (third != host && have_parted(third, other));
    if (!told && !unheard && !between)
      return fmt::format("(c) host {} parts from host {}, which it reaches", host, other);
    // Those that were heard less than kPart ago count as near, but for who has just said that it
    // has parted: without it there may be no quorum, and the silent ones have been so for as long.
    const Time long_ago = state_.now - control::kPart + milliseconds(10);
    int near = 1;
    for (const int third : (before.hosts - before.vote.cut_off - after.vote.gone).members()) {
      const bool has_said_so = after.vote.cut_off.contains(third) &&
                               state_.host(third).board.vote.cut_off.contains(host);
      const bool is_near =
          state_.links.is_up(host, third) || state_.links.down_since(host, third) > long_ago;
      if (third != host && is_near && !has_said_so) ++near;
    }
    const bool is_calm = state_.now - state_.calm_since > milliseconds(100);
    if (!told && !between && is_calm && before.vote.number == after.vote.number &&
        2 * near > before.hosts.size())
      return fmt::format(
          "(c) host {} parts from host {} although it reaches a majority, or did not long ago",
          host, other);
  }
  return "";
}

std::string Checks::ignored(const HostVote& before, const HostVote& after, const char* why) const {
  if (before == after) return "";
  return fmt::format("a frame has changed something, and {}", why);
}

/// How long it may take until something is entered, if nothing befalls anybody meanwhile: P1, or P2
/// if a link was cut.
Clock::duration Checks::limit() const {
  bool was_cut = false;
  for (int one = 0; one < state_.count(); ++one)
    for (int other = 0; other < one; ++other)
      was_cut = was_cut || state_.links.longest_down(one, other, state_.now) > Clock::duration(0);
  return (was_cut ? milliseconds(3600) : milliseconds(1000)) + 8 * plan_.longest_delay;
}

std::string Checks::settled(int host, Time since) const {
  const Clock::duration took = state_.now - std::max(since, state_.calm_since);
  if (took <= limit()) return "";
  return fmt::format("(b) host {} has waited {:.0f} ms for an entry", host, ms(took));
}

/// Those with which a host can vote, if they are not stopped. One that has parted from it and was
/// stopped before it could say so is one that is stopped: it holds up the vote until it goes on.
HostSet Checks::near_to(int host) const {
  HostSet near;
  const Host& own = state_.host(host);
  for (const int other : own.board.hosts.members()) {
    const bool reaches = !state_.host(other).is_dead() && state_.links.is_up(host, other);
    const bool has_parted =
        own.board.vote.cut_off.contains(other) || (state_.runs(other) && have_parted(host, other));
    if (other == host || (reaches && !has_parted)) near.insert(other);
  }
  return near;
}

std::string Checks::has_come_to_rest(int host, const std::vector<HostFacts>& facts) const {
  const Host& own = state_.host(host);
  const auto want = state_.want_of(host, facts);
  if (!want) return "";
  const HostSet& all = own.board.hosts;
  const HostSet near = near_to(host);
  int running = 0;
  bool stopped = false;  // a host for which one of those near may have to wait
  for (const int other : near.members()) {
    running += state_.runs(other) ? 1 : 0;
    for (const int third : near_to(other).members()) stopped = stopped || !state_.runs(third);
  }
  const bool whole = near == all - own.board.vote.cut_off;
  if (2 * running > all.size() || (whole && !stopped))
    return fmt::format("(b) host {} still waits for an entry, and reaches a quorum", host);
  if (2 * near.size() <= all.size() && !whole)
    return fmt::format("(c) host {} reaches no quorum and has not parted", host);
  if (!own.held_up) return fmt::format("(d) host {} is held up and does not tell its ranks", host);
  return "";
}

std::string Checks::at_end(const std::vector<std::vector<HostFacts>>& facts) const {
  for (int host = 0; host < state_.count(); ++host) {
    if (!state_.runs(host)) continue;
    std::string wrong = has_come_to_rest(host, facts[static_cast<std::size_t>(host)]);
    if (!wrong.empty()) return wrong;
    for (int other = 0; other < host; ++other) {
      if (!state_.runs(other) || !state_.links.is_up(host, other) || have_parted(host, other))
        continue;
      const auto [behind, ahead] = std::minmax({host, other}, [&](int one, int two) {
        return state_.host(one).board.vote.number < state_.host(two).board.vote.number;
      });
      const HostVote &one = state_.host(behind).board, &two = state_.host(ahead).board;
      if (one.vote.number < two.vote.number && one.hosts.contains(behind))
        return fmt::format("(b) host {} knows {} entries, host {} knows {}", behind,
                           one.vote.number, ahead, two.vote.number);
    }
  }
  return "";
}

}  // namespace tutti::simulate::votes
