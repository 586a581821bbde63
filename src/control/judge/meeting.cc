#include "control/judge/meeting.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

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
  std::vector<int> there = {};  ///< all of them
  std::set<GroupId> groups = {};
};

Dispute find_dispute(const MeetingQuestion& question, const GroupFacts& facts,
                     const std::vector<int>& awaited, MeetingClock& clock) {
  std::vector<std::pair<int, const MeetingFacts*>> others;
  for (const int member : awaited)
    for (const MeetingFacts& other : facts.of(member).meetings)
      if (other.group != question.group && other.asked_of == question.asked_of)
        others.emplace_back(member, &other);
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
    dispute.there.push_back(member);  // it makes one group of a parent at a time
    dispute.groups.insert(other->group);
  }
  return dispute;
}

/// The smaller side; of equals nobody can say which of them is wrong.
std::vector<int> smaller(const std::vector<int>& here, const std::vector<int>& there) {
  if (here.size() != there.size()) return here.size() < there.size() ? here : there;
  std::vector<int> both;
  std::merge(here.begin(), here.end(), there.begin(), there.end(), std::back_inserter(both));
  return both;
}

/// The finding fails all of these groups: their ranks are told the same.
std::optional<Finding> asked_otherwise(const Dispute& dispute, const GroupFacts& facts,
                                       const std::vector<int>& awaited, MeetingClock& clock,
                                       Clock::time_point now) {
  if (dispute.member < 0) return std::nullopt;
  const bool have_all_asked = dispute.there.size() == awaited.size();
  const bool may_ask = now < after(clock.began, kOthersAsk) && !clock.deadline.expired(now);
  if (!have_all_asked && may_ask) return std::nullopt;
  std::vector<int> here;
  for (int member = 0; member < facts.size(); ++member)
    if (facts.line_of(member)) here.push_back(member);
  return Finding{
      ErrorCode::kCollectiveMismatch, smaller(here, dispute.there),
      AskedOtherwise{
          dispute.member, dispute.group, {dispute.groups.begin(), dispute.groups.end()}}};
}

std::optional<Finding> left_parent(const MeetingQuestion& question,
                                   const std::vector<int>& awaited) {
  Finding finding{ErrorCode::kClosed, {}, LeftParent{}};
  std::set_intersection(awaited.begin(), awaited.end(), question.left_parent.begin(),
                        question.left_parent.end(), std::back_inserter(finding.culprits));
  if (finding.culprits.empty()) return std::nullopt;
  return finding;
}

std::optional<Finding> left_world(const GroupFacts& facts, const std::vector<int>& awaited) {
  Finding finding{ErrorCode::kClosed, {}, LeftWorld{}};
  for (const int member : awaited)
    if (facts.of(member).has_left_world) finding.culprits.push_back(member);
  if (finding.culprits.empty()) return std::nullopt;
  return finding;
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
  look.finding = asked_otherwise(dispute, facts, awaited, clock, now);
  if (look.finding) return look;
  look.finding = left_world(facts, awaited);
  // Who asks for another group shows so in its next looks, and says more.
  if (!look.finding && now >= after(clock.began, kOthersLook))
    look.finding = left_parent(question, awaited);
  look.ask = awaited;
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
