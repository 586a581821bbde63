#include "net/tcp.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

constexpr std::chrono::nanoseconds kBetweenTries = std::chrono::milliseconds(50);

Fd make_socket(int family) {
  Fd socket = Fd::open_private(
      [&] { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP); });
  if (!socket) throw system_error("cannot make a TCP socket", errno);
  return socket;
}

/// A frame is sent in one go: there is nothing to wait for.
void send_at_once(const Fd& socket) {
  const int on = 1;
  if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    throw system_error("cannot set TCP_NODELAY", errno);
  }
}

/// Whether another try may go better: the other end may not be there yet, nor its route.
bool may_come(int error_number) {
  return error_number == ECONNREFUSED || error_number == ECONNRESET || error_number == ETIMEDOUT ||
         error_number == EHOSTUNREACH || error_number == ENETUNREACH;
}

Error not_connected(const TcpAddress& address, PollResult result, int last_error,
                    const Deadline& deadline) {
  if (result == PollResult::aborted || result == PollResult::woken) {
    return Error(ErrorCode::kAborted,
                 fmt::format("connecting to {} was interrupted by an abort", address.text()));
  }
  const double budget = std::chrono::duration<double>(deadline.budget()).count();
  return Error(ErrorCode::kTimeout,
               fmt::format("connecting to {}: {} for {:.1f} s{}", address.text(),
                           last_error == 0 ? "no answer" : std::strerror(last_error), budget,
                           last_error == ECONNREFUSED ? "; is the process there still running?"
                                                      : "; is the address right, and does a "
                                                        "firewall let the port through?"));
}

/// One try. The error number, 0 when connected.
int try_once(const Fd& socket, const TcpAddress& address, Deadline& deadline,
             const Interrupt& interrupt, PollResult* polled) {
  *polled = PollResult::ready;
  if (::connect(socket.get(), address.data(), address.size()) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  *polled = poll_writable(socket.get(), deadline, interrupt);
  return *polled == PollResult::ready ? end_connect(socket.get()) : 0;
}

/// Whether this host has such addresses at all; IPv6 may be switched off.
bool has_family(int family) {
  return static_cast<bool>(Fd::open_private([&] {
           return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
         })) ||
         errno != EAFNOSUPPORT;
}

/// Where nobody listens at a port of this host, the kernel may give that very port to who connects
/// there: then both ends are one socket.
bool is_connected_to_itself(const Fd& socket) {
  try {
    return TcpAddress::local(socket.get()).text() == TcpAddress::remote(socket.get()).text();
  } catch (const Error&) {  // the other end has gone again; the first byte will tell
    return false;
  }
}

/// Whatever else than "not now" is said of a connection, it is the last word.
template <class Call>
TcpMoved move(std::span<const iovec> parts, Call&& call) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  for (;;) {
    const ssize_t bytes = call(message);
    if (bytes >= 0) return {IoResult::progress, static_cast<std::size_t>(bytes), 0};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoResult::again, 0, 0};
    if (errno != EINTR) return {IoResult::closed, 0, errno};
  }
}

}  // namespace

