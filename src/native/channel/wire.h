// Frame headers as they go over a wire: docs/wire.md.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "native/channel/channel.h"

namespace tutti::native {

inline constexpr std::size_t kWireHeaderBytes = 64;
using WireHeader = std::array<std::byte, kWireHeaderBytes>;

WireHeader encode(const FrameHeader& header) noexcept;
/// Empty if the checksum is wrong, or for a type that no peer sends.
std::optional<FrameHeader> decode(std::span<const std::byte, kWireHeaderBytes> bytes) noexcept;

}  // namespace tutti::native
