// A store served by another process, and how to connect to it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/fd.h"
#include "net/listen.h"
#include "net/security.h"
#include "net/tcp.h"
#include "net/unix_socket.h"
#include "store/call_store.h"
#include "store/session.h"
#include "tutti/store.h"

namespace tutti::store {

/// A store at the other end of a connection.
class RemoteStore : public CallStore {
 public:
  /// What the server is to do once this connection has ended; in place of what was left before.
  void leave_will(const Will& will, Timeout timeout);
  void take_back_will(Timeout timeout);
  /// Perhaps from another host.
  virtual bool is_over_tcp() const noexcept = 0;
  /// The connection, and with it every call from now on.
  virtual bool has_ended() const noexcept = 0;
  /// Ended because its host has fallen silent.
  virtual bool is_out_of_reach() const noexcept = 0;
};

struct Connected {
  std::shared_ptr<Store> store;
  RemoteStore* remote = nullptr;  ///< the same
  net::Fd descriptor;             ///< what came with the welcome; may be empty
  net::Peer server;
  std::string server_name;  ///< random: another server has another one, at the same address, too
};

/// Connects to the server at `address` and is welcomed. All threads may use the store at once: a
/// call that waits does not hold up the others. Empty if nobody listens there.
///
/// A connection that the server drops before it has heard us is made anew.
///
/// Errors  What the server refuses us with. kTimeout. kUnauthenticated: another user's server.
std::optional<Connected> try_connect_store(std::string_view address, const Hello& hello,
                                           Deadline deadline);
/// The same, and kSystem if nobody listens.
Connected connect_store(std::string_view address, const Hello& hello, Deadline deadline);

/// Tries each of the addresses once, each for a second at most. Empty if none leads to a store, or
/// to one that does not answer now: *why says what was met.
///
/// Errors  What the server refuses us with. kUnauthenticated: who listens there is no store, or has
///         another secret. kInvalidArgument: another level.
std::optional<Connected> try_connect_tcp_store(std::span<const net::TcpAddress> addresses,
                                               const Hello& hello, const net::Security& security,
                                               Deadline deadline, std::string* why);

/// What listens at a port of this process: a store of make_tcp_store has it for good, one where
/// ranks meet for a while. Asks there, for a second at most.
net::Holding look_at_own(const net::TcpAddress& address, const net::Security& security,
                         Deadline deadline);

}  // namespace tutti::store
