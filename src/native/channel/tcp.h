// A channel over a TCP connection, which carries the frames of both directions.
//
// Bytes go straight from the caller's memory into the socket, and from the socket to where the
// receiver has them put: only what came together with a header lies in between, in a buffer.
// A header and its payload take a multiple of 64 bytes on the wire, so that a payload is aligned
// wherever it lies in the buffer.
//
// Where the connection is protected, 64 more bytes follow, which begin with the tag of the frame.
// A receiver shows the last line of a payload, and all of one that is shown whole, only after the
// tag has been found right: no frame is complete before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "native/channel/channel.h"
#include "native/channel/wire.h"
#include "net/fd.h"
#include "net/frame_mac.h"
#include "net/secured.h"
#include "net/tcp.h"

namespace tutti::native {

inline constexpr std::size_t kMaxTcpPayload = std::size_t{1} << 20;

/// Both ends of it use one of these each; sender and receiver may be used at the same time.
class TcpConnection {
 public:
  /// How this end comes to its socket, connected and not blocking; empty while there is none.
  struct Origin {
    int peer = -1;
    /// `makes`: one is made if none has come. Throws if there will be none.
    std::function<net::Secured(bool makes)> take;
    bool reader_makes = true;  ///< else one is made only for what is to be sent
    std::function<void()> on_end = [] {};
  };
  explicit TcpConnection(Origin origin) : origin_(std::move(origin)) {}
  explicit TcpConnection(net::Secured secured)
      : secured_(std::move(secured)), descriptor_(secured_.socket.get()) {}

  /// Of the group, for messages; -1: not known.
  int peer() const noexcept { return origin_.peer; }
  bool is_open() const noexcept { return descriptor_.load() >= 0; }
  /// The socket, or -1 while there is none.
  int socket() const noexcept { return descriptor_.load(); }
  /// Once it is open: of the tags of its frames; empty where they have none.
  const std::optional<net::FrameKeys>& keys() const noexcept { return secured_.keys; }
  int socket_to_send() { return is_open() ? socket() : take(true); }
  int socket_to_receive() { return is_open() ? socket() : take(origin_.reader_makes); }

  /// Whether nothing comes or goes any more: empty while it stands, 0 when the other end has closed
  /// in order, else the number of the error. What came before it is still received.
  std::optional<int> end() const noexcept {
    const int end = end_.load();
    return end == kStands ? std::nullopt : std::optional(end);
  }
  /// The first one counts.
  void set_end(int error_number) noexcept;
  /// "has ended", "has ended: connection reset by peer", "cannot be made: " and why.
  std::string how_ended() const;
  /// Whether it cannot be made because this process lacks something for it.
  bool is_lacking_here() const noexcept { return is_lacking_here_.load(); }
  /// Whether it cannot be made because what the other end says is not to be believed.
  bool is_distrusted() const noexcept { return is_distrusted_.load(); }

  /// Whether something is wanted to be sent that was not, or not whole. Who wants that no more, and
  /// nothing else, says so.
  bool owes() const noexcept { return owes_.load(); }
  void set_owes(bool owes) noexcept { owes_.store(owes); }

  // How far the peer has read what was sent. Its kernel has that sooner, and something on the way
  // may acknowledge it in its place. Frames are counted whole, without those that tell of this.
  void count_sent() noexcept { sent_.fetch_add(1); }
  void count_received() noexcept { received_.fetch_add(1); }
  std::uint64_t received() const noexcept { return received_.load(); }
  /// Whether the peer has yet to say that it has read all.
  bool is_unread() const noexcept { return read_.load() < sent_.load(); }
  /// It is to be asked that. False: it was, about all that was sent.
  bool want_to_know() noexcept;
  bool has_to_ask() const noexcept { return asked_.load() < wanted_.load(); }
  /// The question stands behind all that was sent.
  void has_asked() noexcept { asked_.store(sent_.load()); }
  /// What it says. False: it cannot be true.
  bool set_read(std::uint64_t count) noexcept;

