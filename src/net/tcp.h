// TCP sockets: addresses with a port, listening, connecting, and moving bytes without blocking.
//
// Nothing here knows who is at the other end: a handshake says that.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/fd.h"
#include "net/poller.h"
#include "net/unix_socket.h"
#include "tutti/types.h"

namespace tutti::net {

/// An IPv4 or IPv6 address and a port, in numbers.
class TcpAddress {
 public:
  /// "192.0.2.1:29500" or "[2001:db8::1]:29500", with "%interface" where a link-local one needs it.
  /// Empty for anything else: names are not looked up.
  static std::optional<TcpAddress> parse(std::string_view text);
  /// Of the system's form; it must be IPv4 or IPv6.
  static TcpAddress of(const sockaddr* address, socklen_t size);
  /// This end of a socket.
  static TcpAddress local(int socket);
  /// The other end. Throws kSystem if there is none.
  static TcpAddress remote(int socket);

  std::string text() const;  ///< with the port, as parse() takes it
  std::string host() const;  ///< without port and brackets
  int port() const noexcept;
  void set_port(int port) noexcept;
  int family() const noexcept { return storage_.ss_family; }
  /// All addresses of a host at once.
  bool is_wildcard() const noexcept;
  /// Of this host alone: 127.0.0.0/8 or ::1.
  bool is_loopback() const noexcept;
  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const noexcept { return size_; }

 private:
  using Ask = int (*)(int socket, sockaddr* address, socklen_t* size);
  static TcpAddress of_end(int socket, Ask ask, std::string_view end);

  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// Listens at that address, which is never a wildcard; port 0: one that is free. Throws kSystem.
Fd listen_tcp(const TcpAddress& address);
/// The same; empty, with the error number, if the address is somebody's already (EADDRINUSE), not
/// of this host (EADDRNOTAVAIL), or of a family that this host does not have (EAFNOSUPPORT).
std::optional<Fd> try_listen_tcp(const TcpAddress& address, int* error_number);
/// Whether it is an address of this host.
bool is_of_this_host(const TcpAddress& address);
/// Where other hosts may reach this one, in the order of its interfaces, with port 0.
std::vector<TcpAddress> own_addresses();
/// "eth0": which has that address of this host, whatever its port; empty: none.
std::string interface_of(const TcpAddress& own);
/// "192.0.2.2, fd00::2": where other hosts may reach this one, for messages.
std::string addresses_of_this_host();
/// The address of this host from which it would speak with that one, with port 0; empty: there is
/// no way.
std::optional<TcpAddress> address_toward(const TcpAddress& other);
/// Takes one waiting connection without blocking; empty if there is none.
Fd accept_tcp(int listener);
/// The same, with the address of the other end, whose host is watched. Nothing is known of who that
/// is.
Accepted accept_tcp_peer(int listener);
/// Connects, trying again for as long as nobody listens there. kTimeout after the deadline, with
/// what the last try met.
Fd connect_tcp(const TcpAddress& address, Deadline& deadline, const Interrupt& interrupt = {});

/// One try; empty if it came to nothing that another may not mend: *why says what ("Connection
/// refused"), also where no answer has come until the deadline.
std::optional<Fd> try_connect_tcp(const TcpAddress& address, Deadline& deadline, std::string* why);
/// The kernel asks a silent other end each second whether its host is still there, and ends the
/// connection after five without an answer. A process that is stopped is there. While something is
/// under way the kernel asks nothing: HostWatch.
void watch_for_lost_host(int socket);

/// A host that acknowledges nothing of what is under way to it for so long is given up.
inline constexpr std::chrono::milliseconds kSilence{2000};

/// Finds a host that acknowledges nothing of what is under way on a connection.
///
/// Its kernel acknowledges, whatever its process does: who is stopped, or reads nothing, is not
/// silent. TCP_USER_TIMEOUT would also end a connection whose window such a process has let fill.
class HostWatch {
 public:
  using Clock = std::chrono::steady_clock;
  /// How often to look at the least.
  static constexpr std::chrono::milliseconds kPeriod{500};
  /// A time in which nobody has looked does not count: this process may have been stopped.
  bool is_silent(int socket, Clock::time_point now) noexcept;

 private:
  Clock::time_point since_ = {};  ///< something has been under way at every look; zero: nothing is
  Clock::time_point looked_ = {};
};
/// Of a connection that has ended, or is about to be: whether its host had fallen silent.
bool has_fallen_silent(int socket) noexcept;

/// Begins to connect, and waits for nothing. `*error_number`: why that has failed at once, as
/// without a route; 0: once the socket can be written, end_connect says how it went. Throws kSystem
/// where nothing was begun.
Fd begin_connect(const TcpAddress& address, int* error_number);
/// 0: it was connected, and may have ended since; else the number of the error.
int end_connect(int socket) noexcept;
/// The connection ends with ETIMEDOUT once the other host has acknowledged nothing for so long,
/// though something was sent, or nothing was and it answers no probes. A process that reads nothing
/// does not matter.
void end_if_silent(int socket, std::chrono::milliseconds silence);
/// How long ago something last came from the kernel of the other end. Each packet acknowledges, but
/// perhaps nothing new: where this host is heard no more, that one repeats what it has said. Rather
/// too short, by a tick of the kernel's clock. 0: unknown.
std::chrono::milliseconds since_heard(int socket) noexcept;
/// Whether a connection that was begun has not been answered yet.
bool is_connecting(int socket) noexcept;

/// How much of what was sent the other end has yet to acknowledge, the end of the stream as well.
std::size_t unacknowledged_bytes(int socket) noexcept;
inline bool has_unacknowledged(int socket) noexcept { return unacknowledged_bytes(socket) > 0; }
/// Whoever closes it then drops what has not gone out, and the other end reads ECONNRESET.
void reset_at_close(int socket) noexcept;

/// What one call that does not block has moved.
struct TcpMoved {
  IoResult result = IoResult::again;
  std::size_t bytes = 0;
  int error_number = 0;  ///< of `closed`: why; 0: the other end has closed in order
};
/// A connection counts as readable once so much has come, or it has ended; a reading takes what is
/// there. False: the system refuses that.
bool set_least_to_read(int socket, std::size_t byte_count) noexcept;
/// Sends the parts one after the other, as much of them as there is room for.
TcpMoved send_parts(int socket, std::span<const iovec> parts) noexcept;
/// Fills the parts one after the other with what has come; at least one byte must fit.
TcpMoved receive_parts(int socket, std::span<const iovec> parts) noexcept;

}  // namespace tutti::net
