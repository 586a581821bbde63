// What native is told about a group, and no plugin.
#pragma once

#include <vector>

#include "tutti/backend.h"

namespace tutti {

namespace control {
class Membership;
class PeerSockets;
}  // namespace control

namespace group {

/// The group hands one to every backend it makes, as the GroupSpec that it is.
struct NativeSpec final : GroupSpec {
  control::Membership* membership = nullptr;  ///< the group's place on the board; outlives it
  control::PeerSockets* sockets = nullptr;    ///< to members on other hosts; null: there are none
};

inline control::Membership& membership_of(const GroupSpec& spec) noexcept {
  return *static_cast<const NativeSpec&>(spec).membership;
}

}  // namespace group
}  // namespace tutti
