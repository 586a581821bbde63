// What a relay says to another one, as bytes: little-endian, bounded, and checked field by field.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "control/vote/vote.h"

namespace tutti::control {

/// The longest text and the most culprits of one entry.
inline constexpr std::size_t kMostEntryText = 16 * 1024, kMostCulprits = 64 * 1024;

/// Texts that are too long are cut.
std::string encode(const VoteFrame& frame);

/// None: this is no frame of a world of so many hosts. Takes memory in proportion to `bytes`.
std::optional<VoteFrame> decode_vote_frame(std::string_view bytes, int host_count);

/// What two frames of one host have told, `later` after `earlier`, in one: for who has read
/// neither.
VoteFrame merged(VoteFrame earlier, VoteFrame later);

}  // namespace tutti::control
