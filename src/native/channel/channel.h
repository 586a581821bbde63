// Ordered frames from one rank to another.
//
// A *channel* has a *sender* and a *receiver*, each used by one thread at a time and neither ever
// blocking. A *frame* is a fixed header and at most `max_payload` bytes. Frames arrive whole, once
// and in order. A sender that finds no *room* tries again when the receiver has popped; a receiver
// looks at the oldest frame where it lies and pops it when it has used it. Waking the other end is
// the caller's part: after a try_send that succeeded, and after a pop.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "control/judge/description.h"

namespace tutti::native {

enum class FrameType : std::uint8_t {
  none,      ///< zeroed memory is no frame
  padding,   ///< of the transport
  segment,   ///< of a collective
  announce,  ///< of a message: what it is, with its bytes if they are few
  envelope,  ///< of a message whose content moves elsewhere: what it is
  match,     ///< of a message: its receive has been posted and agrees
  content,   ///< of a message that was matched: the next bytes
  withdraw,  ///< of a message that was not matched: its sender has taken it back
  buffered,  ///< of a message that has ended at its sender: what it is, with its bytes
};

inline constexpr FrameType kLastFrameType = FrameType::buffered;

/// Little-endian, fixed size; every field is checked before it is used.
struct alignas(64) FrameHeader {
  std::uint32_t payload_bytes = 0;
  FrameType type = FrameType::none;
  std::uint8_t unused[3] = {};
  std::int32_t tag = 0;       ///< of messages
  std::uint32_t segment = 0;  ///< of collectives: its number
  std::uint64_t id = 0;       ///< of messages: number among those of its sender to its receiver
  control::Description what = {};  ///< the sender's operation
  std::uint64_t unused_end = 0;
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(std::endian::native == std::endian::little, "frames are little-endian");

struct Frame {
  FrameHeader header;  ///< a copy: it cannot change any more
  std::span<const std::byte> payload;
};

class Sender {
 public:
  virtual ~Sender() = default;
  virtual std::size_t max_payload() const noexcept = 0;
  /// Sends the frame whole, or not at all when there is no room now. `payload` holds
  /// `header.payload_bytes` bytes, at most max_payload(), and may be reused at once.
  virtual bool try_send(const FrameHeader& header, const void* payload) = 0;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  /// The oldest frame, or null. Valid until pop. Throws kInternal if what arrived is no frame.
  virtual const Frame* peek() = 0;
  /// Drops the frame that peek has returned.
  virtual void pop() = 0;
};

}  // namespace tutti::native
