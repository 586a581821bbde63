#include "control/hosts/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "net/tcp.h"

namespace tutti::control {

namespace {

constexpr std::size_t kReadAtATime = std::size_t{64} << 10;
constexpr int kReadsAtATime = 16;  // then others have their turn

}  // namespace

Connection::Connection(net::Events& events, net::Secured secured, std::size_t most_bytes,
                       OnFrame on_frame, OnEnd on_end)
    : socket_(std::move(secured.socket)),
      on_frame_(std::move(on_frame)),
      on_end_(std::move(on_end)),
      decoder_(most_bytes),
      watched_(events.watch(socket_.get(), [this] { look(); })) {
  if (secured.keys) {
    mac_.emplace(secured.keys->send);
    decoder_.protect(secured.keys->receive);
  }
  arm();
}

void Connection::send(const net::Frame& frame) {
  if (has_ended_ || is_finishing_ || send_error_ != 0) return;
  try {
    net::append_frame(&out_, frame, mac_ ? &*mac_ : nullptr);
  } catch (const std::exception&) {
    send_error_ = ENOMEM;
    net::reset_at_close(socket_.get());
    ::shutdown(socket_.get(), SHUT_RD);  // look() ends it
  }
  flush();
  arm();
}

void Connection::finish() {
  is_finishing_ = true;
  flush();
  arm();
}

void Connection::look() {
  flush();
  read();
  // What the other end has said before it went was read first.
  if (send_error_ != 0) end(send_error_);
  arm();
}

void Connection::arm() {
  if (has_ended_) return;
  const bool writes = sent_ < out_.size();
  watched_->arm(writes ? net::Events::Want::both : net::Events::Want::read);
}

void Connection::flush() {
  while (!has_ended_ && send_error_ == 0 && sent_ < out_.size()) {
    const iovec part{out_.data() + sent_, out_.size() - sent_};
    const net::TcpMoved moved = net::send_parts(socket_.get(), std::span(&part, 1));
    if (moved.result == net::IoResult::again) return;
    if (moved.result == net::IoResult::closed) {
      send_error_ = moved.error_number;
      break;
    }
    sent_ += moved.bytes;
    handed_ += moved.bytes;
  }
  out_.clear();
  sent_ = 0;
  if (is_finishing_ && !has_ended_ && send_error_ == 0) ::shutdown(socket_.get(), SHUT_WR);
}

void Connection::read() {
  // Not on the stack: by `ulimit -s 64` a thread has no more than this. Kept: one refusal less.
  thread_local const auto room = std::make_unique_for_overwrite<std::byte[]>(kReadAtATime);
  const std::span bytes(room.get(), kReadAtATime);
  for (int i = 0; i < kReadsAtATime && !has_ended_; ++i) {
    const iovec part{bytes.data(), bytes.size()};
    const net::TcpMoved moved = net::receive_parts(socket_.get(), std::span(&part, 1));
    if (moved.result == net::IoResult::again) return;
    if (moved.result == net::IoResult::closed) return end(moved.error_number);
    take(bytes.first(moved.bytes));
  }
}

/// Where this throws a frame is lost, so the connection is, and not by an orderly end: a relay says
/// all anew on another one, and who leaves does not take its note for read.
void Connection::take(std::span<const std::byte> bytes) try {
  decoder_.feed(bytes);
  net::Frame frame;
  net::FrameDecoder::Next next = decoder_.next(&frame);
  for (; next == net::FrameDecoder::Next::frame && !has_ended_; next = decoder_.next(&frame))
    on_frame_(frame);
  if (next == net::FrameDecoder::Next::malformed) end(EPROTO);
} catch (...) {
  if (!is_finishing_) net::reset_at_close(socket_.get());  // else the last words may be on the way
  end(ENOMEM);
  throw;
}

/// Of an error that a send has told of a read tells no more: it finds the end.
void Connection::end(int error_number) {
  if (std::exchange(has_ended_, true)) return;
  on_end_(error_number != 0 ? error_number : send_error_);
}

}  // namespace tutti::control
