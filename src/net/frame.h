// Framing: numbers and byte strings in little-endian order, and frames of bounded length.
//
// A *frame* is a header of 16 bytes {u32 length of the body, u32 type, u64 id} and its body. Where
// the connection is protected each of them has a tag of 16 bytes behind it: nobody waits for a body
// whose length was changed. A reader never allocates for what has only been announced: memory grows
// with the bytes that have arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/frame_mac.h"
#include "net/unix_socket.h"

namespace tutti::net {

inline constexpr std::size_t kFrameHeaderBytes = 16;

struct Frame {
  std::uint32_t type = 0;
  std::uint64_t id = 0;
  std::string body;
};

inline std::string_view text_of(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Appends values to a byte string.
class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(*out) {}
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void i64(std::int64_t value) { number(static_cast<std::uint64_t>(value), 8); }
  void bytes(std::string_view value) {  ///< u32 length, then the bytes
    u32(static_cast<std::uint32_t>(value.size()));
    out_.append(value);
  }

 private:
  void number(std::uint64_t value, int byte_count) {
    for (int i = 0; i < byte_count; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string& out_;
};

/// Takes values from a byte string. After the first that is not there, ok() is false for ever and
/// everything read is zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::string_view in) : in_(in) {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::int64_t i64() { return static_cast<std::int64_t>(number(8)); }
  std::string_view bytes(std::size_t max_bytes);
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && in_.empty(); }

 private:
  std::uint64_t number(std::size_t byte_count);
  std::string_view in_;
  bool ok_ = true;
};

/// Appends a frame to a byte string; with its tags if `mac` is not null.
void append_frame(std::string* out, const Frame& frame, FrameMac* mac = nullptr);

/// Takes frames out of a stream of bytes.
class FrameDecoder {
 public:
  explicit FrameDecoder(std::size_t max_body) : max_body_(max_body) {}
  enum class Next : std::uint8_t { frame, more, malformed };

  /// From now on each frame has its tags; one with a wrong tag is malformed.
  void protect(const Key& key) { mac_.emplace(key); }
  void feed(std::span<const std::byte> bytes);
  /// Call until it wants `more`. After `malformed` (a body that is too long) it stays malformed.
  Next next(Frame* frame);
  void set_max_body(std::size_t max_body) noexcept { max_body_ = max_body; }
  std::size_t buffered() const noexcept { return buffer_.size() - start_; }
  /// Bytes of memory.
  std::size_t held() const noexcept { return buffer_.capacity(); }

 private:
  std::size_t max_body_;
  std::string buffer_;
  std::size_t start_ = 0;
  std::optional<FrameMac> mac_;
  bool is_header_right_ = false;  // by its tag
};

/// Bytes on their way to a socket that may not take them all at once.
class SendQueue {
 public:
  void push(const Frame& frame) { append_frame(&bytes_, frame, mac_ ? &*mac_ : nullptr); }
  /// From now on each frame has its tags.
  void protect(const Key& key) { mac_.emplace(key); }
  bool empty() const noexcept { return start_ == bytes_.size(); }
  std::size_t pending() const noexcept { return bytes_.size() - start_; }
  /// Sends what the socket takes now, the descriptors with the first byte. `again`: something is
  /// left.
  IoResult flush(int socket, std::span<const int> descriptors = {});

 private:
  std::string bytes_;
  std::size_t start_ = 0;
  std::optional<FrameMac> mac_;
};

/// Reads once (at most 64 KiB) into `decoder`.
IoResult receive_into(int socket, FrameDecoder* decoder);

}  // namespace tutti::net
