#include "net/shake_hands.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>

#include "net/poller.h"
#include "net/tcp.h"

namespace tutti::net {
namespace {

/// So few bytes always have room in a new connection.
int send_all_of(Handshake& handshake, int socket) {
  while (!handshake.unsent().empty()) {
    const auto unsent = handshake.unsent();
    const iovec part{const_cast<std::byte*>(unsent.data()), unsent.size()};
    const TcpMoved moved = send_parts(socket, {&part, 1});
    if (moved.bytes == 0) return moved.error_number != 0 ? moved.error_number : ECONNRESET;
    handshake.has_sent(moved.bytes);
  }
  return 0;
}

}  // namespace

int advance(Handshake& handshake, int socket) {
  for (;;) {
    if (const int error_number = send_all_of(handshake, socket)) return error_number;
    if (handshake.wants() == 0) return 0;
    std::array<std::byte, kReplyBytes> bytes;
    const iovec part{bytes.data(), handshake.wants()};
    const TcpMoved moved = receive_parts(socket, {&part, 1});
    if (moved.result == IoResult::again) return EAGAIN;
    if (moved.result == IoResult::closed)
      return moved.error_number != 0 ? moved.error_number : ECONNRESET;
    handshake.receive(std::span(bytes).first(moved.bytes));
  }
}

bool shake_hands(Handshake& handshake, int socket, Deadline& deadline) {
  for (;;) {
    const int error_number = advance(handshake, socket);
    if (error_number == 0) return true;
    if (error_number != EAGAIN) return false;
    if (poll_readable(socket, deadline) == PollResult::expired)
      throw Error(ErrorCode::kTimeout, "the other end does not answer");
  }
}

std::string advice_on_secrets(const std::string& whose, const std::string& secret_file) {
  const std::string from =
      secret_file.empty() ? "" : fmt::format(" (that of {} is {})", whose, secret_file);
  return fmt::format("give all ranks of a job copies of one file in TUTTI_SECRET_FILE{}", from);
}

Error failure_of(const Handshake& handshake, Level level, const std::string& us,
                 const std::string& them, const std::string& secret_file) {
  using Outcome = Handshake::Outcome;
  switch (handshake.outcome()) {
    case Outcome::going_on:
    case Outcome::proved:
      break;
    case Outcome::strange:
      return Error(ErrorCode::kUnauthenticated,
                   fmt::format("{}: who listens there does not speak as Tutti does", them));
    case Outcome::other_version:
      return Error(ErrorCode::kUnsupported,
                   fmt::format("{} speaks version {} of the handshake, {} version {}: use one "
                               "version of Tutti for the whole job",
                               them, handshake.other_version(), us, kHandshakeVersion));
    case Outcome::other_level:
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} has security={}, {} has security={}: give all ranks the same "
                               "TUTTI_SECURITY",
                               us, name_of(level), them, name_of(handshake.other_level())));
    case Outcome::refused:
      return Error(ErrorCode::kUnauthenticated,
                   fmt::format("{} has turned {} away: it takes no such connection", them, us));
    case Outcome::unproved:
      if (level < Level::auth) {
        return Error(ErrorCode::kUnauthenticated,
                     fmt::format("{} and {} do not agree on a key: one of them is no rank of this "
                                 "job, or what ranks told each other was changed",
                                 us, them));
      }
      return Error(ErrorCode::kUnauthenticated,
                   fmt::format("{} and {} do not have the same secret: {}", us, them,
                               advice_on_secrets(us, secret_file)));
  }
  return Error(ErrorCode::kInternal, fmt::format("{}: a handshake that has not failed", them));
}

}  // namespace tutti::net
