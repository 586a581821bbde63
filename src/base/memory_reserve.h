// Memory that the process has put aside: where it gets none any more, the failure of its groups for
// that reason has to be written down and told all the same.
#pragma once

namespace tutti {

/// Puts it aside, unless that has been done. Without memory for it there is none.
void hold_memory_reserve() noexcept;
/// For the allocations that follow, of this thread and others.
void give_back_memory_reserve() noexcept;

}  // namespace tutti
