// Whatever comes over a data connection, the receiver shows frames or throws: it never crashes,
// never waits, and writes nowhere but where a payload belongs.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/input.h"
#include "native/channel/tcp.h"
#include "tutti/error.h"

namespace {

using namespace tutti;
using native::Frame;

using fuzz::Input;
using fuzz::require;

void put(int socket, std::span<const std::byte> bytes) {
  std::size_t moved = 0;
  (void)net::send_some(socket, bytes, &moved);
}

/// A header that is well formed, whatever it says, or bytes as they are.
void put_something(Input& input, int socket) {
  const std::uint8_t kind = input.byte();
  if (kind % 2 == 0) {
    put(socket, input.piece(kind / 2));
    return;
  }
  native::FrameHeader header;
  header.type =
      static_cast<native::FrameType>(input.byte() % (static_cast<int>(native::kLastFrameType) + 2));
  header.payload_bytes = static_cast<std::uint32_t>(input.byte() | input.byte() << 8);
  if (kind == 255) header.payload_bytes <<= 16;
  put(socket, native::encode(header));
}

/// As a program would: it looks, takes in one of the ways, and drops what is done.
void receive(Input& input, native::TcpReceiver& receiver, std::vector<std::byte>& target) {
  const Frame* const frame = receiver.peek();
  if (frame == nullptr) return;
  const std::size_t byte_count = frame->header.payload_bytes;
  const bool is_content = frame->header.type == native::FrameType::segment ||
                          frame->header.type == native::FrameType::content;
  require(is_content || byte_count <= native::kWholeBytes);
  require(byte_count <= native::kMaxTcpPayload && frame->taken <= byte_count);
  require(frame->payload.size() <= byte_count - frame->taken);
  require(byte_count > native::kWholeBytes || frame->payload.size() == byte_count - frame->taken);
  if (input.byte() % 2 == 0) {
    receiver.take(std::min<std::size_t>(frame->payload.size(), input.byte()) / 16 * 16);
  } else {
    target.resize(byte_count);  // exactly: AddressSanitizer sees a byte behind it
    target.shrink_to_fit();
    receiver.take_into(target.data());
  }
  if (frame->is_taken() || byte_count <= native::kWholeBytes) receiver.pop();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  int ends[2] = {-1, -1};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const net::Fd peer(ends[0]);
  Input input(data, byte_count);
  std::optional<net::FrameKeys> keys;
  if (input.byte() % 2 == 1) keys.emplace();  // tags, of which no input knows the right one
  native::TcpReceiver receiver(
      std::make_shared<native::TcpConnection>(net::Secured(net::Fd(ends[1]), keys)));
  std::vector<std::byte> target;
  try {
    while (!input.is_empty()) {
      put_something(input, peer.get());
      receive(input, receiver, target);
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kInternal ||
            (keys && error.code() == ErrorCode::kUnauthenticated));
  }
  return 0;
}
