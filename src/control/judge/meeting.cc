#include "control/judge/meeting.h"

#include <algorithm>
#include <iterator>
#include <set>

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

/// Who has come here, and who makes another group of the same parent that awaits one of them.
class Askers {
 public:
  Askers(const MeetingQuestion& question, const GroupFacts& facts) : question_(question) {
    for (int member = 0; member < facts.size(); ++member)
      if (member == facts.rank || facts.line_of(member)) here_.push_back(member);
    for (const int member : here_)
      come_.insert(question.world_ranks[static_cast<std::size_t>(member)]);
    for (int member = 0; member < facts.size(); ++member)
      if (member != facts.rank && !facts.line_of(member)) add(member, facts.of(member).meetings);
  }

  std::vector<GroupId> groups() const { return {groups_.begin(), groups_.end()}; }
  bool are_all(const GroupFacts& facts) const noexcept {
    return static_cast<int>(here_.size() + there_.size()) == facts.size();
  }
  /// The smaller side; of equals nobody can say which of them is wrong.
  std::vector<int> culprits() const {
    if (here_.size() != there_.size()) return here_.size() < there_.size() ? here_ : there_;
    std::vector<int> both;
    std::merge(here_.begin(), here_.end(), there_.begin(), there_.end(), std::back_inserter(both));
    return both;
  }

 private:
  void add(int member, const std::vector<MeetingFacts>& meetings) {
    bool is_there = false;
    for (const MeetingFacts& other : meetings) {
      if (other.group == question_.group || other.asked_of != question_.asked_of) continue;
      const auto has_come = [this](WorldRank rank) { return come_.contains(rank); };
      if (std::none_of(other.members.begin(), other.members.end(), has_come)) continue;
      groups_.insert(other.group);
      is_there = true;
    }
    if (is_there) there_.push_back(member);
  }

  const MeetingQuestion& question_;
  std::vector<int> here_, there_;
  std::set<WorldRank> come_;
  std::set<GroupId> groups_;  // that those who are there make
};

/// Another group that `member` makes with this rank, of the same parent; null if there is none.
const MeetingFacts* find_other(const MeetingQuestion& question, const GroupFacts& facts,
                               int member) {
  const WorldRank own = question.world_ranks[static_cast<std::size_t>(facts.rank)];
  for (const MeetingFacts& other : facts.of(member).meetings) {
    if (other.group == question.group || other.asked_of != question.asked_of) continue;
    if (holds(other.members, own)) return &other;
  }
  return nullptr;
}

/// The finding fails all of these groups: their ranks are told the same.
std::optional<Finding> asked_otherwise(const MeetingQuestion& question, const GroupFacts& facts,
                                       const std::vector<int>& awaited, MeetingClock& clock,
                                       Clock::time_point now, bool* is_disputed) {
  if (question.asked_of == 0) return std::nullopt;
  for (const int member : awaited) {
    const MeetingFacts* const other = find_other(question, facts, member);
    if (other == nullptr) continue;
    *is_disputed = true;
    if (!has_looked(member, *other, clock)) continue;
    const Askers askers(question, facts);
    const bool may_ask = now < after(clock.began, kOthersAsk) && !clock.deadline.expired(now);
    if (!askers.are_all(facts) && may_ask) continue;
    return Finding{ErrorCode::kCollectiveMismatch, askers.culprits(),
                   AskedOtherwise{member, other->group, askers.groups()}};
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
  look.ends_with_parent = question.parent_failed;
  if (look.ends_with_parent) return look;
  look.finding = asked_otherwise(question, facts, awaited, clock, now, &look.is_disputed);
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
