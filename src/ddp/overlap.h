// Which buckets are reduced while backward runs:
// docs/decisions/0058-overlap-needs-a-core-or-a-link.md.
#pragma once

#include <cstdint>
#include <span>

#include "base/cores.h"
#include "tutti/process_group.h"

namespace tutti::ddp {

/// What one rank computes on.
struct Computing {
  Cores cores;
  std::int32_t threads = 1;
  std::int32_t on_device = 0;  ///< 1: its model is on one, and the cores wait
};

/// When a bucket is begun that is full.
enum class Overlap : std::uint8_t {
  none,      ///< behind backward, in the thread that waits for it
  but_last,  ///< at once; the last one, for which nothing is left to compute, as above
  whole,     ///< at once
};

/// Whether a host has cores beside those that its ranks, all of `ranks`, compute on.
bool has_spare_core(std::span<const Computing> ranks) noexcept;

/// `is_one_host`: else a link works meanwhile.
Overlap overlap_of(std::span<const Computing> ranks, bool is_one_host) noexcept;

/// Asks all ranks of the group; the same on each of them, so that they start their operations in
/// one order.
Overlap choose_overlap(ProcessGroup& group, int threads, bool on_device, Where where);

}  // namespace tutti::ddp
