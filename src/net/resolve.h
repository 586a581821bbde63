// The addresses that belong to the name of a host.
#pragma once

#include <string>
#include <vector>

#include "net/tcp.h"
#include "tutti/types.h"

namespace tutti::net {

/// The addresses of `host` (a name, or an address in numbers, of IPv6 also in brackets), in the
/// order in which the system would have them tried, each with `port`.
///
/// A name is looked up in a thread of its own, since the C library may block for longer than any
/// deadline of ours. Nothing can end such a call: if the deadline comes first, that thread goes on
/// until it has its answer, for a minute perhaps, and ends. It touches nothing but its own memory,
/// has all signals blocked, and the library stays loaded for it.
///
/// Errors  kInvalidArgument: there is no such name. kSystem: nobody can say now. kTimeout.
std::vector<TcpAddress> resolve(const std::string& host, int port, Deadline& deadline);

}  // namespace tutti::net
