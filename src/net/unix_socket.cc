#include "net/unix_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "net/process_info.h"
#include "net/system_error.h"

namespace tutti::net {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address parse_address(std::string_view address) {
  Address parsed;
  parsed.name.sun_family = AF_UNIX;
  if (address.size() < 2 || address.size() > sizeof parsed.name.sun_path || address[0] != '@') {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is no address of a local meeting point: give '@' and a name of at "
                    "most {} bytes",
                    address.substr(0, 200), sizeof parsed.name.sun_path - 1));
  }
  std::memcpy(parsed.name.sun_path + 1, address.data() + 1, address.size() - 1);
  parsed.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  return parsed;
}

Fd make_socket() {
  Fd socket = Fd::open_private(
      [] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!socket) throw system_error("cannot make a unix socket", errno);
  return socket;
}

Error interrupted(std::string_view what, PollResult result, const Deadline& deadline) {
  if (result == PollResult::aborted) {
    return Error(ErrorCode::kAborted, fmt::format("{} was interrupted by an abort", what));
  }
  const auto budget = std::chrono::duration<double>(deadline.budget()).count();
  return Error(ErrorCode::kTimeout, deadline.budget() == std::chrono::nanoseconds::max()
                                        ? fmt::format("{}: the deadline has passed", what)
                                        : fmt::format("{}: no answer for {:.1f} s", what, budget));
}

bool is_gone(int error_number) {
  return error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN ||
         error_number == ETIMEDOUT ||
         error_number == EHOSTUNREACH;  // TCP's, of a host that is gone
}

void set_blocking(const Fd& socket, bool blocking) {
  if (::fcntl(socket.get(), F_SETFL, blocking ? 0 : O_NONBLOCK) != 0) {
    throw system_error("cannot set whether a socket blocks", errno);
  }
}

/// From now on connect() waits for room in a full queue, for a while. Room cannot be polled for;
/// but whoever waits for it is woken the moment a connection is taken from the queue, in the order
/// of coming, where others would have to look all the time.
void stand_in_line(const Fd& socket, Deadline& deadline) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(100);  // then we look up
  const auto limit = std::chrono::ceil<std::chrono::microseconds>(
      std::min(deadline.left(Deadline::Clock::now()), kLongest));
  const timeval time{0, std::max<suseconds_t>(limit.count(), 1)};  // zero would be for ever
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) != 0) {
    throw system_error("cannot give a socket a time limit", errno);
  }
  set_blocking(socket, true);
}

Error queue_is_full(std::string_view address) {
  return Error(ErrorCode::kTimeout,
               fmt::format("connecting to {}: its queue was full until the deadline. Either the "
                           "process that listens there is stopped, or others connect to it all the "
                           "time: `ss -xp` shows who",
                           address));
}

/// Room for the control message of kMaxDescriptors, aligned as the kernel wants it.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
};

void take_descriptors(msghdr& message, std::vector<Fd>* descriptors, std::size_t max_descriptors) {
  std::vector<Fd> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      taken.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw system_error("cannot receive all descriptors that were sent", EMFILE);
  }
  if (taken.empty()) return;
  if (descriptors == nullptr || descriptors->size() + taken.size() > max_descriptors) {
    throw Error(ErrorCode::kUnauthenticated,
                fmt::format("the peer sent {} descriptors where {} were expected", taken.size(),
                            max_descriptors));
  }
  for (Fd& fd : taken) descriptors->push_back(std::move(fd));
}

}  // namespace

bool is_trusted(const Peer& peer) noexcept {
  return peer.address.empty() && (peer.uid == ::geteuid() || peer.uid == 0);
}

std::string describe(const Peer& peer) {
  return peer.address.empty() ? describe_process(peer.pid)
                              : fmt::format("a process at {}", peer.address);
}

Peer peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw system_error("cannot ask who is at the other end of a socket", errno);
  }
  return {credentials.pid, credentials.uid, {}};
}

std::string random_address(std::string_view prefix) {
  std::array<unsigned char, 16> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    throw system_error("cannot get random bytes", errno);
  }
  std::string address = fmt::format("@{}-", prefix);
  for (const unsigned char byte : random) address += fmt::format("{:02x}", byte);
  return address;
}

std::optional<Fd> try_listen(std::string_view address) {
  const Address parsed = parse_address(address);
  Fd socket = make_socket();
  const auto* name = reinterpret_cast<const sockaddr*>(&parsed.name);
  if (::bind(socket.get(), name, parsed.length) != 0) {
    if (errno == EADDRINUSE) return std::nullopt;
    throw system_error(fmt::format("cannot listen at {}", address), errno);
  }
  if (::listen(socket.get(), kBacklog) != 0) {
    throw system_error(fmt::format("cannot listen at {}", address), errno);
  }
  return socket;
}

Fd listen(std::string_view address) {
  std::optional<Fd> socket = try_listen(address);
  if (!socket) throw system_error(fmt::format("cannot listen at {}", address), EADDRINUSE);
  return std::move(*socket);
}

