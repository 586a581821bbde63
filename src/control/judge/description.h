// What an operation is, as its rank sees it: what ranks compare, show on the board and send with
// their frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tutti/request.h"

namespace tutti::control {

/// In Description::op, beside the Op: a v-variant, or a recv of any count; a monitored_barrier; a
/// buffered send.
inline constexpr std::uint8_t kUnevenBit = 0x80;
inline constexpr std::uint8_t kMonitoredBit = 0x40;
inline constexpr std::uint8_t kBufferedBit = 0x20;
static_assert(kOpCount <= kBufferedBit);
constexpr bool is_uneven(const Request& request) noexcept {
  return request.uneven || request.message.make_room != nullptr;
}
constexpr std::uint8_t op_byte(const Request& request) noexcept {
  return static_cast<std::uint8_t>(
      static_cast<std::uint8_t>(request.op) | (is_uneven(request) ? kUnevenBit : 0) |
      (request.monitored ? kMonitoredBit : 0) | (request.message.buffered ? kBufferedBit : 0));
}
/// The Op of such a byte; kOpCount and more where it is none.
constexpr std::size_t op_index(std::uint8_t op) noexcept {
  return op & ~(kUnevenBit | kMonitoredBit | kBufferedBit);
}

/// What an operation is, as its rank sees it: enough to compare and to print.
struct Description {
  std::uint64_t seq = 0;    ///< messages: their number among the rank's messages of the group
  std::uint64_t chain = 0;  ///< messages: the tag
  std::uint64_t count = 0;
  std::uint8_t op = 0;  ///< op_byte
  std::uint8_t dtype = 0;
  std::uint8_t reduce = 0;
  std::uint8_t site = 0;  ///< index into the slot's table of call sites, 0: not known
  std::int32_t root_or_peer = -1;
};
static_assert(sizeof(Description) == 32);

/// A Description and what else a rank can show of an operation.
struct Shown : Description {
  double factor = 1.0;  ///< of premul_sum
};

/// A collective of a member, as it is known here.
struct KnownCall : Shown {
  KnownCall() = default;
  KnownCall(const Shown& shown) : Shown(shown) {}  // NOLINT(google-explicit-constructor)
  /// On another host: what stands on its board for the site and the chain; "" if nothing does. On
  /// this one whoever wants to say it reads the board.
  std::string site_text = {}, purpose_text = {};
};

/// Without the site, which only the rank's own slot can name.
inline Description description_of(const Request& request) noexcept {
  return {.seq = request.seq,
          .chain = request.chain,
          .count = request.count,
          .op = op_byte(request),
          .dtype = static_cast<std::uint8_t>(request.dtype),
          .reduce = static_cast<std::uint8_t>(request.reduce.kind()),
          .root_or_peer = root_or_peer(request)};
}

/// What a rank shows of `request`; of a message its tag stands where others have their chain.
inline Shown shown_of(const Request& request, std::uint8_t site) noexcept {
  Shown value{description_of(request), request.reduce.factor()};
  if (is_message(request.op)) value.chain = static_cast<std::uint64_t>(request.message.tag);
  value.site = site;
  return value;
}

}  // namespace tutti::control
