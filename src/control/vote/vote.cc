#include "control/vote/vote.h"

#include <algorithm>
#include <utility>

namespace tutti::control {

HostVote first_vote(int host_count) {
  HostVote host;
  host.hosts = HostSet::first(host_count);
  return host;
}

bool may_replace(const HostVote& there, const HostVote& next) noexcept {
  return there.term == next.term;
}

const Entry* entry_of(const HostVote& host, std::uint64_t number) noexcept {
  const std::uint64_t before = host.vote.number - host.entries.size();
  if (number <= before || number > host.vote.number) return nullptr;
  return &host.entries[number - before - 1];
}

void forget_oldest(HostVote& host) {
  const Verdict& oldest = host.entries.front().verdict;
  if (oldest.is_loss())
    host.lost_before.insert(host.lost_before.end(), oldest.culprits.begin(), oldest.culprits.end());
  host.entries.erase(host.entries.begin());
}

namespace {

using State = HostFacts::State;
using Peer = VoteMemory::Peer;

class Voter {
 public:
  Voter(HostVote& host, VoteMemory& memory, const VoteInput& input)
      : host_(host), vote_(host.vote), memory_(memory), input_(input) {
    memory_.peers.resize(input.facts.size());
  }

  VoteStep run() && {
    const HostSet before = vote_.cut_off;
    if (input_.frame != nullptr) take(input_.from, *input_.frame);
    for (int host = 0; host < count(); ++host) take_facts(host);
    if (votes()) {
      part();
      propose();
    }
    for (int host = 0; host < count(); ++host) tell(host);
    // Both change what is wanted.
    if (step_.entered || vote_.cut_off != before) step_.next = input_.now;
    return std::move(step_);
  }

 private:
  // ---- what is known --------------------------------------------------------------------------

  int count() const noexcept { return static_cast<int>(input_.facts.size()); }
  int self() const noexcept { return input_.self; }
  const HostFacts& facts_of(int host) const { return input_.facts[static_cast<std::size_t>(host)]; }
  Peer& peer_of(int host) const { return memory_.peers[static_cast<std::size_t>(host)]; }
  bool votes() const noexcept { return host_.hosts.contains(self()); }
  /// What `host` has shown of its vote for the entry that is to be chosen.
  const Vote* vote_of(int host) const {
    if (host == self()) return &vote_;
    const auto& seen = peer_of(host).seen;
    return seen && seen->number == vote_.number ? &*seen : nullptr;
  }
  /// Whom `host` has cut off, as far as it has said so.
  HostSet cut_off_of(int host) const {
    if (host == self()) return vote_.cut_off;
    const auto& seen = peer_of(host).seen;
    return seen ? seen->cut_off : HostSet{};
  }
  const Entry* want() const noexcept {
    return input_.want && !step_.entered ? &*input_.want : nullptr;
  }
  bool reaches(int host) const {
    if (host == self()) return true;
    return facts_of(host).state != State::cut && !vote_.cut_off.contains(host);
  }
  HostSet reached() const {
    HostSet set;
    for (const int host : host_.hosts.members())
      if (reaches(host)) set.insert(host);
    return set;
  }
  bool is_majority(const HostSet& set) const noexcept {
    return 2 * set.size() > host_.hosts.size();
  }

  // ---- what comes in --------------------------------------------------------------------------

  void take(int from, const VoteFrame& frame) {
    Peer& peer = peer_of(from);
    if (vote_.cut_off.contains(from) || frame.term < peer.term) return;
    peer.term = frame.term;
    if (frame.vote.cut_off.contains(self())) return vote_.cut_off.insert(from);
    const bool is_news = !peer.seen || !same_ballots(*peer.seen, frame.vote);
    peer.seen = frame.vote;
    peer.want = frame.want;
    take_gone(frame.vote.gone - HostSet{self()});
    learn_from(frame);
    if (votes() && host_.hosts.contains(from) && frame.vote.number == vote_.number)
      vote_for(from, frame.vote, is_news);
  }

