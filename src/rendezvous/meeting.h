// Where the ranks of a job meet, and how they agree that they are all there.
//
// A *place* is where a store is served: the agent's address, a local address made from MASTER_PORT
// or from an MPI launcher's name of the job, and with it a TCP address that other hosts reach (all
// of these served by rank 0, place.h), or the store the program brings. In a place, worlds are
// numbered as they are met (*round*). A rank *claims* its number with a record of what process it
// is; the rank that comes last is the *judge*: it looks once more at all claims and sets the
// *verdict*, which everybody waits for. A rank that dies or gives up after its claim fails the
// round on all who wait (company.h); a claim that was dead before one came may be taken over.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/fd.h"
#include "net/interfaces.h"
#include "net/security.h"
#include "rendezvous/company.h"
#include "rendezvous/identity.h"
#include "tutti/store.h"
#include "tutti/types.h"

namespace tutti::rendezvous {

struct MeetingOptions {
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
  std::string init_method = "env://";
  std::string name = {};              ///< of the world; worlds with different names do not mix
  std::shared_ptr<Store> store = {};  ///< meet here, whatever the launcher
  std::chrono::nanoseconds first_line_after = std::chrono::seconds(10);  ///< "waiting 12 s: ..."
  /// Which ranks have ended, read off the agent's board.
  std::function<std::vector<Ended>(const net::Fd& board)> ended = {};
  /// Called before anything is sent over TCP, with the place: says how well that is protected. What
  /// it throws ends the meeting.
  std::function<net::Security(const std::string& place)> before_tcp = {};
  /// With file:// rank 0 chooses where it serves: at such an address and port.
  net::AddressChoice address = {};
  net::PortRange ports = {};
  /// Called with the place once this rank serves it over TCP; may be empty.
  std::function<void(const std::string& place)> served_over_tcp = {};
  /// Why this rank cannot join: it comes to tell the others, and is thrown this. May be null.
  const Error* lack = nullptr;
};

struct Meeting {
  std::shared_ptr<Store> store;  ///< this world's own keys; rank 0 by hand serves it while it lives
  std::shared_ptr<net::Fd> board;  ///< from the agent; else null or empty
  std::string place;               ///< for people: "the agent at @tutti-..."
  /// Of this host, from which it speaks with the place: "192.0.2.7"; empty: the place is not on a
  /// network.
  std::string address;
  Deadline deadline = {};  ///< what is left of MeetingOptions::timeout
  int round = 1;
  int rank = 0;  ///< Identity::rank, or what the meeting has given
  /// Those who meet here: to be looked at, and told of an error, until the board shows who lives.
  std::shared_ptr<Company> company;
};

/// Returns once all ranks of the world are there. A world of one meets nobody.
///
/// Errors  kTimeout: which ranks are missing (also in context().culprits). kPeerLost: who died
///         while others waited. kInvalidArgument: unequal world sizes, a rank that is present
///         already, a second job at this place, no MASTER_PORT: on everybody who can know, showing
///         both sides; an address that rank 0 cannot have, a malformed init_method. kUnsupported:
///         more ranks than a host holds. What another rank gave up with, naming it.
Meeting meet(const Identity& identity, const MeetingOptions& options = {});

}  // namespace tutti::rendezvous
