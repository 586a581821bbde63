// The status board: one memfd per host with one 16 KiB slot per rank; what every rank is doing,
// always on, readable after its death.
//
// A *slot* is written by its owner only (the doorbell excepted: peers ring it). The *mark* is a robust
// process-shared mutex which the owner's control thread holds for life: the kernel hands it over at
// the first step of dying. A *line* is what the rank does in one group; it keeps the last
// descriptions so that both sides of a disagreement can be shown. Texts of call sites are copied once
// into a table in the slot.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "base/wait.h"
#include "tutti/backend.h"

namespace tutti::control {

inline constexpr std::size_t kSlotBytes = 16 * 1024;
inline constexpr int kLinesPerSlot = 32;
inline constexpr int kHistory = 4;
inline constexpr int kMaxLocalRanks = 256;

enum class RankState : std::uint32_t { absent, starting, running, left, failed };

/// What an operation is, as its rank sees it: enough to compare and to print. 32 bytes.
struct Description {
  std::uint64_t seq = 0;
  std::uint64_t chain = 0;
  std::uint64_t count = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reduce = 0;
  std::uint8_t site = 0;  ///< index into the slot's table of call sites
  std::int32_t root_or_peer = -1;
};
static_assert(sizeof(Description) == 32);

}  // namespace tutti::control
