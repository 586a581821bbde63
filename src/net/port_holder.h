// Who has taken a port.
#pragma once

#include <string>

#include "net/tcp.h"

namespace tutti::net {

/// "pid 4711 (train)": the process of this host that has taken address and port, or the port on all
/// addresses. Empty if /proc does not show it: another user's, or one of another container.
std::string holder_of(const TcpAddress& address);

}  // namespace tutti::net