  static bool same_ballots(const Vote& one, const Vote& other) noexcept {
    return one.number == other.number && one.promised == other.promised &&
           one.accepted == other.accepted;
  }

  void take_gone(const HostSet& hosts) {
    vote_.gone |= hosts;
    vote_.cut_off |= hosts;
  }

  void take_facts(int host) {
    if (host == self() || !is_over(facts_of(host).state)) return;
    if (!vote_.gone.contains(host)) take_gone({host});
  }

  /// A host that is left out stops at the entry that says so, and knows no later one.
  void learn_from(const VoteFrame& frame) {
    if (frame.entries.empty() || frame.vote.number <= vote_.number || !votes()) return;
    const std::uint64_t before = frame.vote.number - frame.entries.size();
    if (before > vote_.number) return skip_to(frame);
    for (std::size_t i = vote_.number - before; votes() && i < frame.entries.size(); ++i)
      add(frame.entries[i]);
  }

  void skip_to(const VoteFrame& frame) {
    host_.entries = frame.entries;
    host_.lost_before = frame.lost_before;
    host_.hosts = frame.hosts;
    if (!votes()) {
      // Left out by one of these: it tells none, and nobody must wait for what it knows.
      while (!host_.entries.empty()) forget_oldest(host_);
      vote_.cut_off |= HostSet::first(count()) - HostSet{self()};
    }
    step_.missed = true;
    enter(frame.vote.number);
  }

  void add(const Entry& entry) {
    host_.hosts -= entry.out;
    host_.entries.push_back(entry);
    if (host_.entries.size() > input_.kept) forget_oldest(host_);
    enter(vote_.number + 1);
  }

  void enter(std::uint64_t number) {
    vote_.number = number;
    vote_.promised = vote_.accepted = {};
    vote_.value = {};
    step_.entered = true;
  }

  /// Only a proposer's own vote is a proposal or a question. Whoever shows the same ballots again,
  /// for another reason, gets no more time for them.
  void vote_for(int from, const Vote& shown, bool is_news) {
    if (is_news && (shown.promised > vote_.promised || shown.promised.host == from))
      memory_.active = input_.now;
    if (shown.accepted.host == from && shown.accepted >= vote_.promised) {
      vote_.promised = vote_.accepted = shown.accepted;
      vote_.value = shown.value;
    }
    if (shown.promised.host == from && shown.promised > vote_.promised)
      vote_.promised = shown.promised;
  }

  // ---- parting --------------------------------------------------------------------------------

  void part() {
    const HostSet near = reached();
    if (is_majority(near)) return;
    const HostSet far = host_.hosts - near - vote_.cut_off;
    if (far.empty()) return close_ranks(near);
    const Clock::time_point when = after(quorum_lost(near, far), kPart);
    if (input_.now < when) return wake(when);
    vote_.cut_off |= far;
    close_ranks(near);
  }

  /// When the last one of `far` went without which there is no quorum.
  Clock::time_point quorum_lost(HostSet near, const HostSet& far) const {
    std::vector<std::pair<Clock::time_point, int>> last;
    for (const int host : far.members()) last.emplace_back(facts_of(host).heard, host);
    std::sort(last.rbegin(), last.rend());
    for (const auto& [heard, host] : last) {
      near.insert(host);
      if (is_majority(near) || (host_.hosts - near).is_within(vote_.cut_off)) return heard;
    }
    return last.back().first;
  }

  /// Those that stay together must all reach each other: of two that do not, the lower one stays.
  void close_ranks(const HostSet& near) {
    for (const int host : near.members()) {
      if (host == self() || vote_.cut_off.contains(host)) continue;
      for (const int other : cut_off_of(host).members()) {
        if (near.contains(other) && !vote_.cut_off.contains(other))
          vote_.cut_off.insert(std::max(host, other));
      }
    }
  }

  // ---- proposing ------------------------------------------------------------------------------

