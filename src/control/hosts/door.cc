#include "control/hosts/door.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "base/log.h"
#include "net/poller.h"
#include "net/shake_hands.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

/// Fills `bytes` from `*filled` on with what has come. An error number; 0: it is full, EAGAIN: not
/// yet.
int fill(int socket, std::span<std::byte> bytes, std::size_t* filled) noexcept {
  while (*filled < bytes.size()) {
    const iovec part{bytes.data() + *filled, bytes.size() - *filled};
    const net::TcpMoved moved = net::receive_parts(socket, std::span(&part, 1));
    if (moved.result == net::IoResult::again) return EAGAIN;
    if (moved.result == net::IoResult::closed)
      return moved.error_number != 0 ? moved.error_number : ECONNRESET;
    *filled += moved.bytes;
  }
  return 0;
}

/// So few bytes always have room in a new connection. Whether they had.
bool say(int socket, std::span<const std::byte> bytes) noexcept {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return net::send_parts(socket, std::span(&part, 1)).bytes == bytes.size();
}

/// Of those who were turned away; strangers must not fill a log.
constexpr int kMostLines = 8;
/// Then others have their turn.
constexpr int kAcceptsAtATime = 64;
/// No more can stand at a door, of 4,096 that listen() is asked for.
constexpr int kMostWaiting = 4097;

/// Of the other end, which may have gone.
std::string address_of(int socket) try {
  return net::TcpAddress::remote(socket).text();
} catch (const Error&) {
  return "an address that is gone";
}

std::string name_of(WorldRank rank) { return "rank " + std::to_string(rank.value); }

}  // namespace

// ---- the door ----------------------------------------------------------------------------------

struct Door::Caller {
  Caller(net::Fd socket_in, net::Handshake handshake_in)
      : handshake(std::move(handshake_in)), socket(std::move(socket_in)) {}
  const Clock::time_point came = Clock::now();
  net::Handshake handshake;
  net::Fd socket;
  std::unique_ptr<net::Events::Watched> watched;  // goes before the socket
};

Door::Door(net::Events& events, net::Fd listener, net::Level level, int world_size,
           Shortage& shortage, KeyFor key_for, OnHello on_hello, OnGuest on_guest)
    : events_(events),
      listener_(std::move(listener)),
      level_(level),
      world_size_(world_size),
      shortage_(shortage),
      key_for_(std::move(key_for)),
      on_hello_(std::move(on_hello)),
      on_guest_(std::move(on_guest)),
      watched_(events.watch(listener_.get(), [this] { accept(kAcceptsAtATime); })) {
  watched_->arm(net::Events::Want::read);
}

Door::~Door() = default;

/// Whether nobody is left.
bool Door::accept(int at_most) try {
  const auto key_for = [this](const net::Claim& claim) {
    const std::optional<Hello> hello = hello_of(claim, world_size_);
    return hello ? key_for_(*hello) : std::nullopt;
  };
  for (int i = 0; i < at_most; ++i) {
    net::Fd socket = let_in();
    if (!socket) {
      watched_->arm(net::Events::Want::read);
      return true;
    }
    shortage_.is_over();
    while (callers_.size() >= kMostCallers) let_one_go();
    std::list<Caller> come;  // not a caller before it is watched
    come.emplace_back(std::move(socket), net::Handshake::called(level_, key_for));
    const auto caller = come.begin();
    caller->watched = events_.watch(caller->socket.get(), [this, caller] { hear(caller); });
    callers_.splice(callers_.end(), come);
    hear(caller);
  }
  watched_->arm(net::Events::Want::read);
  return false;
} catch (const Error& error) {
  shortage_.note(error, Clock::now());  // the next sweep tries again
  return false;
}

/// Where there is no descriptor for it, another one makes room. Empty: nobody is there.
net::Fd Door::let_in() {
  for (;;) {
    try {
      return net::accept_tcp(listener_.get());
    } catch (const Error&) {  // which the kernel says even where nobody is
      Deadline at_once = Deadline::after(std::chrono::nanoseconds(0));
      if (net::poll_readable(listener_.get(), at_once) != net::PollResult::ready) return {};
      if (!let_one_go()) throw;
    }
  }
}

/// The first that has said nothing, after a last look; else the oldest. False: there is none.
bool Door::let_one_go() {
  if (callers_.empty()) return false;
  const auto is_silent = [](const Caller& caller) { return !caller.handshake.has_claim(); };
  const auto silent = std::find_if(callers_.begin(), callers_.end(), is_silent);
  if (silent == callers_.end()) {
    callers_.pop_front();
  } else if (hear(silent) && is_silent(*silent)) {
    callers_.erase(silent);
  }
  return true;
}

bool Door::hear_waiting() {
  for (auto caller = callers_.begin(); caller != callers_.end();) hear(caller++);
  return accept(kMostWaiting);
}

void Door::sweep(Clock::time_point now) {
  hear_waiting();  // this process may have been stopped for so long
  while (!callers_.empty() && now >= callers_.front().came + kHelloTime) callers_.pop_front();
}

