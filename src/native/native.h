// The default backend: shared memory between the ranks of a host, connections between hosts.
#pragma once

#include <memory>

#include "group/side.h"
#include "tutti/backend.h"

namespace tutti::native {

/// Makes the backend of one rank in one group; waits for the other members.
///
/// `spec`: a group::NativeSpec.
///
/// Lifetime  Its membership must outlive the backend. Works must not.
/// Threads   As Backend says; several ranks may live in one process.
/// Errors    kTimeout and kPeerLost name who did not come. kSystem: no memory.
std::unique_ptr<Backend> make_native(const GroupSpec& spec);
/// The same beside a backend that does not check itself.
std::unique_ptr<group::Side> make_side(const GroupSpec& spec);
/// The side of a backend for device memory in a group whose backend for host memory is `native`,
/// made by make_native, which outlives it: what both do is in one order.
std::unique_ptr<group::Side> make_side_of(Backend& native);

}  // namespace tutti::native
