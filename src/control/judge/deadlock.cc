#include "control/judge/deadlock.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tutti::control {

bool WaitPart::operator==(const WaitPart& other) const noexcept {
  const auto all = [](const WaitPart& part) {
    return std::tie(part.group, part.makes_group, part.one_suffices, part.what.seq, part.what.op,
                    part.awaited);
  };
  return all(*this) == all(other);
}

bool Knot::is_circle() const noexcept {
  return std::all_of(links.begin(), links.end(),
                     [](const Link& link) { return link.awaited.size() == 1; });
}

std::vector<WorldRank> Knot::ranks() const {
  std::vector<WorldRank> all;
  for (const Link& link : links) all.push_back(link.rank);
  std::sort(all.begin(), all.end());
  return all;
}

namespace {

using Facts = std::vector<WaitFacts>;

/// All that `facts` tell of.
std::vector<WorldRank> ranks_of(const Facts& facts) {
  std::vector<WorldRank> ranks;
  for (std::size_t rank = 0; rank < facts.size(); ++rank)
    ranks.emplace_back(static_cast<int>(rank));
  return ranks;
}

/// Which ranks are stuck: at first all that wait, then those are taken out that could go on with
/// one that is out.
class Stuck {
 public:
  explicit Stuck(const Facts& facts)
      : facts_(facts), is_stuck_(facts.size()), stuck_in_(facts.size()), awaited_by_(facts.size()) {
    const std::vector<WorldRank> all = ranks_of(facts);
    for (const WorldRank rank : all) is_stuck_[rank.index()] = waits(facts_[rank.index()]);
    for (const WorldRank rank : all) count(rank);
    for (const WorldRank rank : all)
      if (is_stuck_[rank.index()] && can_go_on(rank)) take_out(rank);
  }

  bool operator[](WorldRank rank) const noexcept { return is_stuck_[rank.index()]; }

 private:
  static bool waits(const WaitFacts& facts) noexcept {
    return facts.is_running && !facts.has_several_threads && facts.version != 0;
  }

  void count(WorldRank rank) {
    const std::vector<WaitPart>& parts = facts_[rank.index()].parts;
    stuck_in_[rank.index()].resize(parts.size());
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (const WorldRank awaited : parts[part].awaited) {
        awaited_by_[awaited.index()].emplace_back(rank, part);
        stuck_in_[rank.index()][part] += is_stuck_[awaited.index()] ? 1 : 0;
      }
    }
  }

  bool can_go_on(WorldRank rank) const noexcept {
    const std::vector<WaitPart>& parts = facts_[rank.index()].parts;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const std::size_t stuck = stuck_in_[rank.index()][part];
      if (parts[part].one_suffices ? stuck < parts[part].awaited.size() : stuck == 0) return true;
    }
    return false;
  }

  void take_out(WorldRank first) {
    std::vector<WorldRank> going = {first};
    is_stuck_[first.index()] = false;
    while (!going.empty()) {
      const WorldRank rank = going.back();
      going.pop_back();
      for (const auto& [waiting, part] : awaited_by_[rank.index()]) {
        --stuck_in_[waiting.index()][part];
        if (!is_stuck_[waiting.index()] || !can_go_on(waiting)) continue;
        is_stuck_[waiting.index()] = false;
        going.push_back(waiting);
      }
    }
  }

  const Facts& facts_;
  std::vector<bool> is_stuck_;
  std::vector<std::vector<std::size_t>> stuck_in_;  // by rank and part
  std::vector<std::vector<std::pair<WorldRank, std::size_t>>> awaited_by_;
};

/// For whom each stuck rank waits in vain, as few as show it: of a part that needs all one will do.
std::vector<std::vector<WorldRank>> links_of(const Facts& facts, const Stuck& stuck) {
  std::vector<std::vector<WorldRank>> links(facts.size());
  for (const WorldRank rank : ranks_of(facts)) {
    if (!stuck[rank]) continue;
    std::vector<WorldRank>& own = links[rank.index()];
    for (const WaitPart& part : facts[rank.index()].parts) {
      for (const WorldRank awaited : part.awaited) {
        if (!stuck[awaited]) continue;
        own.push_back(awaited);
        if (!part.one_suffices) break;
      }
    }
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
  }
  return links;
}