  void propose() {
    keep_time();
    if (begin_is_due()) begin();
    if (vote_.promised.host == self() && vote_.accepted != vote_.promised &&
        is_quorum(&Vote::promised))
      propose_value();
    if (vote_.accepted.host == self() && vote_.accepted == vote_.promised &&
        is_quorum(&Vote::accepted))
      add(Entry(vote_.value));
  }

  void keep_time() {
    if (memory_.number != vote_.number) memory_.wanted_since = std::nullopt;
    if (memory_.number != vote_.number || memory_.cut_off != vote_.cut_off) {
      // Others than before have a say: the turns begin anew.
      memory_.number = vote_.number;
      memory_.cut_off = vote_.cut_off;
      memory_.tries = 0;
      memory_.open_since = std::nullopt;
    }
    const auto keep = [&](bool holds, std::optional<Clock::time_point>& since) {
      if (!holds) since = std::nullopt;
      if (holds && !since) since = input_.now;
    };
    keep(is_open() && may_ask(), memory_.open_since);
    keep(want() != nullptr, memory_.wanted_since);
    if (!memory_.wanted_since) return;
    const Clock::time_point held_up = *memory_.wanted_since + kHeldUp;
    step_.held_up = input_.now >= held_up;
    if (!step_.held_up) wake(held_up);
  }

  /// Whether there is something to choose, or perhaps chosen already by a proposer that has gone.
  bool is_open() const { return !vote_.accepted.is_none() || find_want() != nullptr; }

  /// What this host would propose of its own accord, or for one that has told it.
  const Entry* find_want() const {
    if (want() != nullptr) return want();
    for (const int host : host_.hosts.members()) {
      if (host != self() && vote_of(host) != nullptr && peer_of(host).want)
        return &*peer_of(host).want;
    }
    return nullptr;
  }

  int leader() const { return reached().lowest(); }

  /// Whether a quorum could answer this host. One of kind 2 could not while somebody in it still
  /// hears a host that this one has cut off: that host may be the one that reaches enough.
  bool may_ask() const {
    const HostSet near = reached();
    if (is_majority(near)) return true;
    // Who takes the question takes from it who is gone.
    const HostSet others = host_.hosts - near - vote_.gone;
    const std::vector<int> all = near.members();
    return std::all_of(all.begin(), all.end(),
                       [&](int host) { return others.is_within(cut_off_of(host)); });
  }

  Ballot highest_promise() const {
    Ballot highest = vote_.promised;
    for (const int host : host_.hosts.members())
      if (const Vote* const vote = vote_of(host)) highest = std::max(highest, vote->promised);
    return highest;
  }

  bool begin_is_due() {
    if (!memory_.open_since) return false;
    const Ballot highest = highest_promise();
    if (!highest.is_none() && highest.host == self()) return false;  // it is under way
    const bool is_free = highest.is_none() || !reaches(highest.host);
    if (leader() == self() && is_free && memory_.tries == 0) return true;
    int before = 0;
    for (const int host : host_.hosts.members()) before += host < self() ? 1 : 0;
    // Twice as long after each try, and each host differently: one of them gets through.
    const Clock::duration wait =
        (kVoteOvertake + before * kVoteStagger) * (1 << std::min(memory_.tries, 4));
    const Clock::time_point when = std::max(*memory_.open_since, memory_.active) + wait;
    if (input_.now < when) wake(when);
    return input_.now >= when;
  }

  void begin() {
    ++memory_.tries;
    const Ballot highest = highest_promise();
    if (highest.is_none() && host_.hosts.lowest() == self()) {
      vote_.promised = {0, self()};
      return propose_value();
    }
    vote_.promised = {highest.round + 1, self()};
  }

