// What native is told about a group, and no plugin.
#pragma once

#include "tutti/backend.h"

namespace tutti {

namespace control {
class Membership;
}

namespace native {
class Links;
}

namespace group {

/// The group hands one to every backend it makes, as the GroupSpec that it is.
struct NativeSpec final : GroupSpec {
  control::Membership* membership = nullptr;  ///< the group's place on the board; outlives it
  native::Links* links = nullptr;             ///< to members that share no memory; null: all do
};

inline control::Membership& membership_of(const GroupSpec& spec) noexcept {
  return *static_cast<const NativeSpec&>(spec).membership;
}

}  // namespace group
}  // namespace tutti
