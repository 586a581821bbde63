#include "control/judge/meeting.h"

#include <algorithm>
#include <iterator>

#include "control/judge/standing.h"

namespace tutti::control {

namespace {

/// How often a meeting looks, at least.
constexpr std::chrono::milliseconds kLook{20};
/// Within which members that ask for different groups find each other.
constexpr std::chrono::milliseconds kOthersLook{100};
/// How long members that have asked for neither group yet are awaited, to see who is alone.
constexpr std::chrono::seconds kOthersAsk{1};

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

/// Another group that `member` makes with this rank, of the same parent; null if there is none.
const MeetingFacts* find_other(const MeetingQuestion& question, const GroupFacts& facts, int member,
                               Clock::time_point began) {
  for (const MeetingFacts& other : facts.of(member).meetings) {
    if (other.group == question.group || other.asked_of != question.asked_of) continue;
    if (other.has_disagreed && other.failed < began) continue;
    if (holds(other.members, world_rank_of(question, facts.rank))) return &other;
  }
  return nullptr;
}

/// Whether `member` has begun and ended a look since its other meeting was first seen here.
bool has_looked(int member, const MeetingFacts& other, MeetingClock& clock) {
  constexpr std::uint64_t kUnderWay = 1;
  const MeetingClock::Seen now = {other.group, other.looks};
  MeetingClock::Seen& first = clock.seen.try_emplace(member, now).first->second;
  if (first.group != now.group) first = now;
  return now.looks > first.looks + kUnderWay;
}

/// The members of both groups, by the group for which they have asked.
struct Askers {
  std::vector<int> here = {}, there = {};
  bool are_all = true;

  /// The smaller side; of equals nobody can say which of them is wrong. A member of one group only
  /// is not seen by the judges of the other one, and does not count.
  std::vector<int> culprits() const {
    if (here.size() != there.size()) return here.size() < there.size() ? here : there;
    std::vector<int> both;
    std::merge(here.begin(), here.end(), there.begin(), there.end(), std::back_inserter(both));
    return both;
  }
};

Askers askers_of(const MeetingQuestion& question, const GroupFacts& facts,
                 const MeetingFacts& other) {
  Askers askers;
  for (int member = 0; member < facts.size(); ++member) {
    if (!holds(other.members, world_rank_of(question, member))) continue;
    const auto& meetings = facts.of(member).meetings;
    const bool is_there = std::any_of(meetings.begin(), meetings.end(), [&](const auto& meeting) {
      return meeting.group == other.group;
    });
    if (member == facts.rank || facts.line_of(member)) {
      askers.here.push_back(member);
    } else if (is_there) {
      askers.there.push_back(member);
    } else {
      askers.are_all = false;
    }
  }
  return askers;
}

std::optional<Finding> asked_otherwise(const MeetingQuestion& question, const GroupFacts& facts,
                                       const std::vector<int>& awaited, MeetingClock& clock,
                                       Clock::time_point now) {
  if (question.asked_of == 0) return std::nullopt;
  for (const int member : awaited) {
    const MeetingFacts* const other = find_other(question, facts, member, clock.began);
    if (other == nullptr || (!other->has_disagreed && !has_looked(member, *other, clock))) continue;
    const Askers askers = askers_of(question, facts, *other);
    const bool may_ask = now < after(clock.began, kOthersAsk) && !question.parent_failed;
    if (!askers.are_all && may_ask) continue;
    return Finding{ErrorCode::kCollectiveMismatch, askers.culprits(),
                   AskedOtherwise{member, other->group}};
  }
  return std::nullopt;
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
  // A member that asked for another group may have failed the parent on its way out.
  look.finding = asked_otherwise(question, facts, awaited, clock, now);
  look.ends_with_parent = !look.finding && question.parent_failed;
  if (look.finding || look.ends_with_parent) return look;
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
