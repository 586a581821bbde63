#include "control/judge/standing.h"

#include <algorithm>

namespace tutti::control {

namespace {

/// Whether the member that tells this has parted from `rank`: its log is another one.
bool takes_for_lost(int rank, const FailureFacts& failure) {
  return failure.code == ErrorCode::kPeerLost &&
         std::find(failure.culprits.begin(), failure.culprits.end(), rank) !=
             failure.culprits.end();
}

}  // namespace

std::optional<Told> find_failure(const GroupFacts& facts) {
  std::optional<Told> found;
  for (int member = 0; member < facts.size(); ++member) {
    const std::optional<FailureFacts>& failure = facts.does(member).failure;
    if (member == facts.rank || !failure || takes_for_lost(facts.rank, *failure)) continue;
    if (!failure->text.empty()) return Told{member, *failure};
    if (!found) found = Told{member, *failure};
  }
  return found;
}

std::vector<int> lost_to(const GroupFacts& facts, const std::vector<int>& lost) {
  std::vector<int> members;
  if (has_compared(facts.does(facts.rank).state)) return members;  // they may have made room since
  for (const int member : lost)
    if (!has_left(facts.does(member).state)) members.push_back(member);
  return members;
}

std::vector<int> asked_before(Clock::time_point time, const std::vector<int>& members,
                              const GroupFacts& facts) {
  std::vector<int> found;
  for (const int member : members)
    if (facts.of(member).asked < time) found.push_back(member);
  return found;
}

bool comes_too_late(const GroupFacts& facts, ErrorCode code) {
  if (code != ErrorCode::kCollectiveMismatch && code != ErrorCode::kClosed) return false;
  return std::any_of(facts.members.begin(), facts.members.end(), [](const MemberFacts& member) {
    return member.line ? is_gone(member.line->state) && !member.line->failure
                       : member.has_left_world;
  });
}

bool is_line_needed(const GroupFacts& facts, const std::set<int>& have_come) {
  const bool was_made = facts.does(facts.rank).state != LineState::unmade;
  for (int member = 0; member < facts.size(); ++member) {
    const MemberFacts& other = facts.of(member);
    // Without a line it has not come yet, or gone.
    const bool may_come = !was_made && !have_come.contains(member);
    const bool reads = other.line ? !has_compared(other.line->state) : may_come;
    if (member != facts.rank && reads && !other.has_left_world && !other.is_lost) return true;
  }
  return false;
}

}  // namespace tutti::control
