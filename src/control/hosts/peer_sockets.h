// The data connections of a rank to members of its groups on other hosts.
#pragma once

#include <cstdint>

#include "base/roster.h"
#include "net/events.h"
#include "net/secured.h"
#include "tutti/request.h"

namespace tutti::control {

/// Any thread.
class PeerSockets {
 public:
  virtual ~PeerSockets() = default;
  /// This rank is about to be in the group. Called before any other rank can see it there, and so
  /// before any calls for a connection of that group.
  virtual void expect(GroupId group) = 0;
  /// It is in the group no more, which is never made again: what was made for it and not taken is
  /// dropped, and nothing is made any more. Who calls for it still finds that this end has ended.
  virtual void forget(GroupId group) noexcept = 0;
  /// The connection to `peer` for one lane of a group: connected, not blocking, proved at both ends
  /// to be that one. Empty until it is there; it is made from the first call on, by whichever end
  /// calls first, and the bell of this rank's slot rings when there is something to take. Given
  /// away once. Waits for nothing.
  /// Errors  kSystem, kPeerLost: it cannot be made any more, and why.
  virtual net::Secured try_take(GroupId group, WorldRank peer, std::uint8_t lane) = 0;
  /// Whether try_take would give one by now, without making one.
  virtual bool has_come(GroupId group, WorldRank peer, std::uint8_t lane) = 0;
  /// Whether nobody is at the door of `peer` any more, as far as is known: its process has ended.
  /// Asks anew, and waits for nothing.
  virtual bool has_ended(WorldRank peer) = 0;
  /// Where it is watched; its thread runs as long as the world.
  virtual net::Events& events() noexcept = 0;
};

}  // namespace tutti::control
