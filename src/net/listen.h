// Listening at whichever of the addresses of a name is this host's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "net/fd.h"
#include "net/tcp.h"
#include "tutti/types.h"

namespace tutti::net {

/// For how long another thread of this process has a port.
enum class Holding : std::uint8_t { unknown, for_a_while, for_good };
using LookAtOwn = std::function<Holding(const TcpAddress&)>;

struct ListenResult {
  enum class Status : std::uint8_t {
    listening,
    taken,     ///< the port, by `holder`
    not_ours,  ///< none is an address of this host
  };
  Status status = Status::not_ours;
  Fd socket = {};
  TcpAddress address = {};         ///< where it listens, or would
  std::string holder = {};         ///< "pid 4711 (train)"; empty: /proc does not show it
  Holding own = Holding::unknown;  ///< where the holder is this process
};

/// Tries the addresses in their order. A port that is taken is waited for as long as `patience`
/// lasts, since who has it may be about to end. One that another thread of this process has is
/// looked at: if that has it for a while, it is waited for until the deadline, if for good, not at
/// all.
ListenResult listen_at_one_of(std::span<const TcpAddress> addresses,
                              std::chrono::nanoseconds patience, Deadline& deadline,
                              const LookAtOwn& look_at_own);
/// "port 29500 of 10.0.0.1 is taken by pid 4711 (train)", "... by this process itself, pid 4711
/// (train)", "10.0.0.9 is not an address of this host, which has 10.0.0.1".
std::string describe_failure(const ListenResult& result);

}  // namespace tutti::net
