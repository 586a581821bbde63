// The judges of how the members of a group stand: has the group failed, whom concerns a loss, who
// may never hear of a failure, is a line still needed.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "control/judge/facts.h"

namespace tutti::control {

/// A failure that a member tells of.
struct Told {
  int member = -1;
  FailureFacts failure;
};

/// The failure that this rank takes over: the first that has a text, or the first. None: no other
/// member has failed, or only such as have parted from this rank's host.
std::optional<Told> find_failure(const GroupFacts& facts);

/// Those of `lost` (ranks of the group) that are a loss for it: they had not said goodbye. None
/// once this rank has compared: who has left may show nothing of the group any more.
std::vector<int> lost_to(const GroupFacts& facts, const std::vector<int>& lost);

/// Those of `members` whose answer is to a question before `time`.
std::vector<int> asked_before(Clock::time_point time, const std::vector<int>& members,
                              const GroupFacts& facts);

/// Whether some member, whom a failure of this kind concerns, has left the group for good, so that
/// it will never hear of it.
bool comes_too_late(const GroupFacts& facts, ErrorCode code);

/// Whether the line of a group that this rank has left may still be read by a member of it: one
/// that has not compared, or is yet to come to a group that could not be made.
/// `have_come`: members that were seen in one that could not be made.
bool is_line_needed(const GroupFacts& facts, const std::set<int>& have_come = {});

}  // namespace tutti::control
