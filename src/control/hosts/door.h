// The door of a rank: who calls it, and whom it calls. Both ends prove who they are, and the caller
// is answered; all of that is of fixed size, so that whatever follows is left in the socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "control/hosts/hello.h"
#include "control/hosts/shortage.h"
#include "control/judge/clock.h"
#include "net/events.h"
#include "net/fd.h"
#include "net/secured.h"
#include "net/tcp.h"

namespace tutti::control {

/// How long a caller may take to prove who it is, and how many may be about to.
inline constexpr std::chrono::seconds kHelloTime{2};
inline constexpr std::size_t kMostCallers = 256;

/// Used by the thread that runs `events`, and by no other.
class Door {
 public:
  /// The key of connections for what a caller claims; none: it is turned away.
  using KeyFor = std::function<std::optional<net::Key>(const Hello&)>;
  /// Of who has proved it.
  using OnHello = std::function<Answer(const Hello&)>;
  /// Of who was told to be welcome.
  using OnGuest = std::function<void(const Hello&, net::Secured)>;
  Door(net::Events& events, net::Fd listener, net::Level level, int world_size, Shortage& shortage,
       KeyFor key_for, OnHello on_hello, OnGuest on_guest);
  ~Door();

  /// Drops those who have taken too long. Call it now and then.
  void sweep(Clock::time_point now);
  /// Takes all who stand at the door by now and have said what they want. Whose door is closed may
  /// have left a note here before. False: some stand there still, for want of descriptors, say.
  bool hear_waiting();

 private:
  struct Caller;
  bool accept(int at_most);
  net::Fd let_in();
  bool let_one_go();
  bool hear(std::list<Caller>::iterator caller);
  void answer(Caller& caller);
  void tell_of(const Caller& caller);

  net::Events& events_;
  const net::Fd listener_;
  const net::Level level_;
  const int world_size_;
  Shortage& shortage_;
  const KeyFor key_for_;
  const OnHello on_hello_;
  const OnGuest on_guest_;
  std::list<Caller> callers_;  ///< the oldest first
  /// Of the notes that were heard: each counts once. Only who knows a key adds to them.
  std::set<net::Handshake::Nonce> notes_;
  int lines_ = 0;
  const std::unique_ptr<net::Events::Watched> watched_;
};

/// One call at the door of another rank.
class Call {
 public:
  struct Outcome {
    /// ECONNREFUSED: nobody is at that door any more; EPROTO: its answer is none.
    int error_number = 0;
    bool is_heard = false;  ///< by the other kernel, which has taken or refused the call
    std::optional<Answer> answer = {};
    net::Secured socket = {};   ///< if welcome, or nothing is answered
    std::string distrust = {};  ///< EACCES: why who is at that door is not believed
  };
  /// Once; may not end the call, but may post that.
  using OnOutcome = std::function<void(Outcome)>;
  /// `silence`: see net::end_if_silent; 0: the other host may be silent.
  Call(net::Events& events, const net::TcpAddress& address, const Hello& hello, net::Level level,
       const net::Key& key, std::chrono::milliseconds silence, OnOutcome on_outcome);

  /// There will be no outcome.
  void give_up() noexcept;
  /// Whether the other host has not even said that it hears; a process that is stopped is heard.
  bool is_connecting() const noexcept {
    return state_ == State::connecting && net::is_connecting(socket_.get());
  }
  Clock::time_point began() const noexcept { return began_; }

 private:
  enum class State : std::uint8_t { connecting, proving, asking, over };
  void look();
  void prove();
  void hear();
  void welcome(Outcome outcome);
  void distrust();
  void end(Outcome outcome);

  const Hello hello_;
  const net::TcpAddress address_;
  const net::Level level_;
  net::Handshake handshake_;
  const OnOutcome on_outcome_;
  const Clock::time_point began_ = Clock::now();
  State state_ = State::connecting;
  AnswerBytes answer_;
  std::size_t heard_ = 0;
  int connect_error_ = 0;  // before the socket, which sets it
  net::Fd socket_;
  std::unique_ptr<net::Events::Watched> watched_;
};

}  // namespace tutti::control
