#include "control/relay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "control/hosts/vote_frame.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

/// Entries that the vote keeps for hosts that are behind: as many as may be entered at a time, and
/// still be read.
constexpr std::size_t kKept = kChosen / 2;

}  // namespace

Relay::Relay(const Board& board, const Roster& roster, SlotOwner& own, OtherHosts& others,
             std::function<bool(WorldRank)> is_lost, std::function<void()> apply_log)
    : board_(board),
      roster_(roster),
      own_(own),
      others_(others),
      is_lost_(std::move(is_lost)),
      apply_log_(std::move(apply_log)),
      log_(board, own),
      place_(board, own, roster.host_count()),
      seen_(static_cast<std::size_t>(board.slot_count())) {}

void Relay::tick(Clock::time_point now, Clock::time_point* next) noexcept {
  own_.beat();
  try {
    // Another one has taken over while this rank was stopped. It need not find out by writing: it
    // may wait for an answer that has gone to that one.
    if (is_relay_ && VoteBytes::relay_on(board_) != own_.index()) leave();
    if (!is_relay_ && is_due(now)) take_over(now);
    if (is_relay_) *next = std::min(*next, take_part(now));
  } catch (const Error& error) {
    // Another rank takes over, or this one tries again.
    log(LogLevel::error, error.what());
    leave();
  } catch (const std::bad_alloc&) {
    give_back_memory_reserve();
    leave();
  }
}

void Relay::leave() noexcept {
  if (!std::exchange(is_relay_, false)) return;
  tell_own_ranks(false);
  others_.links().close();
}

// ---- who is the relay --------------------------------------------------------------------------

/// Whether this rank is the lowest that is well, and the relay is not.
bool Relay::is_due(Clock::time_point now) {
  const auto relay = VoteBytes::relay_on(board_);
  bool is_first = true, has_relay = false;
  for (const SlotIndex slot : board_.slots()) {
    if (slot == own_.index() || !is_well(slot, now)) continue;
    has_relay = has_relay || slot == relay;
    is_first = is_first && slot > own_.index();
  }
  return is_first && !has_relay;
}

/// Whether the owner lives, and has not been silent for long while this rank has looked.
bool Relay::is_well(SlotIndex slot, Clock::time_point now) {
  Seen& seen = seen_[slot.index()];
  const std::uint64_t beat = board_.beat_of(slot);
  if (seen.beat != beat || seen.since == Clock::time_point{}) seen = {beat, now};
  return board_.is_running(slot) && now < seen.since + kVoteOvertake;
}

void Relay::take_over(Clock::time_point now) {
  pass_entered();
  auto vote = place_.take_over(next_entry_);
  if (!vote) return;
  is_relay_ = true;
  vote_ = *std::move(vote);
  memory_ = {};
  memory_.active = now;
  failed_.clear();
  heard_until_.clear();
  for (const Entry& entry : vote_.entries)
    failed_.insert(entry.verdict.groups.begin(), entry.verdict.groups.end());
  others_.links().part_from(vote_.vote.cut_off);
  others_.links().open();
}

// ---- its part ----------------------------------------------------------------------------------

Clock::time_point Relay::take_part(Clock::time_point now) {
  enter_chosen();  // what an earlier relay has not got to
  others_.links().report();
  Clock::time_point next = Clock::time_point::max();
  if (!step(now, -1, nullptr, &next)) return now;
  while (auto received = others_.links().receive()) {
    const auto& [from, bytes] = *received;
    const auto frame = decode_vote_frame(bytes, roster_.host_count());
    if (!frame || frame->vote.number > vote_.vote.number + kMostBehind) {
      log(LogLevel::error, "host " + roster_.host(from).name + " sent what is no vote: dropped");
      continue;
    }
    if (!step(now, from, &*frame, &next)) return now;
  }
  return next;
}

/// False: another rank has taken over.
bool Relay::step(Clock::time_point now, int from, const VoteFrame* frame, Clock::time_point* next) {
  for (;;) {
    const std::vector<HostFacts> facts = others_.links().facts();
    note_dead(now, facts, next);
    const std::optional<Entry> want = find_want(facts);
    HostVote after = vote_;
    VoteStep step = step_vote(after, memory_,
                              {.self = roster_.own_host(),
                               .now = now,
                               .facts = facts,
                               .want = want,
                               .from = from,
                               .frame = frame,
                               .kept = kKept});
    if (after != vote_ && !place_.write(after)) {
      leave();
      return false;
    }
    vote_ = std::move(after);
    for (auto& [host, each] : step.frames) others_.links().send(host, encode(each));
    if (step.entered) {
      others_.links().part_from(vote_.vote.cut_off);
      // Who is told may end at once, and this process with it.
      if (!step.frames.empty()) others_.links().await_sent();
      enter_chosen();
    }
    tell_own_ranks(step.held_up);
    *next = std::min(*next, step.next);
    if (step.next > now) return true;
    from = -1;
    frame = nullptr;
  }
}