  /// What the highest ballot shows that a host of the quorum has accepted; else what is wanted.
  void propose_value() {
    const Vote* highest = &vote_;
    for (const int host : host_.hosts.members()) {
      const Vote* const vote = vote_of(host);
      if (vote != nullptr && vote->promised == vote_.promised && vote->accepted > highest->accepted)
        highest = vote;
    }
    if (!highest->accepted.is_none()) {
      vote_.value = Entry(highest->value);
    } else if (const Entry* const wanted = find_want()) {
      vote_.value = *wanted;
      vote_.value.out |= vote_.gone;
    } else {
      return;
    }
    vote_.accepted = vote_.promised;
  }

  /// Whether a quorum has voted in the own ballot: see the top of vote.h.
  bool is_quorum(Ballot Vote::*ballot) const {
    HostSet voted, kept;
    for (const int host : host_.hosts.members()) {
      const Vote* const vote = vote_of(host);
      if (vote == nullptr || vote->*ballot != vote_.promised) continue;
      voted.insert(host);
      if (vote->promised == vote_.promised && !vote_.cut_off.contains(host)) kept.insert(host);
    }
    if (is_majority(voted)) return true;
    const HostSet others = host_.hosts - kept;
    const std::vector<int> all = kept.members();
    return std::all_of(all.begin(), all.end(),
                       [&](int host) { return others.is_within(vote_of(host)->cut_off); });
  }

  // ---- what goes out --------------------------------------------------------------------------

  static bool asks(const Vote& vote, int who) noexcept {
    return vote.promised.host == who || vote.accepted.host == who;
  }
  void wake(Clock::time_point when) noexcept { step_.next = std::min(step_.next, when); }

  /// What was sent on a connection arrives, or the connection ends: nothing is sent twice on one.
  void tell(int host) {
    const HostFacts& facts = facts_of(host);
    if (host == self() || vote_.gone.contains(host) || facts.connection == 0) return;
    Peer& peer = peer_of(host);
    if (peer.connection != facts.connection) {
      peer.connection = facts.connection;
      peer.told = std::nullopt;
      peer.told_want = std::nullopt;
      peer.told_number = 0;
    }
    const std::optional<Entry> wanted = votes() && want() != nullptr ? input_.want : std::nullopt;
    const std::uint64_t known =
        std::max(peer.seen ? peer.seen->number : vote_.number, peer.told_number);
    if (known >= vote_.number && !must_tell(host, peer, wanted)) return;
    VoteFrame frame{host_.term, vote_, wanted, {}, host_.hosts, {}};
    if (known < vote_.number) {
      const auto lacking = std::min<std::uint64_t>(vote_.number - known, host_.entries.size());
      frame.entries.assign(host_.entries.end() - static_cast<std::ptrdiff_t>(lacking),
                           host_.entries.end());
      if (lacking < vote_.number - known) frame.lost_before = host_.lost_before;
      peer.told_number = vote_.number;
    }
    peer.told = vote_;
    peer.told_want = wanted;
    step_.frames.emplace_back(host, std::move(frame));
  }

  bool must_tell(int host, const Peer& peer, const std::optional<Entry>& wanted) const {
    if (!peer.told || peer.told->cut_off != vote_.cut_off) return true;
    const bool is_news = peer.told_want != wanted || peer.told->number != vote_.number;
    // To whoever is to propose it; and to all with a question, or in the place of one, since
    // another one may get further.
    if (wanted && is_news && (leader() == host || asks(vote_, self()) || !may_ask())) return true;
    if (*peer.told == vote_ || !host_.hosts.contains(host)) return false;
    // A proposal or a question goes to all, and the answer to who has asked, even in vain.
    const Vote* const theirs = vote_of(host);
    return asks(vote_, self()) || asks(vote_, host) || (theirs != nullptr && asks(*theirs, host));
  }

  HostVote& host_;
  Vote& vote_;
  VoteMemory& memory_;
  const VoteInput& input_;
  VoteStep step_;
};

}  // namespace

VoteStep step_vote(HostVote& host, VoteMemory& memory, const VoteInput& input) {
  return Voter(host, memory, input).run();
}

}  // namespace tutti::control
