// Where the ranks of a job meet when rank 0 serves the store.
//
// Always at a *local socket*, which its launcher's name of the job or a port names. If the address
// that all ranks were given may be another host, also at that address over TCP. Where they were
// given a file, rank 0 chooses both, and its notice there says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/interfaces.h"
#include "net/security.h"
#include "net/tcp.h"
#include "rendezvous/identity.h"
#include "rendezvous/init_method.h"
#include "rendezvous/meeting.h"
#include "rendezvous/notice.h"
#include "rendezvous/round.h"
#include "tutti/types.h"

namespace tutti::rendezvous {

struct Place {
  std::string address;      ///< of the local socket
  std::string description;  ///< for people
  bool is_open = false;     ///< nothing but a port tells two jobs of this user apart
  std::uint64_t job = 0;
  std::vector<net::TcpAddress> tcp = {};  ///< one of them, too; empty: no port is opened
  net::PortRange ports = {};              ///< of a port that rank 0 chooses
  net::Security security = {};            ///< of what goes there
  bool may_be_here = true;                ///< rank 0 may be on this host, at the local socket
  std::string given = {};                 ///< "MASTER_ADDR=10.0.0.1", as the ranks were told
  std::string mark = "MASTER_PORT";       ///< what to change when another job has it
  std::string file = {};                  ///< of the notice; empty: `address` and `tcp` are known
  std::string advice = {};                ///< when ranks do not come; may be empty
};

/// In the job of a hello: its ranks are numbered in the order of arrival. Those of one job are all
/// numbered alike.
inline constexpr std::uint64_t kInOrderOfArrival = 0x6f72646572;

/// Looks up the name of rank 0's host if it may be another one.
///
/// In a file: rank 0's `tcp` is where it will listen, with port 0; that of the others is empty.
///
/// Errors  kInvalidArgument: no MASTER_ADDR or MASTER_PORT, a name that does not exist. kSystem,
///         kTimeout: the name could not be looked up. What MeetingOptions::before_tcp throws.
Place find_place(const Identity& identity, const MeetingOptions& options, const InitMethod& method,
                 Deadline& deadline, WaitingLines& lines);
/// The same, where rank 0 has chosen what the notice says.
Place place_of(const Place& in_file, const Notice& notice, const MeetingOptions& options);

}  // namespace tutti::rendezvous
