#include "control/hosts/door.h"

#include <cerrno>
#include <span>
#include <utility>

#include "base/log.h"
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

/// In a time that does not tell how much of it is right.
bool is_same(const Token& one, const Token& other) noexcept {
  std::byte difference{};
  for (std::size_t i = 0; i < one.size(); ++i) difference |= one[i] ^ other[i];
  return difference == std::byte{};
}

}  // namespace

// ---- the door ----------------------------------------------------------------------------------

struct Door::Caller {
  explicit Caller(net::Fd socket_in) : socket(std::move(socket_in)) {}
  const Clock::time_point came = Clock::now();
  HelloBytes hello;
  std::size_t heard = 0;
  net::Fd socket;
  std::unique_ptr<net::Events::Watched> watched;  // goes before the socket
};

Door::Door(net::Events& events, net::Fd listener, Token token, WorldRank rank, int world_size,
           OnHello on_hello, OnGuest on_guest)
    : events_(events),
      listener_(std::move(listener)),
      token_(token),
      rank_(rank),
      world_size_(world_size),
      on_hello_(std::move(on_hello)),
      on_guest_(std::move(on_guest)),
      watched_(events.watch(listener_.get(), [this] { accept(); })) {
  watched_->arm(net::Events::Want::read);
}

Door::~Door() = default;

void Door::accept() try {
  while (net::Fd socket = net::accept_tcp(listener_.get())) {
    if (callers_.size() == kMostCallers) callers_.pop_front();
    const auto caller = callers_.emplace(callers_.end(), std::move(socket));
    caller->watched = events_.watch(caller->socket.get(), [this, caller] { hear(caller); });
    caller->watched->arm(net::Events::Want::read);
  }
  watched_->arm(net::Events::Want::read);
} catch (const Error& error) {
  // For want of descriptors, say: it is tried again with the next sweep.
  log(LogLevel::error, error.what());
}

void Door::sweep(Clock::time_point now) {
  while (!callers_.empty() && now >= callers_.front().came + kHelloTime) callers_.pop_front();
  watched_->arm(net::Events::Want::read);
}

void Door::hear(std::list<Caller>::iterator caller) {
  const int error_number = fill(caller->socket.get(), caller->hello, &caller->heard);
  if (error_number == EAGAIN) {
    caller->watched->arm(net::Events::Want::read);
    return;
  }
  std::list<Caller> heard;  // gone from here, whatever becomes of it
  heard.splice(heard.begin(), callers_, caller);
  if (error_number == 0) answer(caller);
}

void Door::answer(std::list<Caller>::iterator caller) {
  const std::optional<Hello> hello = decode_hello(caller->hello, world_size_);
  const bool is_for_us = hello && hello->to == rank_ && is_same(hello->token, token_);
  const Answer answer = is_for_us ? on_hello_(*hello) : Answer::refused;
  if (!say(caller->socket.get(), encode(answer)) || answer != Answer::welcome) return;
  caller->watched.reset();
  on_guest_(*hello, std::move(caller->socket));
}

// ---- a call ------------------------------------------------------------------------------------

Call::Call(net::Events& events, const net::TcpAddress& address, const Hello& hello,
           std::chrono::milliseconds silence, OnOutcome on_outcome)
    : hello_(hello), on_outcome_(std::move(on_outcome)), socket_(net::begin_connect(address)) {
  if (silence.count() > 0) net::end_if_silent(socket_.get(), silence);
  watched_ = events.watch(socket_.get(), [this] { look(); });
  watched_->arm(net::Events::Want::write);
}

void Call::look() {
  if (state_ == State::connecting) {
    say_hello();
  } else if (state_ == State::asking) {
    hear();
  }
}

void Call::say_hello() {
  const int error_number = net::end_connect(socket_.get());
  if (error_number != 0) return end(error_number);
  if (!say(socket_.get(), encode(hello_))) return end(ECONNRESET);
  state_ = State::asking;
  watched_->arm(net::Events::Want::read);
}

void Call::hear() {
  const int error_number = fill(socket_.get(), answer_, &heard_);
  if (error_number == EAGAIN) {
    watched_->arm(net::Events::Want::read);
    return;
  }
  if (error_number != 0) return end(error_number);
  const auto answer = decode_answer(answer_);
  answer ? end(0, answer) : end(EPROTO);
}

void Call::give_up() noexcept {
  state_ = State::over;
  watched_.reset();
  socket_.reset();
}

void Call::end(int error_number, std::optional<Answer> answer) {
  state_ = State::over;
  watched_.reset();
  Outcome outcome{.error_number = error_number, .answer = answer};
  if (answer == Answer::welcome) outcome.socket = std::move(socket_);
  on_outcome_(std::move(outcome));
}

}  // namespace tutti::control
