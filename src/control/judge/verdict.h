// What a world has decided: an entry of its log, which all ranks apply in order.
#pragma once

#include <string>
#include <vector>

#include "base/roster.h"
#include "tutti/error.h"
#include "tutti/request.h"

namespace tutti::control {

/// The first verdict that touches a group is its cause on every member.
struct Verdict {
  ErrorCode code = ErrorCode::kPeerLost;
  GroupId group = 0;  ///< that fails; 0: the culprits are lost to all groups
  std::vector<WorldRank> culprits = {};
  std::string text = {};  ///< of a group's failure, for all members
  WorldRank finder = {};
};

}  // namespace tutti::control