void Relay::pass_entered() {
  Verdict there;
  for (;;) {
    const BoardLog::State state = log_.read(next_entry_, &there);
    if (state == BoardLog::State::open) return;
    next_entry_ =
        state == BoardLog::State::missed ? log_.after_missed(next_entry_) : next_entry_ + 1;
  }
}

/// What the log on the board lacks. The ranks of a host that has slept through entries are told who
/// is lost by now; what has failed they read off the lines of others.
void Relay::enter_chosen() {
  pass_entered();
  const std::uint64_t first = next_entry_;
  for (; next_entry_ <= vote_.vote.number; ++next_entry_) {
    const Entry* const entry = entry_of(vote_, next_entry_);
    const Verdict losses{.culprits = vote_.lost_before};
    if (entry != nullptr) {
      failed_.insert(entry->verdict.groups.begin(), entry->verdict.groups.end());
      log_.enter_chosen(next_entry_, &entry->verdict);
    } else {
      const bool is_first = next_entry_ == first && !vote_.lost_before.empty();
      log_.enter_chosen(next_entry_, is_first ? &losses : nullptr);
    }
  }
  if (next_entry_ == first) return;
  apply_log_();
  rouse_others(board_, own_.index());
}

// ---- what its ranks wish -----------------------------------------------------------------------

std::optional<Entry> Relay::find_want(const std::vector<HostFacts>& facts) const {
  if (!vote_.hosts.contains(roster_.own_host())) return std::nullopt;
  Entry losses{.verdict = {.finder = roster_.rank_in(own_.index())}, .out = {}};
  add_losses(facts, losses);
  if (!losses.verdict.culprits.empty()) return losses;
  std::optional<Entry> failure = find_failure();
  return failure ? std::move(failure) : find_last_word(facts);
}

/// A cut may part this host from several, of which one is found silent before the others. All that
/// it parts belong into one entry: while another host is in doubt, nobody is named for silence.
void Relay::add_losses(const std::vector<HostFacts>& facts, Entry& losses) const {
  using State = HostFacts::State;
  std::vector<WorldRank>& culprits = losses.verdict.culprits;
  const bool is_sure = std::none_of(facts.begin(), facts.end(), [](const HostFacts& each) {
    return each.state == State::doubtful;
  });
  std::vector<std::string> unreachable;
  for (int host = 0; host < roster_.host_count(); ++host) {
    const State state = facts[static_cast<std::size_t>(host)].state;
    const bool is_off = (vote_.vote.cut_off - vote_.vote.gone).contains(host);
    const bool is_lost = state == State::dead || (state == State::cut && is_sure) ||
                         (state != State::left && is_off);
    if (host == roster_.own_host() || !is_lost) continue;
    losses.out.insert(host);
    if (state != State::dead) unreachable.push_back(name_apart(host));
    for (const WorldRank rank : roster_.host(host).ranks)
      if (!is_lost_(rank) && !has_ended_well(host, rank)) culprits.push_back(rank);
  }
  const std::vector<WorldRank> here = lost_here();
  culprits.insert(culprits.end(), here.begin(), here.end());
  std::sort(culprits.begin(), culprits.end());
  if (!unreachable.empty()) losses.verdict.text = out_of_reach(unreachable);
}

/// When hosts were found dead, and until when that they have said goodbye excuses them.
void Relay::note_dead(Clock::time_point now, const std::vector<HostFacts>& facts,
                      Clock::time_point* next) {
  now_ = now;
  for (int host = 0; host < roster_.host_count(); ++host) {
    if (facts[static_cast<std::size_t>(host)].state != HostFacts::State::dead) continue;
    const auto until = heard_until_.try_emplace(host, now + kVoteOvertake).first->second;
    if (now < until) *next = std::min(*next, until);
  }
}

