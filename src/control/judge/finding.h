// What a judge has found: why a group must fail, as values. `control/wording` puts it into words.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "control/judge/facts.h"
#include "tutti/error.h"

namespace tutti::control {

/// Those members that have the same chain at one seq.
struct Side {
  std::uint64_t chain = 0;
  std::vector<int> members = {};
  std::optional<KnownCall> shown = {};
  int shown_by = -1;  ///< the member that shows it
};

/// The members have called different operations as number `seq`, or on top of different pasts.
struct Disagreement {
  std::uint64_t seq = 0;
  std::vector<Side> sides;
  bool same_past = false;  ///< they are known to have agreed on everything before
};

/// Of each member, how many collectives it has called; none: its host has not said so lately.
using CallCounts = std::vector<std::optional<std::uint64_t>>;

/// `fewer` has said goodbye before the operation `extra`, which `more` has called.
struct UnequalCalls {
  std::uint64_t extra = 0;
  int more = 0, fewer = 0;
  std::optional<KnownCall> shown = {};  ///< that operation
  CallCounts calls;
};

/// `member`, whom a collective needs, has left the group after its collective `last`.
struct LeftEarly {
  int member = 0;
  std::uint64_t last = 0;
  CallCounts calls;
};

/// A message awaits a member that has left the group, or (-1) all others have.
struct LeftUnmatched {
  int member = 0;
};

/// The culprits have not entered a collective within the time they were given.
struct NotEntered {
  Deadline given;
};

/// All are in, and no byte has moved for the time it was given.
struct Stalled {
  Deadline given;
};

/// While a group is made: `member` makes another one and awaits this rank there.
struct AskedOtherwise {
  int member = 0;
  GroupId group = 0;
  std::vector<GroupId> groups = {};  ///< that fail of it, beside this one: all that await who came
};

/// The culprits have not come to make the group within the time they were given.
struct NotCome {
  Deadline given;
};

/// The culprits, who have not made the group, have left the world.
struct LeftWorld {};

/// They have closed the group that was asked for it.
struct LeftParent {};

struct Finding {
  ErrorCode code = ErrorCode::kInternal;
  std::vector<int> culprits;  ///< ranks of the group, ascending
  std::variant<Disagreement, UnequalCalls, LeftEarly, LeftUnmatched, NotEntered, Stalled,
               AskedOtherwise, NotCome, LeftWorld, LeftParent>
      what;
  /// Members on other hosts that have not answered: what is said of them may be old.
  std::vector<int> silent = {};
};

}  // namespace tutti::control
