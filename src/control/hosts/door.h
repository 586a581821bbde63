// The door of a rank: who calls it, and whom it calls. A caller says *hello* and is answered; both
// are of fixed size, so that whatever follows is left in the socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "control/hosts/hello.h"
#include "control/judge/clock.h"
#include "net/events.h"
#include "net/fd.h"
#include "net/tcp.h"

namespace tutti::control {

/// How long a caller may take to say hello, and how many may be about to.
inline constexpr std::chrono::seconds kHelloTime{2};
inline constexpr std::size_t kMostCallers = 256;

/// Used by the thread that runs `events`, and by no other.
class Door {
 public:
  /// Of who said hello as a rank of this world does to this rank.
  using OnHello = std::function<Answer(const Hello&)>;
  /// Of who was told to be welcome.
  using OnGuest = std::function<void(const Hello&, net::Fd)>;
  Door(net::Events& events, net::Fd listener, Token token, WorldRank rank, int world_size,
       OnHello on_hello, OnGuest on_guest);
  ~Door();

  /// Drops those who have taken too long. Call it now and then.
  void sweep(Clock::time_point now);

 private:
  struct Caller;
  void accept();
  void hear(std::list<Caller>::iterator caller);
  void answer(std::list<Caller>::iterator caller);

  net::Events& events_;
  const net::Fd listener_;
  const Token token_;
  const WorldRank rank_;
  const int world_size_;
  const OnHello on_hello_;
  const OnGuest on_guest_;
  std::list<Caller> callers_;  ///< the oldest first
  const std::unique_ptr<net::Events::Watched> watched_;
};

/// One call at the door of another rank.
class Call {
 public:
  struct Outcome {
    int error_number = 0;  ///< ECONNREFUSED: nobody is at that door any more
    std::optional<Answer> answer = {};
    net::Fd socket = {};  ///< if welcome
  };
  /// Once; may not end the call, but may post that.
  using OnOutcome = std::function<void(Outcome)>;
  /// `silence`: see net::end_if_silent; 0: the other host may be silent.
  Call(net::Events& events, const net::TcpAddress& address, const Hello& hello,
       std::chrono::milliseconds silence, OnOutcome on_outcome);

  /// There will be no outcome.
  void give_up() noexcept;
  /// Whether the other host has not even said that it hears; a process that is stopped is heard.
  bool is_connecting() const noexcept { return state_ == State::connecting; }
  Clock::time_point began() const noexcept { return began_; }

 private:
  enum class State : std::uint8_t { connecting, asking, over };
  void look();
  void say_hello();
  void hear();
  void end(int error_number, std::optional<Answer> answer = {});

  const Hello hello_;
  const OnOutcome on_outcome_;
  const Clock::time_point began_ = Clock::now();
  State state_ = State::connecting;
  AnswerBytes answer_;
  std::size_t heard_ = 0;
  net::Fd socket_;
  std::unique_ptr<net::Events::Watched> watched_;
};

}  // namespace tutti::control
