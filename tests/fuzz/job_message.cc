// Whatever comes to a job, to a host of it or to a keeper: it is a message, or it is none. What was
// decoded says the same when it is encoded again.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fuzz/input.h"
#include "launch/messages.h"
#include "net/frame.h"

namespace {

using namespace tutti::launch;
using tutti::fuzz::require;

template <class Message, class Decode>
void expect_same_again(const Message& message, const Decode& decode) {
  const std::string bytes = encode(message);
  tutti::net::FrameDecoder decoder(16 * kMaxOrderBytes);
  decoder.feed(std::as_bytes(std::span(bytes)));
  tutti::net::Frame frame;
  require(decoder.next(&frame) == tutti::net::FrameDecoder::Next::frame);
  const auto again = decode(frame.type, frame.body);
  require(again && encode(*again) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  if (byte_count < 2) return 0;
  const std::uint32_t type = data[1];
  const std::string_view body(reinterpret_cast<const char*>(data) + 2, byte_count - 2);
  switch (data[0] % 3) {
    case 0:
      if (const auto order = decode_order(type, body)) expect_same_again(*order, decode_order);
      break;
    case 1:
      if (const auto note = decode_note(type, body)) expect_same_again(*note, decode_note);
      break;
    default:
      if (const auto report = decode_report(type, body)) {
        (void)rank_in(*report);
        expect_same_again(*report, decode_report);
      }
  }
  return 0;
}