Accepted accept(int listener, const Trust& trusts) {
  for (;;) {
    Accepted accepted;
    accepted.socket = Fd::open_private(
        [&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (accepted.socket) {
      accepted.peer = peer_of(accepted.socket.get());
      accepted.refused = !trusts(accepted.peer);
      if (accepted.refused) accepted.socket.reset();
      return accepted;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return accepted;
    if (errno != EINTR && errno != ECONNABORTED) throw system_error("cannot accept", errno);
  }
}

std::optional<Fd> try_connect(std::string_view address, Deadline& deadline,
                              const Interrupt& interrupt) {
  const Address parsed = parse_address(address);
  Fd socket = make_socket();
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&parsed.name), parsed.length) !=
         0) {
    if (errno == ECONNREFUSED) return std::nullopt;
    // EAGAIN: the listener's queue is full. EINTR: a timer's signals may be denser than its sleeps.
    if (errno != EAGAIN && errno != EINTR) {
      throw system_error(fmt::format("cannot connect to {}", address), errno);
    }
    const PollResult result = pause(std::chrono::nanoseconds(0), deadline, interrupt);
    if (result == PollResult::aborted) {
      throw interrupted(fmt::format("connecting to {}", address), result, deadline);
    }
    if (result == PollResult::expired) throw queue_is_full(address);
    stand_in_line(socket, deadline);
  }
  set_blocking(socket, false);
  const Peer peer = peer_of(socket.get());
  if (!is_trusted(peer)) {
    throw Error(ErrorCode::kUnauthenticated,
                fmt::format("{} listens at {} as user {}, and we are user {}: another user's job "
                            "has taken this place; choose another MASTER_PORT",
                            describe_process(peer.pid), address, peer.uid, ::geteuid()));
  }
  return socket;
}

Fd connect(std::string_view address, Deadline& deadline, const Interrupt& interrupt) {
  std::optional<Fd> socket = try_connect(address, deadline, interrupt);
  if (!socket) throw system_error(fmt::format("nobody listens at {}", address), ECONNREFUSED);
  return std::move(*socket);
}

void send_packet(int socket, std::span<const std::byte> packet, bool may_block) noexcept try {
  const int flags = MSG_NOSIGNAL | (may_block ? 0 : MSG_DONTWAIT);
  Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (::send(socket, packet.data(), packet.size(), flags) < 0) {
    if (errno == EINTR) continue;
    if (errno != ENOBUFS && errno != ENOMEM) return;
    if (pause(std::chrono::milliseconds(5), deadline) == PollResult::expired) return;
  }
} catch (const Error&) {  // it cannot even wait
}

IoResult send_some(int socket, std::span<const std::byte> bytes, std::size_t* moved,
                   std::span<const int> descriptors) {
  if (descriptors.size() > kMaxDescriptors) {
    throw Error(ErrorCode::kInternal, fmt::format("{} descriptors in one message, at most {} fit",
                                                  descriptors.size(), kMaxDescriptors));
  }
  iovec run{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &run;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  }
  *moved = 0;
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      *moved = static_cast<std::size_t>(sent);
      return IoResult::progress;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return IoResult::again;
    // ETOOMANYREFS: this user has too many descriptors under way; they get fewer as peers read.
    // ENOBUFS, ENOMEM: the kernel has no memory for it. Whoever polls finds room all the same, and
    // must not come again at once.
    if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) {
      Deadline moment = Deadline::after(std::chrono::milliseconds(1));
      pause(std::chrono::milliseconds(1), moment);
      return IoResult::again;
    }
    if (is_gone(errno)) return IoResult::closed;
    throw system_error("cannot send", errno);
  }
}

IoResult receive_some(int socket, std::span<std::byte> bytes, std::size_t* moved,
                      std::vector<Fd>* descriptors, std::size_t max_descriptors) {
  iovec run{bytes.data(), bytes.size()};
  ControlBuffer control{};
  *moved = 0;
  for (;;) {
    msghdr message{};
    message.msg_iov = &run;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      take_descriptors(message, descriptors, max_descriptors);
      *moved = static_cast<std::size_t>(got);
      return IoResult::progress;
    }
    if (got == 0 || is_gone(errno)) return IoResult::closed;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return IoResult::again;
    if (errno != EINTR) throw system_error("cannot receive", errno);
  }
}

bool send_all(int socket, std::span<const std::byte> bytes, Deadline& deadline,
              std::span<const int> descriptors, const Interrupt& interrupt) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    std::size_t moved = 0;
    const bool is_first = done == 0;
    const IoResult result = send_some(socket, bytes.subspan(done), &moved,
                                      is_first ? descriptors : std::span<const int>{});
    done += moved;
    if (result == IoResult::closed) return false;
    if (result != IoResult::again) continue;
    PollResult polled = poll_writable(socket, deadline, interrupt);
    // A socket with room that takes nothing, without memory in the kernel, is ready all the same.
    if (deadline.expired(Deadline::Clock::now())) polled = PollResult::expired;
    if (polled != PollResult::ready) throw interrupted("sending", polled, deadline);
  }
  return true;
}

bool receive_all(int socket, std::span<std::byte> bytes, Deadline& deadline,
                 std::vector<Fd>* descriptors, std::size_t max_descriptors,
                 const Interrupt& interrupt) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    std::size_t moved = 0;
    const IoResult result =
        receive_some(socket, bytes.subspan(done), &moved, descriptors, max_descriptors);
    done += moved;
    if (result == IoResult::closed) {
      if (done == 0) return false;
      throw system_error("the peer closed the connection in the middle of a message", ECONNRESET);
    }
    if (result != IoResult::again) continue;
    const PollResult polled = poll_readable(socket, deadline, interrupt);
    if (polled != PollResult::ready) throw interrupted("receiving", polled, deadline);
  }
  return true;
}

}  // namespace tutti::net
