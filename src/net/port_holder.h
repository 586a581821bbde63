// Who has taken a port, and taking one for others.
#pragma once

#include <string>

#include "net/fd.h"
#include "net/tcp.h"

namespace tutti::net {

/// "pid 4711 (train)": the process of this host that has taken address and port, or the port on all
/// addresses. Empty if /proc does not show it: another user's, or one of another container.
std::string holder_of(const TcpAddress& address);

/// A port at which nobody listens yet.
struct HeldPort {
  Fd socket;
  Fd mark = {};  ///< by which others who hold ports see that this one is held
  int port = 0;
  int error_number = 0;    ///< why it could not be taken; 0: it is
  bool is_shared = false;  ///< it is, and another has taken it in this way before (sharer_of)
};
/// Takes a port of all addresses of IPv4 (0: one that is free) and keeps it as long as the socket
/// lives. A server can still listen there, as servers share addresses (SO_REUSEADDR); who does not,
/// cannot take it.
HeldPort hold_port(int port);
/// "pid 4711 (tutti)": who has marked this port as held. Empty as of holder_of.
std::string sharer_of(int port);

}  // namespace tutti::net
