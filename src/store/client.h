// A store served by another process, and how to connect to it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/fd.h"
#include "net/unix_socket.h"
#include "store/session.h"
#include "tutti/store.h"

namespace tutti::store {

struct Connected {
  std::shared_ptr<Store> store;
  net::Fd descriptor;  ///< what came with the welcome; may be empty
  net::Peer server;
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

}  // namespace tutti::store
