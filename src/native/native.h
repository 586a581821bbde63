// The default backend: shared memory between the ranks of a host.
#pragma once

#include <memory>

#include "tutti/backend.h"

namespace tutti::native {

/// Makes the backend of one rank in one group; waits for the other members.
///
/// Lifetime  `spec.membership` must outlive it. Works must not.
/// Threads   As Backend says; several ranks may live in one process.
/// Errors    kTimeout and kPeerLost name who did not come. kSystem: no memory.
std::unique_ptr<Backend> make_native(const GroupSpec& spec);

}  // namespace tutti::native
