// Which of this host's addresses others are to reach, and which ports may be listened at.
//
// A *choice* of interfaces is written as NCCL's: names that begin with one of "eth,ib"; "=eth0" for
// whole names; "^docker,lo" or "^=docker0" for all others. An entry may be a network instead,
// "10.0.0.0/8" or "fd00::/8".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/fd.h"
#include "net/tcp.h"

namespace tutti::net {

/// One address of an interface that is up; the port is 0.
struct Interface {
  std::string name;
  TcpAddress address;
};
/// Of this host, loopback included; no addresses of a link alone. Throws kSystem.
std::vector<Interface> interfaces_of_this_host();

class InterfaceChoice {
 public:
  /// `what`: for messages, "TUTTI_SOCKET_IFNAME". Throws kInvalidArgument for a malformed one.
  static InterfaceChoice parse(std::string_view what, std::string_view text);
  /// Loopback is taken only where an entry names it.
  bool takes(const Interface& each) const;

 private:
  struct Network {
    TcpAddress base;
    int bits = 0;
  };
  bool is_named(const Interface& each) const;
  bool is_exact_ = false, excludes_ = false;
  std::vector<std::string> names_;
  std::vector<Network> networks_;
};

/// The one to listen at: `preferred` if it is among those taken, else the first of its family, else
/// the first.
/// Errors  kInvalidArgument: none is left; says which there are.
TcpAddress choose_address(std::string_view what, std::string_view text,
                          std::span<const Interface> all,
                          const std::optional<TcpAddress>& preferred);

/// Which address of this host a program asks for.
struct AddressChoice {
  std::string what = {};  ///< what asks, for messages: "TUTTI_SOCKET_IFNAME"
  std::string text = {};  ///< as InterfaceChoice has it; empty: the preferred one
  bool is_hint = false;   ///< of another library: not followed where it leaves no interface
  /// As choose_address, of this host's interfaces. Empty: nothing is asked for, nor preferred.
  std::optional<TcpAddress> of(const std::optional<TcpAddress>& preferred) const;
};

/// "30000-30100", "30000:30100" or one port; 0 and 0: any, for an empty text. Throws
/// kInvalidArgument.
struct PortRange {
  int first = 0, last = 0;
  static PortRange parse(std::string_view what, std::string_view text);
};
/// Listens at that address, at a port of the range that is free. Throws kSystem: none is.
Fd listen_in_range(TcpAddress address, const PortRange& range);

}  // namespace tutti::net
