// A host of one rank and the door of a rank on another host, which is the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control/board/board.h"
#include "control/hosts/connection.h"
#include "control/hosts/door.h"
#include "control/hosts/remote_hosts.h"
#include "control/hosts/report.h"
#include "control/hosts/vote_frame.h"
#include "net/frame.h"
#include "net/frame_mac.h"
#include "net/poller.h"
#include "net/shake_hands.h"

namespace tutti::control {

using namespace std::chrono_literals;

inline constexpr WorldRank kNear{0};

inline void reset(net::Fd socket) { net::reset_at_close(socket.get()); }

/// Rank 0, alone on its host and its relay; rank 1 on another host is a listener.
struct Hosts {
  explicit Hosts(net::Level level = net::Level::none)
      : security{.level = level, .secret = net::Key(net::digest_of(net::bytes_of("a secret")))},
        near(options()) {
    near.links().open();
  }

  RemoteOptions options() {
    near_door = net::TcpAddress::local(own_door.get());
    std::vector<DoorPlate> plates;
    std::vector<std::string> texts;
    for (const net::Fd* listener : {&own_door, &far_door}) {
      plates.push_back({.address = net::TcpAddress::local(listener->get()),
                        .level = security.level,
                        .public_key = keys.public_key()});
      texts.push_back(
          encode(plates.back(), WorldRank(static_cast<int>(plates.size()) - 1), security));
    }
    far_keys.emplace(security, keys, texts);
    return {.memory = net::Fd(::dup(memory.get())),
            .roster = roster,
            .rank = kNear,
            .listener = std::move(own_door),
            .plates = std::move(plates),
            .keys = DoorKeys(security, keys, texts)};
  }
  HostFacts::State state() { return near.links().facts()[1].state; }
  /// How long until the other host is dead, of which nobody is left from now on.
  Clock::duration time_until_dead() {
    far_door = {};
    const auto begin = Clock::now();
    while (state() != HostFacts::State::dead && Clock::now() < begin + 30s)
      std::this_thread::sleep_for(1ms);
    return Clock::now() - begin;
  }
  /// As rank 1 at the door of rank 0.
  net::Handshake calling(net::Purpose purpose) {
    return net::Handshake::calling({.purpose = purpose, .from = 1, .to = 0}, security.level,
                                   far_keys->with(kNear, keys.public_key()));
  }
  net::Fd call_near() {
    Deadline deadline = Deadline::after(10s);
    return net::connect_tcp(near_door, deadline);
  }
  net::Fd next_call() {
    for (const auto end = Clock::now() + 10s; Clock::now() < end;) {
      net::Fd caller = net::accept_tcp(far_door.get());
      if (caller) return caller;
      std::this_thread::sleep_for(1ms);
    }
    return {};
  }

  net::Fd memory = Board::make(1, 2);
  Board board{memory};
  const Roster roster{{{"host-a", world_ranks({0})}, {"host-b", world_ranks({1})}}, 0};
  net::Fd far_door = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  net::Fd own_door = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  net::TcpAddress near_door;
  const net::Security security;
  const net::KeyPair keys = net::KeyPair::make();  // both ranks' own
  std::optional<DoorKeys> far_keys;
  RemoteHosts near;
};

/// On the thread for other hosts, which has run all that was posted before.
inline bool run_there(Hosts& hosts, const std::function<bool()>& call) {
  std::atomic<bool> has_run{false}, result{false};
  static_cast<PeerSockets&>(hosts.near).events().post([&] {
    result = call();
    has_run = true;
  });
  while (!has_run) std::this_thread::sleep_for(1ms);
  return result;
}
/// Returns once that thread has run all that was posted before.
inline void run_posted(Hosts& hosts) {
  run_there(hosts, [] { return true; });
}

/// The rank behind the far door, as far as the greeting; then every guest is given to `on_guest`.
struct FarRank {
  FarRank(Hosts& hosts, std::function<void(net::Secured)> on_guest)
      : door(
            events, std::move(hosts.far_door), net::Level::none, 2, shortage,
            [&hosts](const Hello& hello) { return hosts.far_keys->with(hello.from, {}); },
            [](const Hello&) { return Answer::welcome; },
            [on_guest = std::move(on_guest)](const Hello&, net::Secured guest) {
              on_guest(std::move(guest));
            }) {}
  bool run_until(const bool& is_done) {
    const auto end = Clock::now() + 10s;
    while (!is_done && Clock::now() < end) events.run(Clock::now() + 20ms);
    return is_done;
  }
  net::Events events;
  std::vector<std::unique_ptr<Connection>> lines;
  Shortage shortage;
  Door door;
  Deadline patience = Deadline::after(10s);
};

/// What stands in a frame on a line or in a note: see remote_hosts.cc.
inline constexpr std::uint32_t kReport = 1, kVote = 2;

/// A note of rank 1, of which nothing has gone out yet.
struct Note {
  explicit Note(Hosts& hosts)
      : handshake(hosts.calling(net::Purpose::note)), mac(handshake.frame_keys().send) {}
  std::string proof() const { return std::string(net::text_of(handshake.unsent())); }
  std::string tagged(std::uint32_t kind, const std::string& body) {
    std::string bytes;
    net::append_frame(&bytes, {.type = kind, .id = 0, .body = body}, &mac);
    return bytes;
  }
  net::Handshake handshake;
  net::FrameMac mac;
};

/// Rank 1 as the relay of its host, whom rank 0 has welcomed.
struct FarRelay {
  explicit FarRelay(Hosts& hosts) : socket(hosts.call_near()) {
    net::Handshake handshake = hosts.calling(net::Purpose::line);
    Deadline deadline = Deadline::after(10s);
    AnswerBytes answer{};
    EXPECT_TRUE(net::shake_hands(handshake, socket.get(), deadline));
    EXPECT_EQ(net::poll_readable(socket.get(), deadline), net::PollResult::ready);
    EXPECT_EQ(::recv(socket.get(), answer.data(), answer.size(), 0),
              static_cast<ssize_t>(answer.size()));
    mac.emplace(handshake.frame_keys().send);
    run_posted(hosts);  // rank 0 listens to it by now
  }
  std::string tagged(const std::string& vote) {
    std::string bytes;
    net::append_frame(&bytes, {.type = kVote, .id = 0, .body = vote}, &*mac);
    return bytes;
  }
  net::Fd socket;
  std::optional<net::FrameMac> mac;
};

inline std::string that_it_has_left() {
  const Report report{.rank = WorldRank(1), .stamp = 1, .has_left = true};
  return encode(report, Clock::now());
}

inline void say(const net::Fd& socket, const std::string& words) {
  Deadline deadline = Deadline::after(10s);
  net::send_all(socket.get(), net::bytes_of(words), deadline);
}

/// Whether the other end closes, whatever it says before that.
inline bool is_closed(const net::Fd& socket, Deadline deadline = Deadline::after(10s)) {
  std::array<std::byte, 256> bytes;
  while (net::poll_readable(socket.get(), deadline) == net::PollResult::ready)
    if (::recv(socket.get(), bytes.data(), bytes.size(), 0) <= 0) return true;
  return false;
}

/// Says all of it at the door of rank 0, and returns once that has read it.
inline void leave(Hosts& hosts, const std::string& words) {
  const net::Fd socket = hosts.call_near();
  say(socket, words);
  ::shutdown(socket.get(), SHUT_WR);
  EXPECT_TRUE(is_closed(socket));
}

}  // namespace tutti::control
