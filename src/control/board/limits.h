// How much one board shows.
#pragma once

namespace tutti::control {

/// Ranks of one host.
inline constexpr int kMaxLocalRanks = 256;

}  // namespace tutti::control
