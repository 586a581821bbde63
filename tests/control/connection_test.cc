// Where something that a connection between hosts or a call at a door does throws: no memory, say.
#include "control/hosts/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "control/hosts/door.h"
#include "net/frame.h"
#include "refused_memory.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

net::Fd listener() { return net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0")); }

net::Fd connected_to(const net::Fd& listener) {
  int error_number = 0;
  net::Fd socket = net::begin_connect(net::TcpAddress::local(listener.get()), &error_number);
  EXPECT_EQ(error_number, 0);
  return socket;
}

net::Fd accepted(const net::Fd& listener) {
  net::Fd socket;
  for (const auto begin = Clock::now(); !socket && Clock::now() < begin + 10s;)
    socket = net::accept_tcp(listener.get());
  return socket;
}

template <class Done>
void run_until(net::Events& events, Done&& done, std::size_t* thrown = nullptr) {
  for (const auto begin = Clock::now(); !done() && Clock::now() < begin + 10s;) {
    try {
      events.run(Clock::now() + 10ms);
    } catch (const std::bad_alloc&) {
      if (thrown != nullptr) ++*thrown;
    }
  }
}

// Else the other end would think that all was heard: it says nothing twice on one connection.
TEST(Connection, WhoseFrameWasLostEndsForBothEnds) {
  const net::Fd door = listener();
  net::Events events;
  int heard = 0;
  std::optional<int> near_end, far_end;
  Connection far(
      events, connected_to(door), 1 << 10, [](const net::Frame&) {},
      [&](int error_number) { far_end = error_number; });
  std::optional<Connection> near;
  near.emplace(
      events, accepted(door), 1 << 10,
      [&](const net::Frame&) {
        if (++heard == 2) throw std::bad_alloc();
      },
      [&](int error_number) { near_end = error_number; });
  for (int i = 0; i < 3; ++i) far.send({.type = 1, .id = 0, .body = "a frame"});
  std::size_t thrown = 0;
  run_until(
      events, [&] { return near_end.has_value(); }, &thrown);
  EXPECT_EQ(near_end, ENOMEM);
  EXPECT_EQ(thrown, 1u);
  EXPECT_EQ(heard, 2);
  near.reset();
  run_until(events, [&] { return far_end.has_value(); });
  EXPECT_EQ(far_end, ECONNRESET);  // 0 would be an orderly end
}

// What has gone out before that is said, as far as the kernel has it: here since the other end does
// not read.
TEST(Connection, ThatHasSaidItsLastWordsIsNotReset) {
  constexpr std::size_t kWords = 96 << 10;
  const net::Fd door = listener();
  const int room = 4 << 10;
  ::setsockopt(door.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  net::Events events;
  std::optional<Connection> near;
  bool has_ended = false;
  near.emplace(
      events, connected_to(door), 1 << 10, [](const net::Frame&) { throw std::bad_alloc(); },
      [&](int) { has_ended = true; });
  const net::Fd far = accepted(door);
  std::string words, frame;
  net::append_frame(&words, {.type = 1, .id = 0, .body = std::string(kWords, 'x')});
  near->send({.type = 1, .id = 0, .body = std::string(kWords, 'x')});
  near->finish();
  net::append_frame(&frame, {.type = 1, .id = 0, .body = "a frame"});
  ASSERT_EQ(::send(far.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
  std::size_t thrown = 0;
  run_until(
      events, [&] { return has_ended; }, &thrown);
  EXPECT_EQ(thrown, 1u);
  near.reset();
  std::string heard;
  std::array<char, 4096> bytes;
  for (const auto end = Clock::now() + 10s; Clock::now() < end;) {
    const ssize_t count = ::recv(far.get(), bytes.data(), bytes.size(), 0);
    if (count == 0 || (count < 0 && errno != EAGAIN)) break;
    if (count > 0) heard.append(bytes.data(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(heard.size(), words.size());
}

/// Whether a frame has come where memory was refused at the `until`th time.
bool has_sent(std::size_t until) {
  const net::Fd door = listener();
  net::Events events;
  bool is_heard = false;
  std::optional<int> near_end, far_end;
  std::optional<Connection> far;
  far.emplace(
      events, connected_to(door), 1 << 20, [](const net::Frame&) {},
      [&](int error_number) { far_end = error_number; });
  Connection near(
      events, accepted(door), 1 << 20, [&](const net::Frame&) { is_heard = true; },
      [&](int error_number) { near_end = error_number; });
  const net::Frame frame{.type = 1, .id = 0, .body = std::string(1 << 16, 'x')};
  refuse_own_memory(until);
  far->send(frame);
  refuse_own_memory(0);
  far->finish();
  run_until(events, [&] { return is_heard || far_end; });
  if (is_heard) return true;
  EXPECT_EQ(far_end, ENOMEM);
  EXPECT_FALSE(far->has_delivered());
  far.reset();
  run_until(events, [&] { return near_end.has_value(); });
  EXPECT_EQ(near_end, ECONNRESET);  // 0 would be an orderly end
  return false;
}

// Half a frame would make no sense to the other end.
TEST(Connection, WhoseFrameFindsNoMemoryEndsForBothEnds) {
  std::size_t until = 1;
  while (!has_sent(until) && !HasFailure()) ++until;
  EXPECT_GT(until, 1u) << "none was refused";
}

// What a stopped process does not read its kernel has, until it takes no more.
TEST(Connection, CountsWhatTheOtherKernelHas) {
  const net::Fd door = listener();
  net::Events events;
  const auto nothing = [](auto&&...) {};
  Connection far(events, connected_to(door), 1 << 20, nothing, nothing);
  const net::Fd near = accepted(door);
  const net::Frame frame{.type = 1, .id = 0, .body = std::string(1000, 'x')};
  const auto has_all = [&] { return far.acknowledged_bytes() == far.sent_bytes(); };
  far.send(frame);
  const std::uint64_t one = far.sent_bytes();
  EXPECT_GT(one, 1000u);
  run_until(events, has_all);
  EXPECT_TRUE(has_all());
  for (int i = 0; i < 100'000 && far.sent_bytes() - far.acknowledged_bytes() < (1 << 20); ++i)
    far.send(frame);
  const std::uint64_t before = far.acknowledged_bytes();
  EXPECT_GE(before, one);
  EXPECT_FALSE(has_all()) << "nobody reads";
}

/// Whether all went well where memory was refused at the `until`th time.
bool has_called(std::size_t until) {
  net::Fd door_listener = listener();
  const net::TcpAddress address = net::TcpAddress::local(door_listener.get());
  const net::Key key(net::digest_of(net::bytes_of("a secret")));
  const Hello hello{.role = Role::relay, .from = WorldRank(0), .to = WorldRank(1)};
  net::Events events;
  Shortage shortage;
  net::Secured guest;
  Door door(
      events, std::move(door_listener), net::Level::auth, 2, shortage,
      [&](const Hello&) { return std::optional(key); },
      [](const Hello&) { return Answer::welcome; },
      [&](const Hello&, net::Secured socket) { guest = std::move(socket); });
  std::optional<Call::Outcome> outcome;
  Call call(events, address, hello, net::Level::auth, key, 0ms,
            [&](Call::Outcome told) { outcome = std::move(told); });
  std::size_t thrown = 0;
  refuse_own_memory(until);
  run_until(
      events, [&] { return outcome.has_value(); }, &thrown);
  refuse_own_memory(0);
  EXPECT_TRUE(outcome) << "refused at " << until;
  const bool is_welcome = outcome && outcome->answer == Answer::welcome;
  if (is_welcome) {
    EXPECT_TRUE(outcome->socket.socket && outcome->socket.keys) << "refused at " << until;
  }
  return thrown == 0 && is_welcome;
}

TEST(CallMemory, ACallThatIsRefusedMemoryHasAnOutcome) {
  std::size_t until = 1;
  while (!has_called(until) && !HasFailure()) ++until;
  EXPECT_GT(until, 6u) << "none was refused";
}

/// Whether the door has heard a note where memory was refused at the `until`th time. All of the
/// note is there at once: a handshake that is taken up again finds more to read.
bool has_heard_note(std::size_t until) {
  net::Fd door_listener = listener();
  const net::Key key(net::digest_of(net::bytes_of("a secret")));
  const net::Handshake note = net::Handshake::calling(
      {.purpose = net::Purpose::note, .from = 0, .to = 1}, net::Level::auth, key);
  Deadline deadline = Deadline::after(10s);
  const net::Fd caller = net::connect_tcp(net::TcpAddress::local(door_listener.get()), deadline);
  EXPECT_EQ(::send(caller.get(), note.unsent().data(), note.unsent().size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(note.unsent().size()));
  net::Events events;
  Shortage shortage;
  bool is_heard = false;
  Door door(
      events, std::move(door_listener), net::Level::auth, 2, shortage,
      [&](const Hello&) { return std::optional(key); },
      [](const Hello&) { return Answer::welcome; },
      [&](const Hello&, net::Secured) { is_heard = true; });
  const auto is_over = [&] {
    std::byte none;
    return is_heard || ::recv(caller.get(), &none, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
  };
  std::size_t thrown = 0;
  refuse_own_memory(until);
  run_until(events, is_over, &thrown);
  refuse_own_memory(0);
  EXPECT_TRUE(is_over()) << "refused at " << until;
  return thrown == 0 && is_heard;
}

// What was half done proves nothing, and is no reason to call anybody a stranger.
TEST(CallMemory, AHandshakeThatIsRefusedMemoryIsNotTakenUpAgain) {
  set_log_callback([](LogLevel, std::string_view line) { ADD_FAILURE() << line; });
  std::size_t until = 1;
  while (!has_heard_note(until) && !HasFailure()) ++until;
  set_log_callback({});
  EXPECT_GT(until, 6u) << "none was refused";
}

}  // namespace
}  // namespace tutti::control
