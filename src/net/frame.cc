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
  std::size_t begin = out->size();
  const auto tag = [&] {
    if (mac == nullptr) return;
    mac->add(std::as_bytes(std::span(*out)).subspan(begin));
    out->append(text_of(mac->finish()));
    begin = out->size();
  };
  ByteWriter writer(out);
  writer.u32(static_cast<std::uint32_t>(frame.body.size()));
  writer.u32(frame.type);
  writer.u64(frame.id);
  tag();
  out->append(frame.body);
  tag();
}

void FrameDecoder::feed(std::span<const std::byte> bytes) {
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

FrameDecoder::Next FrameDecoder::next(Frame* frame) {
  const std::string_view unread = std::string_view(buffer_).substr(start_);
  const std::size_t tag_bytes = mac_ ? kFrameTagBytes : 0;
  // Each tag is of a number: after a wrong one none is right.
  const auto is_right = [&](std::size_t begin, std::size_t bytes) {
    if (!mac_) return true;
    mac_->add(bytes_of(unread.substr(begin, bytes)));
    return is_same(mac_->finish(), bytes_of(unread.substr(begin + bytes, tag_bytes)));
  };
  const std::size_t body_at = kFrameHeaderBytes + tag_bytes;
  if (unread.size() < body_at) {
    compact(&buffer_, &start_);
    return Next::more;
  }
  if (!is_header_right_ && !is_right(0, kFrameHeaderBytes)) return Next::malformed;
  is_header_right_ = true;
  ByteReader header(unread.substr(0, kFrameHeaderBytes));
  const std::size_t body_bytes = header.u32();
  if (body_bytes > max_body_) return Next::malformed;
  if (unread.size() < body_at + body_bytes + tag_bytes) {
    compact(&buffer_, &start_);
    return Next::more;
  }
  if (!is_right(body_at, body_bytes)) return Next::malformed;
  is_header_right_ = false;
  frame->type = header.u32();
  frame->id = header.u64();
  frame->body.assign(unread.substr(body_at, body_bytes));
  start_ += body_at + body_bytes + tag_bytes;
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
