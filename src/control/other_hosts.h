// Ranks of the world on other hosts, as this host knows them: over sockets once there are hosts, in
// the simulator out of the boards that it keeps for them.
//
// State, goodbye and failure of a member come by themselves, late and in their order; what it has
// entered comes when somebody asks. Nothing is ever older than what was read before.
#pragma once

#include <optional>

#include "base/roster.h"
#include "control/judge/facts.h"

namespace tutti::control {

/// Any thread.
class OtherHosts {
 public:
  virtual ~OtherHosts() = default;
  /// What is known of `rank` in `group`, with what it makes elsewhere.
  virtual MemberFacts facts_of(GroupId group, WorldRank rank) const = 0;
  /// Of those facts the state of its line, and whether that tells of a failure.
  virtual std::optional<LineState> state_of(GroupId group, WorldRank rank) const noexcept = 0;
  virtual bool shows_failure(GroupId group, WorldRank rank) const noexcept = 0;
  /// Puts the question what `rank` does in `group`: soon facts_of has an answer to it, unless the
  /// rank is lost, or the way to it. Waits for nothing.
  virtual void ask(GroupId group, WorldRank rank) noexcept = 0;
  /// This rank has changed what `rank` may await. Waits for nothing.
  virtual void notify(WorldRank rank) noexcept = 0;
};

}  // namespace tutti::control
