// A listener whose queue cannot become all that its thread works for.
//
// Any process of the machine may connect to an abstract socket, any of the network to a TCP port,
// as often as it likes. An *entrance* takes connections in turns of bounded processor time, and
// rests after each for several times as long as those took whom nobody knows: however full the
// queue is, most of the thread is left for those who are in already. Whoever finds the queue full
// waits for room in connect().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "net/fd.h"
#include "net/unix_socket.h"
#include "tutti/types.h"

namespace tutti::net {

class Entrance {
 public:
  using Clock = Deadline::Clock;
  /// Receives a connection whose other end is trusted, or anybody's over TCP; says whether it has
  /// turned out to be one of ours.
  using Welcome = std::function<bool(Fd, const Peer&)>;

  enum class Kind : std::uint8_t { local, tcp };
  /// `trusts`: of local peers, whom we take in; the others' connections are closed at once.
  explicit Entrance(Fd listener, Kind kind = Kind::local, Trust trusts = is_trusted)
      : listener_(std::move(listener)), kind_(kind), trusts_(std::move(trusts)) {}

  /// The listener, to be polled for reading; -1 while it rests.
  int watched(Clock::time_point now) const noexcept {
    return rest_until_ > now ? -1 : listener_.get();
  }
  /// When a poll that begins now has to end at the latest because of it.
  Clock::time_point next_look(Clock::time_point now) const noexcept {
    return rest_until_ > now ? rest_until_ : Clock::time_point::max();
  }
  /// Takes connections until none waits or the turn is over.
  void take_turn(const Welcome& welcome);
  void rest(std::chrono::nanoseconds duration) noexcept { rest_until_ = Clock::now() + duration; }
  void close() noexcept { listener_.reset(); }

 private:
  Fd listener_;
  Kind kind_;
  Trust trusts_;
  Clock::time_point rest_until_ = {};
};

}  // namespace tutti::net