/// Tarjan's: sets in which everybody reaches everybody, those that nobody leaves.
class Closed {
 public:
  explicit Closed(const std::vector<std::vector<WorldRank>>& links)
      : links_(links), number_(links.size()), lowest_(links.size()), set_(links.size(), -1) {
    for (std::size_t rank = 0; rank < links.size(); ++rank)
      if (!links[rank].empty() && number_[rank] == 0) visit(WorldRank(static_cast<int>(rank)));
  }
  std::vector<std::vector<WorldRank>> take() && { return std::move(closed_); }

 private:
  void visit(WorldRank rank) {
    number_[rank.index()] = lowest_[rank.index()] = ++visited_;
    open_.push_back(rank);
    for (const WorldRank next : links_[rank.index()]) {
      if (number_[next.index()] == 0) {
        visit(next);
        lowest_[rank.index()] = std::min(lowest_[rank.index()], lowest_[next.index()]);
      } else if (set_[next.index()] < 0) {
        lowest_[rank.index()] = std::min(lowest_[rank.index()], number_[next.index()]);
      }
    }
    if (lowest_[rank.index()] == number_[rank.index()]) complete(rank);
  }

  void complete(WorldRank root) {
    const auto first = std::find(open_.begin(), open_.end(), root);
    std::vector<WorldRank> members(first, open_.end());
    open_.erase(first, open_.end());
    for (const WorldRank member : members) set_[member.index()] = sets_;
    const bool is_left = std::any_of(members.begin(), members.end(), [&](WorldRank member) {
      const std::vector<WorldRank>& next = links_[member.index()];
      return std::any_of(next.begin(), next.end(),
                         [&](WorldRank each) { return set_[each.index()] != sets_; });
    });
    ++sets_;
    if (is_left) return;
    std::sort(members.begin(), members.end());
    closed_.push_back(std::move(members));
  }

  const std::vector<std::vector<WorldRank>>& links_;
  std::vector<int> number_, lowest_, set_;
  std::vector<WorldRank> open_;
  std::vector<std::vector<WorldRank>> closed_;
  int visited_ = 0, sets_ = 0;
};

Knot knot_of(const std::vector<WorldRank>& ranks,
             const std::vector<std::vector<WorldRank>>& links) {
  Knot knot;
  for (const WorldRank rank : ranks) knot.links.push_back({rank, links[rank.index()]});
  if (!knot.is_circle()) return knot;
  WorldRank rank = ranks.front();
  for (Knot::Link& link : knot.links) {
    link = {rank, links[rank.index()]};
    rank = link.awaited.front();
  }
  return knot;
}

std::vector<DeadlockClock::Seen> seen_of(const Knot& knot, const Facts& facts) {
  std::vector<DeadlockClock::Seen> seen;
  for (const WorldRank rank : knot.ranks()) {
    const WaitFacts& own = facts[rank.index()];
    seen.push_back({rank, own.version, own.looks, own.since});
  }
  return seen;
}

bool spans_hosts(const std::vector<DeadlockClock::Seen>& ranks, const Facts& facts) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const DeadlockClock::Seen& each) {
    return facts[each.rank.index()].is_elsewhere;
  });
}

template <class Same>
bool all_same(const std::vector<DeadlockClock::Seen>& one,
              const std::vector<DeadlockClock::Seen>& other, Same&& same) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), same);
}

using Seen = DeadlockClock::Seen;

bool is_same_wait(const Seen& one, const Seen& other) noexcept {
  return std::tie(one.rank, one.since) == std::tie(other.rank, other.since);
}

bool is_same_version(const Seen& one, const Seen& other) noexcept {
  return std::tie(one.rank, one.version) == std::tie(other.rank, other.version);
}

}  // namespace

std::vector<Knot> find_knots(const std::vector<WaitFacts>& facts) {
  const Stuck stuck(facts);
  const std::vector<std::vector<WorldRank>> links = links_of(facts, stuck);
  std::vector<Knot> knots;
  for (const std::vector<WorldRank>& ranks : Closed(links).take())
    knots.push_back(knot_of(ranks, links));
  std::sort(knots.begin(), knots.end(), [](const Knot& one, const Knot& other) {
    return one.links.front().rank < other.links.front().rank;
  });
  return knots;
}

std::vector<GroupId> groups_of(const Knot& knot, const std::vector<WaitFacts>& facts) {
  std::vector<GroupId> groups;
  bool is_any_left = true;
  for (std::size_t nth = 0; is_any_left; ++nth) {
    is_any_left = false;
    for (const Knot::Link& link : knot.links) {
      const std::vector<WaitPart>& parts = facts[link.rank.index()].parts;
      if (nth >= parts.size()) continue;
      is_any_left = true;
      if (std::find(groups.begin(), groups.end(), parts[nth].group) == groups.end())
        groups.push_back(parts[nth].group);
    }
  }
  return groups;
}

