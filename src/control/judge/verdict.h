// What a world has decided: an entry of its log, which all ranks apply in order.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/roster.h"
#include "tutti/error.h"
#include "tutti/request.h"

namespace tutti::control {

/// As many groups as one verdict can touch. If a deadlock has more, the end of so many breaks it.
inline constexpr std::size_t kVerdictGroups = 16;

/// The first verdict that touches a group is its cause on every member.
struct Verdict {
  ErrorCode code = ErrorCode::kPeerLost;
  std::vector<GroupId> groups = {};  ///< that fail; none: the culprits are lost to all groups
  std::vector<WorldRank> culprits = {};
  std::string text = {};  ///< of a failure, for all members; of a loss: why, if not by a death
  WorldRank finder = {};

  bool is_loss() const noexcept { return groups.empty(); }
  bool fails(GroupId group) const noexcept {
    return std::find(groups.begin(), groups.end(), group) != groups.end();
  }
  bool operator==(const Verdict&) const = default;
};

}  // namespace tutti::control
