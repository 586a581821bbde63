// How much one board shows.
#pragma once

namespace tutti::control {

/// Ranks of one host, and of a world.
inline constexpr int kMaxLocalRanks = 256;
inline constexpr int kMaxWorldRanks = 4096;

}  // namespace tutti::control