/// Whether a rank has left, or is of a dead host and had said goodbye to all its groups: as on one
/// host it may have ended without another word. Ranks of this host hear that goodbye soon, too. If
/// one awaits it for long, it has not been sent to that one.
bool Relay::has_ended_well(int host, WorldRank rank) const {
  if (others_.has_left(rank)) return true;
  const auto until = heard_until_.find(host);
  if (until == heard_until_.end()) return false;
  const std::vector<GroupId> groups = others_.said_goodbye_to(rank);
  const bool is_awaited = std::any_of(groups.begin(), groups.end(),
                                      [this](GroupId group) { return goes_on_here(group); });
  return !groups.empty() && (!is_awaited || now_ < until->second);
}

/// A host's name; where others have the same one, with its first rank.
std::string Relay::name_apart(int host) const {
  const std::string& name = roster_.host(host).name;
  for (int other = 0; other < roster_.host_count(); ++other) {
    if (other == host || roster_.host(other).name != name) continue;
    return fmt::format("{} (of rank {})", name, roster_.host(host).ranks.front().value);
  }
  return name;
}

/// That processes were lost with the way to them, and may live.
std::string Relay::out_of_reach(const std::vector<std::string>& hosts) const {
  constexpr std::size_t kMost = 16;
  const std::size_t named = std::min(hosts.size(), kMost);
  return fmt::format(
      "{} and {}{} do not reach each other (nothing was acknowledged for 2 s): the network or a "
      "host is down, and processes on the other side may live and go on by themselves",
      name_apart(roster_.own_host()),
      fmt::join(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      hosts.size() == named ? "" : fmt::format(" and {} more", hosts.size() - named));
}

/// Those whom a rank of this host wishes to be declared lost, and no entry has.
std::vector<WorldRank> Relay::lost_here() const {
  std::vector<WorldRank> lost;
  for (const SlotIndex slot : board_.slots()) {
    const auto wish = read_wish(board_, slot);
    if (!wish || !wish->is_loss()) continue;
    for (const WorldRank rank : wish->culprits)
      if (!is_lost_(rank)) lost.push_back(rank);
  }
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  return lost;
}

/// While another host, or its silence, holds up the entry, the ranks of this host are told which
/// deaths it has seen itself. The entry may then say something else.
void Relay::tell_own_ranks(bool is_held_up) {
  std::vector<WorldRank> lost = is_held_up ? lost_here() : std::vector<WorldRank>{};
  if (lost == told_) return;
  own_.publish_held_up(lost);
  told_ = std::move(lost);
  if (!told_.empty()) rouse_others(board_, own_.index());
}

/// The first failure of a group that none has entered yet.
std::optional<Entry> Relay::find_failure() const {
  for (const SlotIndex slot : board_.slots()) {
    auto wish = read_wish(board_, slot);
    if (!wish || wish->is_loss()) continue;
    const bool is_new = std::none_of(wish->groups.begin(), wish->groups.end(),
                                     [&](GroupId group) { return failed_.contains(group); });
    if (is_new) return Entry{*std::move(wish), {}};
  }
  return std::nullopt;
}

/// Whether a rank of this host has the group, if only to close it, and does not know that it has
/// failed.
bool Relay::goes_on_here(GroupId group) const {
  if (failed_.contains(group)) return false;
  for (const SlotIndex slot : board_.slots()) {
    const Line* const line = board_.find_line(slot, group);
    if (line != nullptr && !shows_failure(*line) && !has_compared(state_of(*line))) return true;
  }
  return false;
}

/// This host may have been stopped while the others entered a failure and left: nobody says it
/// again, but their lines show it.
std::optional<Entry> Relay::find_last_word(const std::vector<HostFacts>& facts) const {
  std::optional<Entry> without_text;
  for (int host = 0; host < roster_.host_count(); ++host) {
    if (host == roster_.own_host()) continue;
    if (facts[static_cast<std::size_t>(host)].state != HostFacts::State::left) return std::nullopt;
    for (const WorldRank rank : roster_.host(host).ranks) {
      for (const auto& [group, failure] : others_.failures_of(rank)) {
        if (failure.code == ErrorCode::kPeerLost || !goes_on_here(group)) continue;
        Entry entry{.verdict = {.code = failure.code,
                                .groups = {group},
                                .culprits = tutti::world_ranks(failure.culprits),
                                .text = failure.text,
                                .finder = rank},
                    .out = {}};
        if (!failure.text.empty()) return entry;
        if (without_text) continue;
        entry.verdict.text =
            fmt::format("rank {} (on {}) had failed ({}) before it left", rank.value,
                        roster_.host(host).name, name_of(failure.code));
        without_text = std::move(entry);
      }
    }
  }
  return without_text;
}

}  // namespace tutti::control
