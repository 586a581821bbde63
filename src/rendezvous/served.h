// The store of a meeting that rank 0 serves, and how the others come to it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/identity.h"
#include "rendezvous/meeting.h"
#include "rendezvous/notice.h"
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
  store::RemoteStore* remote = nullptr;   ///< the same
  net::Peer peer = {};                    ///< who serves it
  std::string server_name = {};           ///< the same, by a random name
  store::Hello hello = {};                ///< that it has welcomed
  std::vector<net::TcpAddress> tcp = {};  ///< where it is served to other hosts, or was
  std::unique_ptr<Posted> posted = {};    ///< our notice of it; null: there is none

  /// Whoever comes from now on finds another world, and whoever has come over TCP and holds none of
  /// these claims, keys with their values, is turned out.
  void close_doors(std::map<std::string, std::string> claims);
  /// Returns once the others have gone, or have had a second to read why we go. Two in any case
  /// if more are to come.
  void linger(bool are_more_to_come) const;
};

/// To the server that has served `*cut`, a connection to it over TCP that has ended and is closed
/// here; empty: it has ended as well, or another one is there. Tries for 4 s where nobody answers,
/// for half a second where nobody listens.
std::optional<Served> come_again(Served* cut, const net::Security& security, Deadline& deadline);

/// Serves or connects, trying until somebody listens. What a dying server leaves us with (kSystem)
/// is as good as nobody.
///
/// Errors  kTimeout: nobody serves it. kInvalidArgument: the address is not of this host, the port
///         is taken; what is in the file is no store. kSystem: the file cannot be opened or locked.
///         What the server refuses us with.
Served find_store(const Identity& identity, const Place& place, const MeetingOptions& options,
                  const store::Hello& hello, Deadline& deadline, WaitingLines& lines);

}  // namespace tutti::rendezvous