std::optional<TcpAddress> TcpAddress::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string host(text.substr(0, colon));
  const std::string_view port_text = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size()) return std::nullopt;
  TcpAddress address;
  if (host.front() != '[') {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage_);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.size_ = sizeof v4;
    if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return std::nullopt;
    return address;
  }
  if (host.back() != ']') return std::nullopt;
  host = host.substr(1, host.size() - 2);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage_);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  address.size_ = sizeof v6;
  if (const std::size_t percent = host.find('%'); percent != std::string::npos) {
    v6.sin6_scope_id = ::if_nametoindex(host.c_str() + percent + 1);
    if (v6.sin6_scope_id == 0) return std::nullopt;
    host.resize(percent);
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return std::nullopt;
  // Of any other, the system writes the interface as a number.
  if (v6.sin6_scope_id != 0 && !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return std::nullopt;
  return address;
}

TcpAddress TcpAddress::of(const sockaddr* address, socklen_t size) {
  TcpAddress result;
  const bool is_known = address->sa_family == AF_INET || address->sa_family == AF_INET6;
  if (!is_known || size > sizeof result.storage_) {
    throw Error(
        ErrorCode::kInternal,
        fmt::format("an address of family {} where IPv4 or IPv6 was expected", address->sa_family));
  }
  std::memcpy(&result.storage_, address, size);
  result.size_ = size;
  return result;
}

TcpAddress TcpAddress::of_end(int socket, Ask ask, std::string_view end) {
  TcpAddress address;
  address.size_ = sizeof address.storage_;
  if (ask(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) {
    throw system_error(fmt::format("cannot ask for the address of {} end of a socket", end), errno);
  }
  return address;
}

TcpAddress TcpAddress::local(int socket) { return of_end(socket, ::getsockname, "this"); }
TcpAddress TcpAddress::remote(int socket) { return of_end(socket, ::getpeername, "the other"); }

std::string TcpAddress::host() const {
  char host[NI_MAXHOST];
  if (::getnameinfo(data(), size_, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an address of no known kind";
  }
  return host;
}

std::string TcpAddress::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                              : fmt::format("{}:{}", host(), port());
}

int TcpAddress::port() const noexcept {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

void TcpAddress::set_port(int port) noexcept {
  const in_port_t ordered = htons(static_cast<std::uint16_t>(port));
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage_).sin6_port = ordered;
  } else {
    reinterpret_cast<sockaddr_in&>(storage_).sin_port = ordered;
  }
}

bool TcpAddress::is_wildcard() const noexcept {
  if (family() == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
}

bool TcpAddress::is_loopback() const noexcept {
  if (family() == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  const in_addr v4 = reinterpret_cast<const sockaddr_in&>(storage_).sin_addr;
  return (ntohl(v4.s_addr) >> 24) == 127;
}

std::optional<Fd> try_listen_tcp(const TcpAddress& address, int* error_number) {
  if (address.is_wildcard()) {
    throw Error(ErrorCode::kInternal,
                fmt::format("a listener at {} would answer on every interface of the host; give "
                            "the address of one. Please report this",
                            address.text()));
  }
  if (!has_family(address.family())) {
    *error_number = EAFNOSUPPORT;
    return std::nullopt;
  }
  Fd socket = make_socket(address.family());
  const int on = 1;
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    throw system_error("cannot set SO_REUSEADDR", errno);
  }
  if (::bind(socket.get(), address.data(), address.size()) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    *error_number = errno;
    if (errno == EADDRINUSE || errno == EADDRNOTAVAIL) return std::nullopt;
    throw system_error(fmt::format("cannot listen at {}", address.text()), errno);
  }
  return socket;
}

Fd listen_tcp(const TcpAddress& address) {
  int error_number = 0;
  std::optional<Fd> socket = try_listen_tcp(address, &error_number);
  if (!socket) throw system_error(fmt::format("cannot listen at {}", address.text()), error_number);
  return std::move(*socket);
}

bool is_of_this_host(const TcpAddress& address) {
  if (address.is_wildcard() || !has_family(address.family())) return false;
  TcpAddress any_port = address;
  any_port.set_port(0);
  const Fd socket = make_socket(address.family());
  return ::bind(socket.get(), any_port.data(), any_port.size()) == 0;
}

namespace {

/// Calls `visit(interface, address)` for all that are up.
template <class Visit>
void visit_interfaces(Visit&& visit) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const bool is_v6 = address->sa_family == AF_INET6;
    if (!is_v6 && address->sa_family != AF_INET) continue;
    visit(entry->ifa_name,
          TcpAddress::of(address, is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)));
  }
}

bool is_local_to_link(const TcpAddress& address) {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address.data())->sin6_addr);
}

}  // namespace

std::vector<TcpAddress> own_addresses() {
  std::vector<TcpAddress> addresses;
  visit_interfaces([&](const char*, const TcpAddress& address) {
    if (!address.is_loopback() && !is_local_to_link(address)) addresses.push_back(address);
  });
  return addresses;
}

std::string interface_of(const TcpAddress& own) {
  std::string name;
  visit_interfaces([&](const char* interface, const TcpAddress& address) {
    if (name.empty() && address.host() == own.host()) name = interface;
  });
  return name;
}

std::string addresses_of_this_host() {
  std::string text;
  for (const TcpAddress& address : own_addresses())
    text += (text.empty() ? "" : ", ") + address.host();
  return text.empty() ? "none but loopback" : text;
}

std::optional<TcpAddress> address_toward(const TcpAddress& other) {
  // Nothing is sent: a connected datagram socket only looks up the way.
  const Fd socket = Fd::open_private(
      [&] { return ::socket(other.family(), SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP); });
  if (!socket || ::connect(socket.get(), other.data(), other.size()) != 0) return std::nullopt;
  TcpAddress own = TcpAddress::local(socket.get());
  own.set_port(0);
  return own;
}

