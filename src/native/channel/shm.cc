#include "native/channel/shm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/error.h"

namespace tutti::native {

namespace {

constexpr std::uint64_t kAlignment = sizeof(FrameHeader);

constexpr std::uint64_t frame_bytes(std::uint64_t payload_bytes) noexcept {
  return (sizeof(FrameHeader) + payload_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Whether a frame of the largest size fits into an empty ring behind any padding, which is at most
/// one line shorter than the frame.
constexpr bool fits_anywhere(std::size_t ring_bytes) noexcept {
  const std::uint64_t largest = frame_bytes(ShmSender::max_payload_of(ring_bytes));
  return largest <= ring_bytes / 4 && largest - kAlignment + largest <= ring_bytes;
}
static_assert([] {
  for (std::size_t ring = ShmSender::kLeastRingBytes; ring <= std::size_t{1} << 30; ring *= 2) {
    if (!fits_anywhere(ring)) return false;
  }
  return true;
}());

}  // namespace

ShmSender::ShmSender(std::span<std::byte> ring, std::atomic<std::uint64_t>& produced,
                     const std::atomic<std::uint64_t>& consumed) noexcept
    : ring_(ring), produced_(produced), consumed_(consumed) {}

bool ShmSender::has_room(std::size_t byte_count) noexcept {
  if (written_ + byte_count - known_consumed_ <= ring_.size()) return true;
  // seq_cst: this may be the last look before a sleep, and the receiver rings after its store.
  known_consumed_ = consumed_.load(std::memory_order_seq_cst);
  return written_ + byte_count - known_consumed_ <= ring_.size();
}

Sent ShmSender::try_send(const FrameHeader& header, const void* payload) {
  const std::uint64_t byte_count = frame_bytes(header.payload_bytes);
  const std::uint64_t to_end = ring_.size() - (written_ & (ring_.size() - 1));
  const std::uint64_t padding = byte_count > to_end ? to_end : 0;
  if (!has_room(padding + byte_count)) return Sent::nothing;
  if (padding > 0) {
    FrameHeader filler;
    filler.type = FrameType::padding;
    filler.payload_bytes = static_cast<std::uint32_t>(padding - sizeof(FrameHeader));
    std::memcpy(at(written_), &filler, sizeof filler);
    written_ += padding;
  }
  std::byte* frame = at(written_);
  std::memcpy(frame, &header, sizeof header);
  if (header.payload_bytes > 0) {
    std::memcpy(frame + sizeof header, payload, header.payload_bytes);
  }
  written_ += byte_count;
  produced_.store(written_, std::memory_order_seq_cst);
  return Sent::whole;
}

ShmReceiver::ShmReceiver(std::span<const std::byte> ring,
                         const std::atomic<std::uint64_t>& produced,
                         std::atomic<std::uint64_t>& consumed) noexcept
    : ring_(ring), produced_(produced), consumed_(consumed) {}

const Frame* ShmReceiver::peek() {
  if (frame_bytes_ > 0) return &frame_;
  for (;;) {
    if (read_ == known_produced_) {
      // seq_cst: this may be the last look before a sleep.
      known_produced_ = produced_.load(std::memory_order_seq_cst);
      if (read_ == known_produced_) return nullptr;
    }
    const std::byte* frame = ring_.data() + (read_ & (ring_.size() - 1));
    std::memcpy(&frame_.header, frame, sizeof(FrameHeader));
    const std::uint64_t available = std::min<std::uint64_t>(
        known_produced_ - read_, ring_.size() - (read_ & (ring_.size() - 1)));
    const std::uint64_t byte_count = frame_bytes(frame_.header.payload_bytes);
    if (known_produced_ - read_ > ring_.size() || byte_count > available) {
      throw_broken(frame_.header, available);
    }
    if (frame_.header.type == FrameType::padding) {
      read_ += byte_count;
      continue;
    }
    if (frame_.header.type == FrameType::none || frame_.header.type > kLastFrameType) {
      throw_broken(frame_.header, available);
    }
    frame_.taken = 0;
    frame_.payload = {frame + sizeof(FrameHeader), frame_.header.payload_bytes};
    frame_bytes_ = byte_count;
    return &frame_;
  }
}

void ShmReceiver::take(std::size_t byte_count) {
  frame_.taken += byte_count;
  frame_.payload = frame_.payload.subspan(byte_count);
}

std::size_t ShmReceiver::take_into(std::byte* whole) {
  const std::size_t byte_count = frame_.payload.size();
  if (byte_count > 0) std::memcpy(whole + frame_.taken, frame_.payload.data(), byte_count);
  take(byte_count);
  return byte_count;
}

void ShmReceiver::pop() {
  read_ += frame_bytes_;
  frame_bytes_ = 0;
  consumed_.store(read_, std::memory_order_seq_cst);
}

void ShmReceiver::throw_broken(const FrameHeader& header, std::uint64_t available) const {
  throw Error(ErrorCode::kInternal,
              fmt::format("a channel holds no frame at byte {}: type {}, {} bytes of {}; the "
                          "sender's memory was overwritten. Please report this",
                          read_, static_cast<int>(header.type), header.payload_bytes, available));
}

}  // namespace tutti::native
