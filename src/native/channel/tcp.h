// A channel over a TCP connection, which carries the frames of both directions.
//
// Bytes go straight from the caller's memory into the socket, and from the socket to where the
// receiver has them put: only what came together with a header lies in between, in a buffer.
// A header and its payload take a multiple of 64 bytes on the wire, so that a payload is aligned
// wherever it lies in the buffer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "native/channel/channel.h"
#include "native/channel/wire.h"
#include "net/fd.h"
#include "net/tcp.h"

namespace tutti::native {

inline constexpr std::size_t kMaxTcpPayload = std::size_t{1} << 20;

/// Both ends of it use one of these each; sender and receiver may be used at the same time.
class TcpConnection {
 public:
  /// `socket` is connected and does not block.
  explicit TcpConnection(net::Fd socket) noexcept : socket_(std::move(socket)) {}
  int socket() const noexcept { return socket_.get(); }

  /// Whether nothing comes or goes any more: empty while it stands, 0 when the other end has closed
  /// in order, else the number of the error. What came before it is still received.
  std::optional<int> end() const noexcept {
    const int end = end_.load();
    return end == kStands ? std::nullopt : std::optional(end);
  }
  /// The first one counts.
  void set_end(int error_number) noexcept {
    int stands = kStands;
    end_.compare_exchange_strong(stands, error_number);
  }

 private:
  static constexpr int kStands = -1;
  const net::Fd socket_;
  std::atomic<int> end_{kStands};
};

class TcpSender final : public Sender {
 public:
  explicit TcpSender(std::shared_ptr<TcpConnection> connection) noexcept
      : connection_(std::move(connection)) {}
  std::size_t max_payload() const noexcept override { return kMaxTcpPayload; }
  Sent try_send(const FrameHeader& header, const void* payload) override;

 private:
  const std::shared_ptr<TcpConnection> connection_;
  WireHeader under_way_;  // of the frame of which a part is out
  std::size_t sent_ = 0;  // bytes of it; 0: there is none
};

class TcpReceiver final : public Receiver {
 public:
  explicit TcpReceiver(std::shared_ptr<TcpConnection> connection);
  const Frame* peek() override;
  void take(std::size_t byte_count) override;
  std::size_t take_into(std::byte* whole) override;
  void pop() override;

 private:
  struct alignas(kWireHeaderBytes) Line {
    std::byte bytes[kWireHeaderBytes];
  };
  static constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

  std::byte* buffer() noexcept { return lines_[0].bytes; }
  std::size_t buffered() const noexcept { return end_ - begin_; }
  std::size_t left() const noexcept { return frame_.header.payload_bytes - frame_.taken; }
  bool begin_frame();
  void show() noexcept;
  void skip(std::size_t byte_count) noexcept;
  void fill(std::size_t most);
  void receive_into(std::byte* target);
  std::size_t receive(std::span<const iovec> parts);

  const std::shared_ptr<TcpConnection> connection_;
  const std::unique_ptr<Line[]> lines_;
  std::size_t begin_ = 0, end_ = 0;  // of what lies in the buffer
  std::uint64_t position_ = 0;       // of begin_ in the stream: alike within a line
  bool has_frame_ = false;
  Frame frame_;
};

}  // namespace tutti::native
