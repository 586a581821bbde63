// Frames both ways over one socket, moved by the thread of net::Events.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "net/events.h"
#include "net/fd.h"
#include "net/frame.h"
#include "net/secured.h"
#include "net/tcp.h"

namespace tutti::control {

/// Used by the thread that runs `events`, and by no other; ended by none of its own calls (which
/// may post that).
class Connection {
 public:
  using OnFrame = std::function<void(const net::Frame&)>;
  /// Once, after the last frame: nothing comes or goes any more. 0: the other end has closed in
  /// order; else the number of the error, EPROTO for bytes that are no frame.
  using OnEnd = std::function<void(int error_number)>;

  /// Is connected and does not block.
  Connection(net::Events& events, net::Secured secured, std::size_t most_bytes, OnFrame on_frame,
             OnEnd on_end);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Goes out as fast as the other end takes it. None of the calls is made meanwhile. Where there
  /// is no memory for it the connection ends with ENOMEM, soon, and is reset.
  void send(const net::Frame& frame);
  /// Nothing is sent after what is pending, and the other end is told so.
  void finish();
  /// Whether our kernel has all that was sent so far, and takes more.
  bool has_sent() const noexcept { return !is_finishing_ && is_out(); }
  /// After finish: whether the kernel of the other end has all of it.
  bool has_delivered() const noexcept {
    return is_finishing_ && is_out() && !net::has_unacknowledged(socket_.get());
  }
  /// All that was sent so far, and how much of it the kernel of the other end has.
  std::uint64_t sent_bytes() const noexcept { return handed_ + out_.size() - sent_; }
  std::uint64_t acknowledged_bytes() const noexcept {
    return handed_ - std::min<std::uint64_t>(handed_, net::unacknowledged_bytes(socket_.get()));
  }
  /// How long ago something last came from that kernel.
  std::chrono::milliseconds since_heard() const noexcept { return net::since_heard(socket_.get()); }
  /// None of the calls is made any more.
  void give_up() noexcept { has_ended_ = true; }

 private:
  bool is_out() const noexcept { return send_error_ == 0 && out_.empty(); }
  void look();
  void read();
  void take(std::span<const std::byte> bytes);
  void flush();
  void end(int error_number);
  void arm();

  const net::Fd socket_;
  const OnFrame on_frame_;
  const OnEnd on_end_;
  net::FrameDecoder decoder_;
  std::optional<net::FrameMac> mac_;  // of what is sent
  std::string out_;
  std::size_t sent_ = 0;      // of those
  std::uint64_t handed_ = 0;  // to our kernel, in all
  int send_error_ = 0;        // nothing can be sent any more
  bool is_finishing_ = false, has_ended_ = false;
  const std::unique_ptr<net::Events::Watched> watched_;  // goes before the socket
};

}  // namespace tutti::control
