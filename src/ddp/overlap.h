// Whether buckets are reduced while backward runs:
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
};

/// Whether a host has cores beside those that its ranks, all of `ranks`, compute on.
bool has_spare_core(std::span<const Computing> ranks) noexcept;

/// Asks all ranks of the group; the same on each of them.
bool pays_to_overlap(ProcessGroup& group, int threads, Where where);

}  // namespace tutti::ddp
