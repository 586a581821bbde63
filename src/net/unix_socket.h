// Abstract unix sockets, the credentials of who is at the other end, and sending descriptors.
//
// An *address* is an '@' and a name in the abstract namespace: no file, gone with its last
// descriptor. It belongs to the network namespace, and any user may connect: therefore both ends
// check the *credentials* which the kernel keeps of the other.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/fd.h"
#include "net/poller.h"
#include "tutti/types.h"

namespace tutti::net {

/// The process at the other end, as it was when it connected or began to listen.
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  std::string address = {};  ///< of a TCP connection; then pid and uid are not known
};

/// Whether we talk to that user: ourselves or root.
bool is_trusted(const Peer& peer) noexcept;
/// "pid 4711 (train)", "a process at 192.0.2.1:4711".
std::string describe(const Peer& peer);
Peer peer_of(int socket);

/// "@<prefix>-<128 random bits>".
std::string random_address(std::string_view prefix);

/// Listens at `address`; empty if somebody does already. kInvalidArgument for what is no address.
std::optional<Fd> try_listen(std::string_view address);
Fd listen(std::string_view address);

struct Accepted {
  Fd socket;  ///< empty: nobody is waiting, or the peer is not trusted (`peer` says who)
  Peer peer;
  bool refused = false;
};
using Trust = std::function<bool(const Peer&)>;
/// Takes one waiting connection without blocking, checking that the peer is trusted.
Accepted accept(int listener, const Trust& trusts = is_trusted);

/// Connects to `address`; empty if nobody listens there. A full queue is waited for. kTimeout after
/// the deadline; kUnauthenticated if somebody else's process listens there.
std::optional<Fd> try_connect(std::string_view address, Deadline& deadline,
                              const Interrupt& interrupt = {});
/// The same, and kSystem if nobody listens.
Fd connect(std::string_view address, Deadline& deadline, const Interrupt& interrupt = {});

inline constexpr std::size_t kMaxDescriptors = 64;  ///< in one message

/// Sends all of `bytes` (at least one), with descriptors attached to the first. False if the peer
/// has closed.
bool send_all(int socket, std::span<const std::byte> bytes, Deadline& deadline,
              std::span<const int> descriptors = {}, const Interrupt& interrupt = {});

/// Receives exactly `bytes.size()` bytes and whatever descriptors come with them, at most
/// `max_descriptors`. False if the peer closed before the first byte; kSystem if it closed later.
bool receive_all(int socket, std::span<std::byte> bytes, Deadline& deadline,
                 std::vector<Fd>* descriptors = nullptr, std::size_t max_descriptors = 0,
                 const Interrupt& interrupt = {});

/// Sends one packet on a socket that keeps bounds, between a process and its keeper. Where the
/// other end has gone the packet goes nowhere: the own end shows it. `may_block`: until there is
/// room; else a full socket drops it. Without memory in the kernel it is tried again, for 10 s.
void send_packet(int socket, std::span<const std::byte> packet, bool may_block) noexcept;

enum class IoResult : std::uint8_t { progress, again, closed };
/// One send or receive that does not block. `closed`: the other end is gone, in whatever way.
IoResult send_some(int socket, std::span<const std::byte> bytes, std::size_t* moved,
                   std::span<const int> descriptors = {});
IoResult receive_some(int socket, std::span<std::byte> bytes, std::size_t* moved,
                      std::vector<Fd>* descriptors = nullptr, std::size_t max_descriptors = 0);

}  // namespace tutti::net
