// A connection whose other end has proved who it is.
#pragma once

#include <optional>
#include <utility>

#include "net/fd.h"
#include "net/keys.h"

namespace tutti::net {

struct Secured {
  Secured() = default;
  Secured(Fd socket_in, std::optional<FrameKeys> keys_in = {}) noexcept
      : socket(std::move(socket_in)), keys(std::move(keys_in)) {}
  explicit operator bool() const noexcept { return static_cast<bool>(socket); }

  Fd socket;
  std::optional<FrameKeys> keys;  ///< where every frame has a tag
};

}  // namespace tutti::net
