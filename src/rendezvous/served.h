// The store of a meeting that rank 0 serves, and how the others come to it.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/identity.h"
#include "rendezvous/place.h"
#include "rendezvous/round.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/types.h"

namespace tutti::rendezvous {

/// A store that keeps alive what it is served by.
struct Served {
  std::unique_ptr<store::Server> server;  ///< ours, or null; ends after the client below
  std::shared_ptr<Store> store;
  store::RemoteStore* remote = nullptr;  ///< the same
  net::Peer peer = {};                   ///< who serves it

  /// Returns once the others have gone, or have had a second to read why we go.
  void linger() const;
};

/// Serves or connects, trying until somebody listens. What a dying server leaves us with (kSystem)
/// is as good as nobody.
///
/// Errors  kTimeout: nobody serves it. kInvalidArgument: the address is not of this host, the port
///         is taken. What the server refuses us with.
Served find_store(const Identity& identity, const Place& place, const store::Hello& hello,
                  Deadline& deadline, WaitingLines& lines);

}  // namespace tutti::rendezvous
