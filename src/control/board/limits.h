// What users of a board know of its layout: how much it shows, and the states of its ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::control {

/// Ranks of one host, and of a world.
inline constexpr int kMaxLocalRanks = 256;
inline constexpr int kMaxWorldRanks = 4096;
inline constexpr std::size_t kSlotBytes = 64 * 1024;
/// Groups of a rank at a time, closed ones that others may still read included.
inline constexpr int kMaxLines = 1024;
/// Verdicts that a rank shows at a time, and how long the text of one is.
inline constexpr int kProposals = 8;
inline constexpr std::size_t kVerdictBytes = 1600;
/// Entries of the log that a relay shows at a time.
inline constexpr int kChosen = 32;
/// Parts of a wait.
inline constexpr int kWaitParts = 8;
/// A host's vote, encoded: the most, and what is reserved from the beginning.
inline constexpr std::size_t kVoteBytes = 128 * 1024;
inline constexpr std::size_t kUsualVoteBytes = 16 * 1024;

/// elsewhere: in a world that has another board (a slot of an agent's).
enum class RankState : std::uint32_t { absent, starting, running, left, elsewhere };

}  // namespace tutti::control
