#include "net/frame.h"

#include <memory>

namespace tutti::net {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;

/// Drops what has been used, when that costs less than it saves.
void compact(std::string* bytes, std::size_t* start) {
  if (*start == bytes->size()) {
    bytes->clear();
    *start = 0;
    if (bytes->capacity() > 4 * kReadBytes) bytes->shrink_to_fit();
  } else if (*start >= kReadBytes && *start >= bytes->size() / 2) {
    bytes->erase(0, *start);
    *start = 0;
  }
}

}  // namespace

std::uint64_t ByteReader::number(std::size_t byte_count) {
  if (!ok_ || in_.size() < byte_count) {
    ok_ = false;
    return 0;
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < byte_count; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(in_[i])) << (8 * i);
  }
  in_.remove_prefix(byte_count);
  return value;
}

std::string_view ByteReader::bytes(std::size_t max_bytes) {
  const std::size_t byte_count = u32();
  if (!ok_ || byte_count > max_bytes || byte_count > in_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view value = in_.substr(0, byte_count);
  in_.remove_prefix(byte_count);
  return value;
}

void append_frame(std::string* out, const Frame& frame, FrameMac* mac) {
  const std::size_t begin = out->size();
  ByteWriter writer(out);
  writer.u32(static_cast<std::uint32_t>(frame.body.size()));
  writer.u32(frame.type);
  writer.u64(frame.id);
  out->append(frame.body);
  if (mac == nullptr) return;
  mac->add(std::as_bytes(std::span(*out)).subspan(begin));
  out->append(text_of(mac->finish()));
}

void FrameDecoder::feed(std::span<const std::byte> bytes) {
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

FrameDecoder::Next FrameDecoder::next(Frame* frame) {
  const std::string_view unread = std::string_view(buffer_).substr(start_);
  if (unread.size() < kFrameHeaderBytes) {
    compact(&buffer_, &start_);
    return Next::more;
  }
  ByteReader header(unread.substr(0, kFrameHeaderBytes));
  const std::size_t body_bytes = header.u32();
  if (body_bytes > max_body_) return Next::malformed;
  const std::size_t tag_bytes = mac_ ? kFrameTagBytes : 0, tag_at = kFrameHeaderBytes + body_bytes;
  if (unread.size() < tag_at + tag_bytes) {
    compact(&buffer_, &start_);
    return Next::more;
  }
  if (mac_) {
    mac_->add(bytes_of(unread.substr(0, tag_at)));
    const FrameTag tag = mac_->finish();  // of this number: after a wrong one none is right
    if (!is_same(tag, bytes_of(unread.substr(tag_at, tag_bytes)))) return Next::malformed;
  }
  frame->type = header.u32();
  frame->id = header.u64();
  frame->body.assign(unread.substr(kFrameHeaderBytes, body_bytes));
  start_ += tag_at + tag_bytes;
  return Next::frame;
}

IoResult SendQueue::flush(int socket, std::span<const int> descriptors) {
  while (!empty()) {
    std::size_t moved = 0;
    const auto unsent = std::as_bytes(std::span(bytes_)).subspan(start_);
    const IoResult result = send_some(socket, unsent, &moved, descriptors);
    start_ += moved;
    if (moved > 0) descriptors = {};
    if (result != IoResult::progress) {
      compact(&bytes_, &start_);
      return result;
    }
  }
  compact(&bytes_, &start_);
  return IoResult::progress;
}

IoResult receive_into(int socket, FrameDecoder* decoder) {
  // Not on the stack: by `ulimit -s 64` a thread has no more than this.
  const auto room = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
  const std::span chunk(room.get(), kReadBytes);
  std::size_t moved = 0;
  const IoResult result = receive_some(socket, chunk, &moved);
  if (result == IoResult::progress) decoder->feed(chunk.first(moved));
  return result;
}

}  // namespace tutti::net
