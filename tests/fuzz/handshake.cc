// Whatever comes before a connection is believed: neither end proves anybody, reads more than it
// wants, or takes memory for it.
#include "net/handshake.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "control/hosts/door_plate.h"
#include "control/hosts/hello.h"
#include "fuzz/input.h"

namespace {

using namespace tutti;
using fuzz::require;
using net::Handshake;

net::Key key() {
  net::Digest bytes;
  bytes.fill(std::byte{9});
  return net::Key(bytes);
}

/// All of the input in pieces, and never more than is wanted.
void play(Handshake end, std::span<const std::byte> bytes, std::size_t piece) {
  while (!bytes.empty() && end.wants() > 0) {
    const std::size_t count = std::min({piece, bytes.size(), end.wants()});
    end.receive(bytes.first(count));
    end.has_sent(end.unsent().size());
    bytes = bytes.subspan(count);
  }
  require(end.outcome() != Handshake::Outcome::proved);
  require(end.wants() <= net::kReplyBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  if (byte_count == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, byte_count - 1));
  const auto level = static_cast<net::Level>(data[0] & 3);
  const std::size_t piece = 1 + data[0] / 4;
  play(Handshake::calling({.from = 1}, level, key()), bytes, piece);
  const auto key_for = [](const net::Claim& claim) {
    const auto hello = control::hello_of(claim, 64);
    if (hello) require(control::claim_of(*hello).from == claim.from);
    return hello || claim.purpose == net::Purpose::store ? std::optional(key()) : std::nullopt;
  };
  play(Handshake::called(level, key_for), bytes, piece);
  const std::string text(reinterpret_cast<const char*>(data), byte_count);
  const auto plate = control::decode_plate(text, WorldRank(1), {.level = level, .secret = key()});
  require(!plate || !plate->proves_secret);
  return 0;
}