/// Whether it is a caller still.
bool Door::hear(std::list<Caller>::iterator caller) {
  const auto behind = std::next(caller);
  std::list<Caller> heard;  // gone from here, whatever becomes of it
  heard.splice(heard.begin(), callers_, caller);
  try {
    const int error_number = net::advance(caller->handshake, caller->socket.get());
    if (error_number == EAGAIN) {
      callers_.splice(behind, heard);
      caller->watched->arm(net::Events::Want::read);
      return true;
    }
    if (error_number != 0) return false;
    const bool has_proved = caller->handshake.outcome() == net::Handshake::Outcome::proved;
    has_proved ? answer(*caller) : tell_of(*caller);
    return false;
  } catch (...) {  // it must not take this for an end in order
    if (caller->socket) net::reset_at_close(caller->socket.get());
    throw;
  }
}

void Door::answer(Caller& caller) {
  const Hello hello = *hello_of(caller.handshake.claim(), world_size_);
  net::Secured guest;  // whole before anything is answered
  if (net::has_frame_tags(level_, caller.handshake.claim().purpose))
    guest.keys = caller.handshake.frame_keys();
  if (hello.role == Role::note) {
    if (!notes_.insert(caller.handshake.nonce()).second) return;  // somebody has recorded it
  } else {
    const Answer answer = on_hello_(hello);
    if (!say(caller.socket.get(), encode(answer)) || answer != Answer::welcome) return;
  }
  caller.watched.reset();
  guest.socket = std::move(caller.socket);
  on_guest_(hello, std::move(guest));
}

/// Who claims to be a rank of this world, and cannot prove it.
void Door::tell_of(const Caller& caller) {
  const net::Claim& claim = caller.handshake.claim();
  const auto outcome = caller.handshake.outcome();
  const bool is_worth_it = outcome == net::Handshake::Outcome::unproved ||
                           outcome == net::Handshake::Outcome::other_level;
  if (!is_worth_it || lines_ == kMostLines) return;
  const std::string who = "a process at " + address_of(caller.socket.get()) + ", as it says rank " +
                          std::to_string(claim.from) + ",";
  log(LogLevel::warn,
      "a caller was turned away: " +
          std::string(
              net::failure_of(caller.handshake, level_, name_of(WorldRank(claim.to)), who).what()) +
          (++lines_ == kMostLines ? " (there are no more lines of this kind)" : ""));
}

// ---- a call ------------------------------------------------------------------------------------

Call::Call(net::Events& events, const net::TcpAddress& address, const Hello& hello,
           net::Level level, const net::Key& key, std::chrono::milliseconds silence,
           OnOutcome on_outcome)
    : hello_(hello),
      address_(address),
      level_(level),
      handshake_(net::Handshake::calling(claim_of(hello), level, key)),
      on_outcome_(std::move(on_outcome)),
      socket_(net::begin_connect(address, &connect_error_)) {
  if (silence.count() > 0) net::end_if_silent(socket_.get(), silence);
  watched_ = events.watch(socket_.get(), [this] { look(); });
  watched_->arm(net::Events::Want::write);
}

void Call::look() try {
  if (state_ == State::connecting) {
    const int error_number = connect_error_ != 0 ? connect_error_ : net::end_connect(socket_.get());
    if (error_number != 0) return end({.error_number = error_number});
    state_ = State::proving;
  }
  if (state_ == State::proving) prove();
  if (state_ == State::asking) hear();
} catch (...) {  // no event may come that would take it up again
  if (state_ != State::over) end({.error_number = ENOMEM});
  throw;
}

void Call::prove() {
  const int error_number = net::advance(handshake_, socket_.get());
  if (error_number == EAGAIN) {
    watched_->arm(net::Events::Want::read);
    return;
  }
  if (error_number != 0) return end({.error_number = error_number});
  if (handshake_.outcome() != net::Handshake::Outcome::proved) return distrust();
  state_ = State::asking;
  if (hello_.role == Role::note) welcome({});
}

void Call::distrust() {
  const Error why = net::failure_of(handshake_, level_, name_of(hello_.from),
                                    name_of(hello_.to) + " at " + address_.text());
  end({.error_number = EACCES, .distrust = why.what()});
}

void Call::hear() {
  const int error_number = fill(socket_.get(), answer_, &heard_);
  if (error_number == EAGAIN) {
    watched_->arm(net::Events::Want::read);
    return;
  }
  if (error_number != 0) return end({.error_number = error_number});
  const auto answer = decode_answer(answer_);
  if (!answer) return end({.error_number = EPROTO});
  if (answer == Answer::welcome) return welcome({.answer = answer});
  end({.answer = answer});
}

void Call::welcome(Outcome outcome) {
  if (net::has_frame_tags(level_, handshake_.claim().purpose))
    outcome.socket.keys = handshake_.frame_keys();
  outcome.socket.socket = std::move(socket_);
  end(std::move(outcome));
}

void Call::give_up() noexcept {
  state_ = State::over;
  watched_.reset();
  socket_.reset();
}

void Call::end(Outcome outcome) {
  const bool is_reset = outcome.error_number == ECONNREFUSED || outcome.error_number == ECONNRESET;
  outcome.is_heard = is_reset || state_ != State::connecting;
  state_ = State::over;
  watched_.reset();
  on_outcome_(std::move(outcome));
}

}  // namespace tutti::control
