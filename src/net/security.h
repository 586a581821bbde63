// How well the connections between hosts are protected, and the secret that it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "net/keys.h"

namespace tutti::net {

/// In the order of what they protect against; the numbers are part of the wire format.
enum class Level : std::uint32_t {
  none,           ///< strangers who have not read what ranks told each other at the meeting
  opportunistic,  ///< the same, and who has only listened to that
  auth,           ///< everybody who does not know the secret, at the beginning of a connection
  integrity,      ///< the same, at every frame
};
std::string_view name_of(Level level) noexcept;
std::optional<Level> level_of(std::string_view name) noexcept;

struct Security {
  Level level = Level::none;
  Key secret = {};               ///< from auth on; else zeros
  std::string secret_file = {};  ///< where it was read, for people; may be empty

  bool has_frame_tags() const noexcept { return level == Level::integrity; }
};

/// Of the settings: `level` in words, and the file that holds the secret.
///
/// Errors  kUnsupported: encrypt. kInvalidArgument: a secret is needed, and none is given; the file
///         cannot be read, others could have written or read it, it holds too little or too much.
///         Each begins with `what`: "ranks meet at 10.0.0.1:29500 over TCP".
Security security_of(std::string_view level, const std::string& secret_file, std::string_view what);

}  // namespace tutti::net