Fd accept_tcp(int listener) {
  for (;;) {
    Fd socket = Fd::open_private(
        [&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (socket) {
      send_at_once(socket);
      return socket;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return socket;
    // What was wrong with one connection before it was taken: man 2 accept.
    const bool is_gone = errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN ||
                         errno == ENOPROTOOPT || errno == EHOSTDOWN || errno == ENONET ||
                         errno == EHOSTUNREACH || errno == EOPNOTSUPP || errno == ENETUNREACH;
    if (errno != EINTR && !is_gone) throw system_error("cannot accept", errno);
  }
}

Accepted accept_tcp_peer(int listener) {
  Accepted accepted;
  accepted.socket = accept_tcp(listener);
  if (!accepted.socket) return accepted;
  try {
    accepted.peer.uid = static_cast<uid_t>(-1);
    accepted.peer.address = TcpAddress::remote(accepted.socket.get()).text();
    watch_for_lost_host(accepted.socket.get());
  } catch (const Error&) {  // it has gone again
    accepted.socket.reset();
    accepted.refused = true;
  }
  return accepted;
}

std::optional<Fd> try_connect_tcp(const TcpAddress& address, Deadline& deadline, std::string* why) {
  if (!has_family(address.family())) {
    *why = std::strerror(EAFNOSUPPORT);
    return std::nullopt;
  }
  Fd socket = make_socket(address.family());
  PollResult polled = PollResult::ready;
  const int error_number = try_once(socket, address, deadline, {}, &polled);
  if (polled != PollResult::ready) {
    *why = "no answer";
    return std::nullopt;
  }
  if (error_number != 0) {
    if (!may_come(error_number)) {
      throw system_error(fmt::format("cannot connect to {}", address.text()), error_number);
    }
    *why = std::strerror(error_number);
    return std::nullopt;
  }
  if (is_connected_to_itself(socket)) {
    *why = std::strerror(ECONNREFUSED);
    return std::nullopt;
  }
  send_at_once(socket);
  return socket;
}

void watch_for_lost_host(int socket) {
  const int on = 1, idle = 1, interval = 1, probes = 4;  // seconds, but for the last
  if (::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) != 0 ||
      ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) != 0 ||
      ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval) != 0 ||
      ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes) != 0) {
    throw system_error("cannot have a connection watched", errno);
  }
}

bool HostWatch::is_silent(int socket, Clock::time_point now) noexcept {
  const bool has_watched = now - std::exchange(looked_, now) <= 2 * kPeriod;
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool is_under_way =
      ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked > 0;
  if (!is_under_way) {
    since_ = {};
  } else if (since_ == Clock::time_point{} || !has_watched) {
    since_ = now;
  }
  return is_under_way && now - since_ >= kSilence && has_fallen_silent(socket);
}

bool has_fallen_silent(int socket) noexcept { return since_heard(socket) >= kSilence; }

Fd connect_tcp(const TcpAddress& address, Deadline& deadline, const Interrupt& interrupt) {
  for (;;) {
    Fd socket = make_socket(address.family());  // a new one: of one that failed nothing is promised
    PollResult polled = PollResult::ready;
    const int error_number = try_once(socket, address, deadline, interrupt, &polled);
    if (polled != PollResult::ready) throw not_connected(address, polled, 0, deadline);
    if (error_number == 0) {
      send_at_once(socket);
      return socket;
    }
    if (!may_come(error_number)) {
      throw system_error(fmt::format("cannot connect to {}", address.text()), error_number);
    }
    polled = pause(kBetweenTries, deadline, interrupt);
    if (polled != PollResult::ready) throw not_connected(address, polled, error_number, deadline);
  }
}

Fd begin_connect(const TcpAddress& address, int* error_number) {
  Fd socket = make_socket(address.family());
  send_at_once(socket);
  const bool is_done = ::connect(socket.get(), address.data(), address.size()) == 0;
  *error_number = is_done || errno == EINPROGRESS || errno == EINTR ? 0 : errno;
  if (*error_number != 0 && !may_come(*error_number))
    throw system_error(fmt::format("cannot connect to {}", address.text()), *error_number);
  return socket;
}

int end_connect(int socket) noexcept {
  int error_number = 0;
  socklen_t size = sizeof error_number;
  const bool is_told = ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error_number, &size) == 0;
  return is_told ? error_number : errno;
}

void end_if_silent(int socket, std::chrono::milliseconds silence) {
  const auto set = [socket](int level, int option, int value) {
    if (::setsockopt(socket, level, option, &value, sizeof value) != 0)
      throw system_error("cannot bound the silence of a connection", errno);
  };
  const int seconds = std::max(1, static_cast<int>(silence.count() / 2000));
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds);
}

std::chrono::milliseconds since_heard(int socket) noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  constexpr std::uint32_t kTickMs = 10;  // the longest of a kernel's clock
  return std::chrono::milliseconds(info.tcpi_last_ack_recv -
                                   std::min(kTickMs, info.tcpi_last_ack_recv));
}

bool is_connecting(int socket) noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_state == TCP_SYN_SENT;
}

std::size_t unacknowledged_bytes(int socket) noexcept {
  int byte_count = 0;
  if (::ioctl(socket, SIOCOUTQ, &byte_count) != 0) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(byte_count);
}

void reset_at_close(int socket) noexcept {
  const linger at_once{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

bool set_least_to_read(int socket, std::size_t byte_count) noexcept {
  const int least = static_cast<int>(byte_count);
  return ::setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0;
}

TcpMoved send_parts(int socket, std::span<const iovec> parts) noexcept {
  return move(parts, [&](const msghdr& message) {
    return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

TcpMoved receive_parts(int socket, std::span<const iovec> parts) noexcept {
  TcpMoved moved =
      move(parts, [&](msghdr& message) { return ::recvmsg(socket, &message, MSG_DONTWAIT); });
  if (moved.result == IoResult::progress && moved.bytes == 0) moved.result = IoResult::closed;
  return moved;
}

}  // namespace tutti::net
