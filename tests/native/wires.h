// The data connections between the hosts of a test, whose ranks are threads.
#pragma once

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <barrier>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "control/board/board.h"
#include "control/hosts/peer_sockets.h"
#include "net/events.h"
#include "net/keys.h"
#include "net/tcp.h"
#include "tutti/error.h"

namespace tutti::native {

inline bool frames_have_tags = false;  ///< of the Wires that are made from then on

/// A connection is there some time after it was first asked for, by either end.
class Wires {
 public:
  enum class Kind : std::uint8_t { narrow, tcp };
  /// `hosts`: by rank. A narrow stream holds a few kilobytes, so that everything goes and comes in
  /// parts.
  explicit Wires(std::vector<int> hosts, Kind kind = Kind::narrow)
      : hosts_(std::move(hosts)),
        kind_(kind),
        memory_(control::Board::make(static_cast<int>(hosts_.size()))),
        board_(memory_),
        made_it_(static_cast<std::ptrdiff_t>(hosts_.size())),
        runner_([this] {
          while (!stopping_.load())
            events_.run(net::Events::Clock::now() + std::chrono::milliseconds(50));
        }) {}
  ~Wires() {
    stopping_.store(true);
    events_.post([] {});
    runner_.join();
  }
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  const std::vector<int>& hosts() const noexcept { return hosts_; }
  /// Of the ranks, whose bells it rings.
  int board_fd() const noexcept { return memory_.get(); }
  net::Events& events() noexcept { return events_; }
  /// From now on nobody is given any.
  void refuse(ErrorCode code = ErrorCode::kSystem) noexcept {
    refused_by_.store(code);
    refuses_.store(true);
  }
  /// Waits for all ranks.
  void all_have_made_it() { made_it_.arrive_and_wait(); }
  /// From now on `rank` is given none, as if it did nothing.
  void withhold(int rank) noexcept { withheld_.store(rank); }
  /// From now on nobody is at anybody's door.
  void end_all() noexcept { has_ended_.store(true); }
  bool has_ended() const noexcept { return has_ended_.load(); }
  /// How many connections have been made.
  int count() {
    const std::lock_guard lock(mutex_);
    return made_;
  }
  /// The end of `rank`, as it was given away; -1 if it was not.
  int end_of(GroupId group, int rank, int peer, std::uint8_t lane) {
    const std::lock_guard lock(mutex_);
    const auto found = wires_.find(key(group, rank, peer, lane));
    return found == wires_.end() ? -1 : found->second.given[rank < peer ? 0 : 1];
  }

  /// Whether something lies unread at the end of `rank`, which it was not given.
  bool lies_at(GroupId group, int rank, int peer, std::uint8_t lane) {
    const std::lock_guard lock(mutex_);
    const auto found = wires_.find(key(group, rank, peer, lane));
    if (found == wires_.end()) return false;
    const net::Fd& end = found->second.ends[rank < peer ? 0 : 1];
    int bytes = 0;
    return end && ::ioctl(end.get(), FIONREAD, &bytes) == 0 && bytes > 0;
  }

  net::Secured try_take(GroupId group, int rank, int peer, std::uint8_t lane) {
    EXPECT_NE(hosts_[static_cast<std::size_t>(rank)], hosts_[static_cast<std::size_t>(peer)]);
    if (refuses_.load()) throw Error(refused_by_.load(), "no route to host");
    const std::lock_guard lock(mutex_);
    Wire& wire = wires_[key(group, rank, peer, lane)];
    const std::size_t end = rank < peer ? 0 : 1;
    if (wire.state == Wire::State::none) {
      wire.state = Wire::State::asked;
      events_.post([this, &wire, rank, peer] {
        const std::lock_guard also(mutex_);
        wire.ends = make();
        ++made_;
        wire.state = Wire::State::there;
        for (const int each : {rank, peer}) ring(board_.bell(SlotIndex(each)));
      });
    }
    if (rank == withheld_.load()) return {};
    if (wire.ends[end]) wire.given[end] = wire.ends[end].get();
    return secured(std::move(wire.ends[end]), end);
  }
  bool has_come(GroupId group, int rank, int peer, std::uint8_t lane) {
    const std::lock_guard lock(mutex_);
    const auto found = wires_.find(key(group, rank, peer, lane));
    return found != wires_.end() && found->second.state == Wire::State::there;
  }

 private:
  struct Wire {
    enum class State : std::uint8_t { none, asked, there } state = State::none;
    std::array<net::Fd, 2> ends;  // the first is that of the lower rank
    std::array<int, 2> given = {-1, -1};
  };
  using Key = std::tuple<GroupId, int, int, std::uint8_t>;
  static Key key(GroupId group, int rank, int peer, std::uint8_t lane) {
    return {group, std::min(rank, peer), std::max(rank, peer), lane};
  }

  /// Two keys that both ends know, where frames have tags.
  net::Secured secured(net::Fd socket, std::size_t end) const {
    if (!is_protected_ || !socket) return socket;
    const net::Key keys[2] = {net::derive({}, {}, "of the lower"),
                              net::derive({}, {}, "the other")};
    return {std::move(socket), net::FrameKeys{keys[end], keys[1 - end]}};
  }

  std::array<net::Fd, 2> make() const {
    if (kind_ == Kind::narrow) {
      // Not TCP's: that waits for timers when its buffers are so small.
      int ends[2] = {-1, -1};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
      for (const int each : ends) {
        const int least = 1;
        EXPECT_EQ(::setsockopt(each, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
      }
      return {net::Fd(ends[0]), net::Fd(ends[1])};
    }
    const net::Fd listener = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    net::Fd out = net::connect_tcp(net::TcpAddress::local(listener.get()), deadline);
    EXPECT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
    return {std::move(out), net::accept_tcp(listener.get())};
  }

  const std::vector<int> hosts_;
  const bool is_protected_ = frames_have_tags;
  const Kind kind_;
  const net::Fd memory_;
  const control::Board board_;
  std::barrier<> made_it_;
  net::Events events_;
  std::mutex mutex_;
  std::map<Key, Wire> wires_;  // mutex_
  int made_ = 0;               // mutex_
  std::atomic<int> withheld_{-1};
  std::atomic<bool> refuses_{false};
  std::atomic<ErrorCode> refused_by_{};
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> stopping_{false};
  std::thread runner_;
};

/// Those of one rank.
class WireSockets final : public control::PeerSockets {
 public:
  WireSockets(Wires& wires, int rank) : wires_(wires), rank_(rank) {}
  void expect(GroupId) override {}
  void forget(GroupId) noexcept override {}
  net::Secured try_take(GroupId group, WorldRank peer, std::uint8_t lane) override {
    return wires_.try_take(group, rank_, peer.value, lane);
  }
  bool has_come(GroupId group, WorldRank peer, std::uint8_t lane) override {
    return wires_.has_come(group, rank_, peer.value, lane);
  }
  bool has_ended(WorldRank) override { return wires_.has_ended(); }
  net::Events& events() noexcept override { return wires_.events(); }

 private:
  Wires& wires_;
  const int rank_;
};

}  // namespace tutti::native
