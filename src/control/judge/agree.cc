#include "control/judge/agree.h"

#include <algorithm>
#include <utility>

namespace tutti::control {

const KnownCall* shown_at(const LineFacts& line, std::uint64_t seq) noexcept {
  const std::optional<KnownCall>& shown = line.history[seq % kHistory];
  return shown && shown->seq == seq ? &*shown : nullptr;
}

namespace {

/// Whether two members had different chains after the operation `seq`; nothing if one does not
/// show that.
std::optional<bool> differ(const GroupFacts& facts, std::uint64_t seq, int one, int other) {
  const KnownCall* const of_one = shown_at(facts.does(one), seq);
  const KnownCall* const of_other = shown_at(facts.does(other), seq);
  if (of_one == nullptr || of_other == nullptr) return std::nullopt;
  return of_one->chain != of_other->chain;
}

std::vector<Side> sides_at(const GroupFacts& facts, std::uint64_t seq, const Sighting& sighting) {
  std::vector<Side> sides;
  for (int member = 0; member < facts.size(); ++member) {
    const KnownCall* shown = shown_at(facts.does(member), seq);
    const bool was_seen = member == sighting.member && sighting.shown && sighting.shown->seq == seq;
    if (shown == nullptr && was_seen) shown = &*sighting.shown;
    if (shown == nullptr) continue;
    auto side = std::find_if(sides.begin(), sides.end(),
                             [&](const Side& each) { return each.chain == shown->chain; });
    if (side == sides.end())
      side = sides.insert(sides.end(), Side{shown->chain, {}, *shown, member});
    side->members.push_back(member);
  }
  return sides;
}

std::vector<int> culprits_of(const std::vector<Side>& sides) {
  std::vector<std::vector<int>> members;
  for (const Side& side : sides) members.push_back(side.members);
  return smaller_sides(members);
}

bool have_same_past(const GroupFacts& facts, std::uint64_t seq, const std::vector<Side>& sides) {
  return std::all_of(sides.begin(), sides.end(), [&](const Side& side) {
    return seq == 1 || !differ(facts, seq - 1, side.members[0], sides[0].members[0]).value_or(true);
  });
}

/// One side has called more operations than the other.
Finding unequal_calls(const GroupFacts& facts, int member) {
  const std::uint64_t seq = facts.does(member).goodbye_seq;
  const std::uint64_t own_seq = facts.does(facts.rank).goodbye_seq;
  const int more = seq > own_seq ? member : facts.rank;
  const int fewer = seq > own_seq ? facts.rank : member;
  const std::uint64_t extra = std::min(seq, own_seq) + 1;
  const KnownCall* const shown = shown_at(facts.does(more), extra);
  return {ErrorCode::kCollectiveMismatch,
          {fewer},
          UnequalCalls{.extra = extra,
                       .more = more,
                       .fewer = fewer,
                       .shown = shown != nullptr ? std::optional(*shown) : std::nullopt,
                       .calls = calls_of(facts, Clock::time_point::max())}};
}

/// The earliest operation in which a member and this rank are known to differ; 0: none.
std::uint64_t first_difference(const GroupFacts& facts, int member) {
  const std::uint64_t last =
      std::min(facts.does(member).goodbye_seq, facts.does(facts.rank).goodbye_seq);
  std::uint64_t first = 0;
  for (std::uint64_t seq = last; seq > 0 && seq + kHistory > last; --seq)
    if (differ(facts, seq, member, facts.rank).value_or(false)) first = seq;
  return first;
}

}  // namespace

std::optional<Finding> disagreement_at(const GroupFacts& facts, std::uint64_t seq,
                                       const Sighting& sighting) {
  std::vector<Side> sides = sides_at(facts, seq, sighting);
  if (sides.size() < 2) return std::nullopt;
  const bool same_past = have_same_past(facts, seq, sides);
  std::vector<int> culprits = culprits_of(sides);
  return Finding{ErrorCode::kCollectiveMismatch, std::move(culprits),
                 Disagreement{seq, std::move(sides), same_past}};
}

std::vector<int> smaller_sides(const std::vector<std::vector<int>>& sides) {
  std::size_t most = 0;
  for (const std::vector<int>& members : sides) most = std::max(most, members.size());
  const auto with_most = std::count_if(sides.begin(), sides.end(),
                                       [&](const auto& members) { return members.size() == most; });
  std::vector<int> culprits;
  for (const std::vector<int>& members : sides) {
    if (members.size() < most || with_most > 1)
      culprits.insert(culprits.end(), members.begin(), members.end());
  }
  std::sort(culprits.begin(), culprits.end());
  return culprits;
}

std::optional<Finding> find_disagreement(const GroupFacts& facts) {
  const std::uint64_t entered = facts.entered(facts.rank);
  // Counted down: garbage may be the largest number that there is.
  for (std::uint64_t left = std::min<std::uint64_t>(entered, kHistory); left > 0; --left)
    if (auto finding = disagreement_at(facts, entered - left + 1)) return finding;
  return std::nullopt;
}

Finding disagreement_with(const GroupFacts& facts, const Shown& own, const Sighting& sighting) {
  if (auto finding = find_disagreement(facts)) return *std::move(finding);
  // The peer may have been seen in an operation that this rank has ended.
  const std::uint64_t seq = sighting.shown ? std::min(own.seq, sighting.shown->seq) : own.seq;
  if (auto finding = disagreement_at(facts, seq, sighting)) return *std::move(finding);
  Side own_side = {own.chain, {facts.rank}, own, facts.rank};
  Side other = {.members = {sighting.member}};
  if (sighting.shown && sighting.shown->seq == own.seq) {
    other.shown = sighting.shown;
    other.shown_by = sighting.member;
  }
  std::vector<Side> sides = {std::move(own_side), std::move(other)};
  std::vector<int> culprits = culprits_of(sides);
  return {ErrorCode::kCollectiveMismatch, std::move(culprits),
          Disagreement{own.seq, std::move(sides), false}};
}

std::optional<Finding> compare_goodbyes(const GroupFacts& facts) {
  const LineFacts& own = facts.does(facts.rank);
  for (int member = 0; member < facts.size(); ++member) {
    const LineFacts& theirs = facts.does(member);
    // Who was told of a failure, and leaves for it, says nothing of what it has called.
    if (member == facts.rank || !has_left(theirs.state) || theirs.failure) continue;
    const bool same_chain = theirs.goodbye_chain == own.goodbye_chain;
    if (theirs.goodbye_seq == own.goodbye_seq && (same_chain || own.goodbye_seq == 0)) continue;
    if (const std::uint64_t seq = first_difference(facts, member); seq != 0)
      return disagreement_at(facts, seq);
    return unequal_calls(facts, member);
  }
  return std::nullopt;
}

CallCounts calls_of(const GroupFacts& facts, Clock::time_point since) {
  CallCounts calls;
  for (int member = 0; member < facts.size(); ++member) {
    const bool is_known = facts.has_gone(member) || facts.of(member).asked >= since;
    const std::uint64_t count = std::max(facts.entered(member), facts.does(member).goodbye_seq);
    calls.push_back(is_known ? std::optional(count) : std::nullopt);
  }
  return calls;
}

}  // namespace tutti::control