std::optional<Knot> look_for_deadlock(WorldRank rank, const std::vector<WaitFacts>& facts,
                                      DeadlockClock& clock, Clock::time_point now,
                                      std::chrono::nanoseconds lasting) {
  const std::vector<Knot> knots = find_knots(facts);
  const auto own = std::find_if(knots.begin(), knots.end(),
                                [&](const Knot& knot) { return knot.links.front().rank == rank; });
  if (own == knots.end()) {
    clock.seen.clear();
    return std::nullopt;
  }
  const std::vector<Seen> seen = seen_of(*own, facts);
  if (!all_same(seen, clock.seen, is_same_version)) {
    clock.seen = seen;
    clock.has_arrived = !spans_hosts(seen, facts);
    return std::nullopt;
  }
  const auto has_looked = [](const Seen& then, const Seen& one) {
    return one.looks >= then.looks + kLooksOfAKnot;
  };
  if (!all_same(clock.seen, seen, has_looked)) return std::nullopt;
  if (!std::exchange(clock.has_arrived, true)) {
    clock.seen = seen;
    return std::nullopt;
  }
  const bool has_lasted = std::all_of(seen.begin(), seen.end(),
                                      [&](const Seen& one) { return one.since <= now - lasting; });
  if (!has_lasted || all_same(seen, clock.told, is_same_wait)) return std::nullopt;
  clock.told = seen;
  return *own;
}

bool still_stands(const DeadlockClock& clock, const std::vector<WaitFacts>& facts) {
  return std::all_of(clock.seen.begin(), clock.seen.end(), [&](const Seen& seen) {
    const WaitFacts& now = facts[seen.rank.index()];
    return now.is_running && !now.has_several_threads && now.version == seen.version;
  });
}

// ---- whom a wait awaits ------------------------------------------------------------------------

namespace {

/// The latest collective that a member's program has called, as far as others can wait for it.
std::uint64_t called(const GroupFacts& facts, int member) noexcept {
  return std::max(facts.does(member).entered, facts.does(member).queued);
}

AwaitedMembers not_called(const GroupFacts& facts, std::uint64_t seq) {
  std::vector<int> members;
  for (int member = 0; member < facts.size(); ++member)
    if (member != facts.rank && called(facts, member) < seq) members.push_back(member);
  return {members, members};
}

}  // namespace

AwaitedMembers awaited_in(const GroupFacts& facts, std::uint64_t seq, bool needs_all) {
  if (needs_all) return not_called(facts, seq);
  int member = facts.rank;
  std::vector<int> known_by;
  // Each step leads to a member that this one waits for, so there are no more of them than members.
  for (int step = 0; step < facts.size(); ++step) {
    const LineFacts& line = facts.does(member);
    const bool is_inside = line.entered > line.completed;
    if (!is_inside || static_cast<std::uint32_t>(line.entered) != line.waiting_in) return {};
    const std::uint64_t inside = line.entered;
    const int next = line.waiting_for;
    if (next < 0) {
      AwaitedMembers all = not_called(facts, inside);
      all.known_by.insert(all.known_by.end(), known_by.begin(), known_by.end());
      return all;
    }
    if (next >= facts.size() || next == facts.rank) return {};
    known_by.push_back(next);
    if (called(facts, next) < inside) return {{next}, known_by};
    // What it was awaited for is on its way: who awaits it has not looked since, stopped perhaps.
    if (facts.does(next).completed >= inside) return {};
    member = next;
  }
  return {};
}

bool needs_all(Op op) noexcept {
  switch (op) {
    case Op::all_reduce:
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_to_all:
    case Op::barrier:
      return true;
    case Op::reduce:
    case Op::gather:
    case Op::broadcast:
    case Op::scatter:
    case Op::scan:
    case Op::exclusive_scan:
    case Op::send:
    case Op::recv:
      break;
  }
  return false;
}

bool needs_all(const Request& request, int rank) noexcept {
  const bool needs_at_root = request.op == Op::reduce || request.op == Op::gather;
  return needs_all(request.op) || (needs_at_root && request.root == rank);
}

std::vector<int> possible_senders(const GroupFacts& facts) {
  std::vector<int> members;
  for (int member = 0; member < facts.size(); ++member)
    if (member != facts.rank && !facts.has_gone(member)) members.push_back(member);
  if (facts.size() == 1) members.push_back(facts.rank);
  return members;
}

}  // namespace tutti::control
