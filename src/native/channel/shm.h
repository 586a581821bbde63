// A channel in shared memory: a ring in the sender's arena, in which every frame lies whole.
//
// Two counters of bytes tell all: what the sender has *produced*, in its arena, and what the
// receiver has *consumed*, in the receiver's. Each has one writer and only grows. Frames begin at
// multiples of 64 bytes and never wrap: where one does not fit before the end of the ring, padding
// fills it up. A frame takes at most a quarter of the ring, header included: with the padding
// before it, which is shorter than the frame, it fits into an empty ring wherever it begins, so a
// sender never waits for more than the receiver can pop.
#pragma once

#include <atomic>
#include <span>

#include "native/channel/channel.h"

namespace tutti::native {

class ShmSender final : public Sender {
 public:
  /// `ring`: a power of two of at least kLeastRingBytes.
  ShmSender(std::span<std::byte> ring, std::atomic<std::uint64_t>& produced,
            const std::atomic<std::uint64_t>& consumed) noexcept;
  std::size_t max_payload() const noexcept override { return max_payload_of(ring_.size()); }
  Sent try_send(const FrameHeader& header, const void* payload) override;

  static constexpr std::size_t kLeastRingBytes = 4096;
  /// A quarter of the ring, header included.
  static constexpr std::size_t max_payload_of(std::size_t ring_bytes) noexcept {
    return ring_bytes / 4 - sizeof(FrameHeader);
  }

 private:
  bool has_room(std::size_t byte_count) noexcept;
  std::byte* at(std::uint64_t position) const noexcept {
    return ring_.data() + (position & (ring_.size() - 1));
  }

  const std::span<std::byte> ring_;
  std::atomic<std::uint64_t>& produced_;
  const std::atomic<std::uint64_t>& consumed_;
  std::uint64_t written_ = 0;         // what produced_ holds
  std::uint64_t known_consumed_ = 0;  // what consumed_ held when last read
};

class ShmReceiver final : public Receiver {
 public:
  ShmReceiver(std::span<const std::byte> ring, const std::atomic<std::uint64_t>& produced,
              std::atomic<std::uint64_t>& consumed) noexcept;
  const Frame* peek() override;
  void take(std::size_t byte_count) override;
  std::size_t take_into(std::byte* whole) override;
  void pop() override;

 private:
  [[noreturn]] void throw_broken(const FrameHeader& header, std::uint64_t available) const;

  const std::span<const std::byte> ring_;
  const std::atomic<std::uint64_t>& produced_;
  std::atomic<std::uint64_t>& consumed_;
  std::uint64_t read_ = 0;            // what consumed_ holds
  std::uint64_t known_produced_ = 0;  // what produced_ held when last read
  std::uint64_t frame_bytes_ = 0;     // of frame_, header and filling included; 0: none
  Frame frame_;
};

}  // namespace tutti::native
