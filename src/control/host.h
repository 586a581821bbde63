// A rank's place on its host: who else is here, the board they share, who has died.
//
// Every control thread looks at the *marks* of the others. The *decider* is the lowest living rank:
// 20 ms after it has learned of a death it enters the lost ranks into the world's log of verdicts
// and rouses everybody; all act on that log only, so that all name the same culprits. A decider
// that says nothing for long (it may be stopped: slow is not dead) is overtaken by the next lowest;
// whoever is about to decide applies what is in the log already.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/roster.h"
#include "control/membership.h"
#include "net/interfaces.h"
#include "net/security.h"
#include "tutti/store.h"

namespace tutti::control {

class Board;
class Callers;
class OtherHosts;
class PeerSockets;

/// What is done when the programs of ranks wait for each other in a circle.
enum class Deadlock : std::uint8_t {
  fail,  ///< the groups in which they wait fail
  warn,  ///< a line says so
  off,
};

struct HostOptions {
  std::shared_ptr<Store> store;  ///< may be null in a world of one, or with a board_fd
  /// From the agent (borrowed), or -1: rank 0 makes the board. Used if all ranks have one and it is
  /// their first world there.
  int board_fd = -1;
  int rank = 0;
  int world_size = 1;
  std::string host_id;  ///< TUTTI_HOST_ID; empty: boot id and network namespace
  /// Where ranks of other hosts can call this one, if there are any: an address of this host,
  /// "192.0.2.7"; empty: of its loopback interface, which only hosts on one machine can reach.
  std::string address = {};
  /// At which ports.
  net::PortRange ports = {};
  /// How the connections between hosts are protected; asked once, if there are several.
  std::function<net::Security()> security = {};
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);           ///< for meeting
  std::chrono::nanoseconds first_line_after = std::chrono::seconds(30);  ///< "who is awaited"
  /// Who is where, and what is known of other hosts (which must outlive the Host). Without them all
  /// ranks are on this host.
  std::optional<Roster> roster = {};
  OtherHosts* others = nullptr;
  /// The data connections to them; outlives the Host as well.
  PeerSockets* sockets = nullptr;
  Deadlock deadlock = Deadlock::fail;
  std::chrono::nanoseconds deadlock_after = std::chrono::seconds(1);  ///< how long it must last
  /// Called now and then while others are awaited who have no mark yet: throws why they will not
  /// come. May be empty.
  std::function<void()> look = {};
};

struct MembershipOptions {
  GroupId id = 0;
  std::string name;                    ///< for people: "world"
  std::vector<WorldRank> world_ranks;  ///< by rank in the group
  int rank = 0;                        ///< own rank in the group
  GroupId asked_of = 0;                ///< of a group made by new_group
  std::string call = {};               ///< the same: "new_group({1, 0})", as that was written
  std::uint64_t times = 0;             ///< the same: so often its ranks have been asked for
};

class Host {
 public:
  /// Meets the other ranks of the world through the store, finds out whether they share this host,
  /// shares the board with them and takes this rank's mark.
  /// Errors  kTimeout: who is missing. kPeerLost: who died meanwhile. kInvalidArgument: the rank is
  ///         present already; used in a forked child.
  static std::unique_ptr<Host> join(const HostOptions& options);
  /// Leaves in order: the others see this rank as left, not as lost.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// A group's place on the board. Local: waits for nobody. Must not outlive the Host.
  std::unique_ptr<Membership> make_membership(MembershipOptions options);

  const Board& board() const noexcept;
  /// To be noted at every call of the program, by the thread that makes it.
  Callers& callers() const noexcept;
  /// Connections to ranks of other hosts; null: there is one host.
  PeerSockets* sockets() const noexcept;
  /// Of this host, at which ranks of the others call this one; empty: there is one host.
  std::string address() const;

  struct State;  // host_state.h

 private:
  explicit Host(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

/// What ranks compare to find out whether they share a host: (boot id, network namespace).
std::string host_identity(const std::string& host_id);

}  // namespace tutti::control
