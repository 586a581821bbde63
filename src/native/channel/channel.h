// Ordered frames from one rank to another.
//
// A *channel* has a *sender* and a *receiver*, each used by one thread at a time and neither ever
// blocking. A *frame* is a fixed header and a *payload* of at most `max_payload` bytes. Frames come
// in order and once. They may go out and arrive in parts: memory that both ends share takes a frame
// whole, a socket takes what it has room for. A sender that finds no *room* for the rest tries
// again when the receiver has taken something; a receiver takes the oldest frame where it lies, or
// has its bytes put where they belong, and drops it. A payload of at most `kWholeBytes` is there
// whole or not at all. Waking the other end is the caller's part: after what was sent, and after
// what was taken.
#pragma once

#include <bit>
#include <cstddef>
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
  // Where the ends share no memory, see LinkWords:
  recall,    ///< of a message: its sender wants it back
  returned,  ///< of a message that was wanted back: nothing had matched it, and nothing will
  taken,     ///< of buffered messages: the bytes (`count`) of all that have been matched so far
  last,      ///< no message comes after this: the sender has closed the group
  asks,      ///< how many frames the other end has read
  read,      ///< the answer: so many (`count`), all that came before it was asked among them
};

inline constexpr FrameType kLastFrameType = FrameType::read;

/// Whether it is among the frames that `read` counts: else each answer would be one more.
constexpr bool is_counted(FrameType type) noexcept {
  return type != FrameType::asks && type != FrameType::read;
}

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

/// The longest payload that a receiver shows in one piece whatever the channel.
inline constexpr std::size_t kWholeBytes = 4096;

/// The oldest frame of a channel, as much as there is of it.
struct Frame {
  FrameHeader header;                  ///< a copy: it cannot change any more
  std::size_t taken = 0;               ///< bytes of the payload that the receiver has taken
  std::span<const std::byte> payload;  ///< the next ones: those that lie here, aligned for elements

  bool is_taken() const noexcept { return taken == header.payload_bytes; }
};

enum class Sent : std::uint8_t {
  nothing,  ///< no room
  part,     ///< until the rest is out no other frame goes: send the same one again
  whole,
};

class Sender {
 public:
  virtual ~Sender() = default;
  virtual std::size_t max_payload() const noexcept = 0;
  /// Sends what there is room for. `payload` holds `header.payload_bytes` bytes, at most
  /// max_payload(), and may be reused at once; of a frame of which a part is out, the same header
  /// and the same bytes are due until it is whole.
  virtual Sent try_send(const FrameHeader& header, const void* payload) = 0;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  /// The oldest frame, or null; the same until pop, with what has come since. A payload of more
  /// than kWholeBytes may lie here in parts, or not yet, but never in less than one element.
  /// Throws kInternal if what arrived is no frame.
  virtual const Frame* peek() = 0;
  /// Takes the next `byte_count` bytes of the payload that peek has shown.
  virtual void take(std::size_t byte_count) = 0;
  /// Takes as much of the payload as has come, and puts it where it belongs in a buffer for all of
  /// it. Returns the bytes that this call has put there.
  virtual std::size_t take_into(std::byte* whole) = 0;
  /// Drops the frame that peek has returned. What is left of it lies here.
  virtual void pop() = 0;
};

}  // namespace tutti::native
