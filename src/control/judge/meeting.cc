#include "control/judge/meeting.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "control/judge/agree.h"
#include "control/judge/standing.h"

namespace tutti::control {

namespace {

/// How often a meeting looks, at least.
constexpr std::chrono::milliseconds kLook{20};
/// Within which members that ask for different groups find each other.
constexpr std::chrono::milliseconds kOthersLook{100};
/// How long members that have asked for neither group yet are awaited, to see who is alone.
constexpr std::chrono::milliseconds kOthersAsk{500};

std::vector<int> absent(const GroupFacts& facts) {
  std::vector<int> members;
  for (int member = 0; member < facts.size(); ++member)
    if (!facts.line_of(member)) members.push_back(member);
  return members;
}

WorldRank world_rank_of(const MeetingQuestion& question, int member) {
  return question.world_ranks[static_cast<std::size_t>(member)];
}

bool holds(const std::vector<WorldRank>& ranks, WorldRank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// Whether `member` has begun and ended a look since its other meeting was first seen here.
bool has_looked(int member, const MeetingFacts& other, MeetingClock& clock) {
  constexpr std::uint64_t kUnderWay = 1;
  const MeetingClock::Seen now = {other.group, other.looks};
  MeetingClock::Seen& first = clock.seen.try_emplace(member, now).first->second;
  if (first.group != now.group) first = now;
  return now.looks > first.looks + kUnderWay;
}

/// What members that have not come do instead.
struct Dispute {
  bool awaits_us = false;  ///< one of them makes another group of the same parent, with this rank
  /// Of those that do, and go on waiting there for this rank or others that have come, the first
  /// that waits for this one; -1: none.
  int member = -1;
  GroupId group = 0;
  std::map<GroupId, std::vector<int>> there = {};  ///< all of them, by what they make
  bool is_seen_better = false;  ///< by members of one of these groups, which has more

  std::size_t askers() const noexcept {
    std::size_t count = 0;
    for (const auto& [id, members] : there) count += members.size();
    return count;
  }
};

Dispute find_dispute(const MeetingQuestion& question, const GroupFacts& facts,
                     const std::vector<int>& awaited, MeetingClock& clock) {
  std::vector<std::pair<int, const MeetingFacts*>> others;
  for (const int member : awaited) {
    for (const MeetingFacts& other : facts.of(member).meetings) {
      if (other.group != question.group && other.asked_of == question.asked_of) {
        others.emplace_back(member, &other);
      }
    }
  }
  Dispute dispute;
  if (others.empty()) return dispute;
  std::set<WorldRank> come(question.world_ranks.begin(), question.world_ranks.end());
  for (const int member : awaited) come.erase(world_rank_of(question, member));
  const auto has_come = [&](WorldRank rank) { return come.contains(rank); };
  for (const auto& [member, other] : others) {
    if (std::none_of(other->members.begin(), other->members.end(), has_come)) continue;
    const bool awaits_us = holds(other->members, world_rank_of(question, facts.rank));
    dispute.awaits_us |= awaits_us;
    if (!has_looked(member, *other, clock)) continue;
    if (awaits_us && dispute.member < 0) {
      dispute.member = member;
      dispute.group = other->group;
    }
    dispute.there[other->group].push_back(member);  // it makes one group of a parent at a time
    dispute.is_seen_better |= other->members.size() > question.world_ranks.size();
  }
  return dispute;
}

std::vector<int> left_parent(const MeetingQuestion& question, const std::vector<int>& awaited) {
  std::vector<int> left;
  std::set_intersection(awaited.begin(), awaited.end(), question.left_parent.begin(),
                        question.left_parent.end(), std::back_inserter(left));
  return left;
}

std::vector<int> left_world(const GroupFacts& facts, const std::vector<int>& awaited) {
  std::vector<int> left;
  for (const int member : awaited)
    if (facts.of(member).has_left_world) left.push_back(member);
  return left;
}

/// The finding fails all of these groups: their ranks are told the same. A member of a larger group
/// sees more of those who have come to it, and gets the time to tell.
std::optional<Finding> asked_otherwise(const MeetingQuestion& question, const Dispute& dispute,
                                       const GroupFacts& facts, const std::vector<int>& awaited,
                                       MeetingClock& clock, Clock::time_point now) {
  if (dispute.member < 0) return std::nullopt;
  const std::size_t will_not_ask = left_parent(question, awaited).size();
  const bool have_all_asked = dispute.askers() + will_not_ask == awaited.size();
  const auto patience = dispute.is_seen_better ? 2 * kOthersAsk : kOthersAsk;
  const bool may_ask = now < after(clock.began, patience) && !clock.deadline.expired(now);
  if (may_ask && (!have_all_asked || dispute.is_seen_better)) return std::nullopt;
  std::vector<std::vector<int>> sides(1);
  for (int member = 0; member < facts.size(); ++member)
    if (facts.line_of(member)) sides.front().push_back(member);
  AskedOtherwise otherwise{dispute.member, dispute.group, {}};
  for (const auto& [group, members] : dispute.there) {
    otherwise.groups.push_back(group);
    sides.push_back(members);
  }
  return Finding{ErrorCode::kCollectiveMismatch, smaller_sides(sides), std::move(otherwise)};
}

}  // namespace

MeetingLook look_at_meeting(const MeetingQuestion& question, const GroupFacts& facts,
                            MeetingClock& clock, Clock::time_point now) {
  MeetingLook look;
  look.next = now + kLook;
  if (!clock.deadline.expired(now))
    look.next = std::min(look.next, after(now, clock.deadline.left(now)));
  const std::vector<int> awaited = absent(facts);
  if (awaited.empty()) return look;
  look.ends_with_parent = question.parent_failed;
  if (look.ends_with_parent) return look;
  Dispute dispute;
  if (question.asked_of != 0) dispute = find_dispute(question, facts, awaited, clock);
  look.is_disputed = dispute.awaits_us;
  look.ask = awaited;
  look.finding = asked_otherwise(question, dispute, facts, awaited, clock, now);
  if (look.finding) return look;
  if (auto left = left_world(facts, awaited); !left.empty()) {
    look.finding = {ErrorCode::kClosed, std::move(left), LeftWorld{}};
    // Who asks for another group shows so in its next looks, and says more.
  } else if (left = left_parent(question, awaited);
             !left.empty() && now >= after(clock.began, kOthersLook)) {
    look.finding = {ErrorCode::kClosed, std::move(left), LeftParent{}};
  }
  if (look.finding) return look;
  if (clock.deadline.expired(now)) {
    clock.due = std::min(clock.due, now);
    look.ask = asked_before(clock.due, awaited, facts);
    if (!look.ask.empty() && now < clock.due + kAnswerComes) return look;
    look.finding = {ErrorCode::kTimeout, awaited, NotCome{clock.deadline}, look.ask};
  } else if (now >= clock.next_line) {
    look.awaited = awaited;
    clock.next_line = after(now, now - clock.began);
  }
  return look;
}

}  // namespace tutti::control
