// Where facts come from: the board of this host, say.
#pragma once

#include <optional>

#include "control/judge/facts.h"

namespace tutti::control {

/// The members of one group, as they can be seen from one of them. Any thread.
class FactSource {
 public:
  virtual ~FactSource() = default;
  /// Reads everything of all members.
  virtual GroupFacts read() const = 0;
  /// The same, with what the members that have not made the group make elsewhere.
  virtual GroupFacts read_meetings() const = 0;
  /// Whether another member tells of a failure; a few loads.
  virtual bool shows_failure() const noexcept = 0;
  /// Of a member's line, or nothing while it has not made the group (or has made room since).
  virtual std::optional<LineState> state_of(int member) const noexcept = 0;
};

}  // namespace tutti::control
