// The judge of whether the members of a group have done the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "control/judge/facts.h"
#include "control/judge/finding.h"

namespace tutti::control {

/// What was seen of a member's operation elsewhere, if its line has moved on since.
struct Sighting {
  int member = -1;
  std::optional<KnownCall> shown = {};
};

/// Whether the members that show an operation `seq` differ in it.
std::optional<Finding> disagreement_at(const GroupFacts& facts, std::uint64_t seq,
                                       const Sighting& sighting = {});
/// The same for the last operations of this rank: the first one in which they differ.
std::optional<Finding> find_disagreement(const GroupFacts& facts);
/// For `seq`, in which this rank and the sighted member differ, whatever the lines show by now.
Finding disagreement_with(const GroupFacts& facts, const Shown& own, const Sighting& sighting);
/// Whether a goodbye that has been said differs from the own one.
std::optional<Finding> compare_goodbyes(const GroupFacts& facts);

/// Members of all sides but the largest, ascending; of equals nobody can say which is wrong.
std::vector<int> smaller_sides(const std::vector<std::vector<int>>& sides);

/// How many collectives each member has called, as far as that is known: of one that has left, of
/// those of this host, and of others that were asked since `since`.
CallCounts calls_of(const GroupFacts& facts, Clock::time_point since);

}  // namespace tutti::control