  // What is worth an alarm: that something has come where all was read, or that there is room where
  // there was none; until it has rung, and then again when that was found to be so once more.
  bool is_read_out() const noexcept { return read_out_.load() == alarms_.load(); }
  bool is_full() const noexcept { return full_.load() == alarms_.load(); }
  void found_read_out() noexcept { read_out_.store(alarms_.load()); }
  void found_full(bool full) noexcept { full_.store(full ? alarms_.load() : 0); }
  /// So much at the least has yet to come of what has begun, whoever reads it. After each reading.
  void set_due(std::size_t byte_count) noexcept;
  /// Before the alarm for what comes is set. `late`: it waits for as much as is worth one, or all
  /// that is due; unless another thread has yet to be rung by one that is not late.
  void set_alarm(bool late) noexcept;
  /// Before the bell is rung.
  void has_rung() noexcept { alarms_.fetch_add(1); }

 private:
  static constexpr int kStands = -1;
  int take(bool makes);
  void ring_at(std::size_t byte_count) noexcept;

  const Origin origin_;
  mutable std::mutex mutex_;
  net::Secured secured_;  // mutex_, until it is open
  std::string unmade_;    // mutex_; why there will be no socket
  std::atomic<int> descriptor_{-1};
  std::atomic<int> end_{kStands};
  std::atomic<bool> owes_{false}, is_lacking_here_{false}, is_distrusted_{false};
  std::atomic<std::uint64_t> sent_{0}, received_{0};           // frames
  std::atomic<std::uint64_t> read_{0}, wanted_{0}, asked_{0};  // of those that were sent
  std::atomic<std::uint64_t> alarms_{1};                       // how many have rung, from 1
  std::atomic<std::uint64_t> read_out_{0}, full_{0};  // at which of them it was so; 0: it is not
  std::mutex due_mutex_;
  std::atomic<std::size_t> due_{1};  // bytes; written by who reads, under due_mutex_
  std::size_t rings_at_ = 1;         // due_mutex_; bytes, never more than due_
  std::uint64_t prompt_ = 0;         // due_mutex_; the last of the alarms that is not late
};

/// The line behind each frame that is sent over a protected connection.
class Seal {
 public:
  explicit Seal(const net::Key& key) : mac_(key) {}
  /// Of this frame; made once, until `next` or `take_back`.
  const WireHeader& line(const WireHeader& header, std::span<const std::byte> payload);
  /// The frame is out.
  void next() noexcept { is_made_ = false; }
  /// Nothing of the frame is out: another one may go in its place.
  void take_back() noexcept;

 private:
  net::FrameMac mac_;
  WireHeader line_ = {};
  bool is_made_ = false;
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
  std::optional<Seal> seal_;
  bool had_no_room_ = false;  // at the last try: no tag is made for nothing
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
  std::size_t due() const noexcept;
  std::size_t takeable() const noexcept;
  bool begin_frame();
  void verify();
  [[noreturn]] void throw_broken(const std::string& what) const;
  [[noreturn]] void throw_changed() const;
  void show() noexcept;
  void copy_into(std::byte* whole);
  void count(std::span<const std::byte> taken);
  void skip(std::size_t byte_count) noexcept;
  void fill(std::size_t most);
  void receive_into(std::byte* target);
  std::size_t receive(std::span<const iovec> parts, std::size_t due);

  const std::shared_ptr<TcpConnection> connection_;
  std::unique_ptr<Line[]> lines_;    // from when there is a socket
  std::size_t begin_ = 0, end_ = 0;  // of what lies in the buffer
  std::uint64_t position_ = 0;       // of begin_ in the stream: alike within a line
  bool has_frame_ = false;
  Frame frame_;
  std::optional<net::FrameMac> mac_;  // where the connection is protected
  bool is_unverified_ = false;        // the frame, of which the tag has yet to come
};

}  // namespace tutti::native
