// Memory that the process has put aside: where it gets none any more, the failure of its groups for
// that reason has to be written down and told all the same.
#pragma once

#include <new>

namespace tutti {

/// Puts it aside, unless that has been done. Without memory for it there is none.
void hold_memory_reserve() noexcept;
/// For the allocations that follow, of this thread and others.
void give_back_memory_reserve() noexcept;

/// Runs `part`; where that finds no memory, once more with what was put aside. False: that was not
/// enough. It must be right to begin it anew.
template <class Part>
bool with_reserve(Part&& part) noexcept {
  for (const bool is_last : {false, true}) {
    try {
      part();
      return true;
    } catch (const std::bad_alloc&) {
    }
    if (!is_last) give_back_memory_reserve();
  }
  return false;
}

void pause_for_memory() noexcept;

/// The same until it has found memory: for what nobody else would do later.
template <class Part>
void until_done(Part&& part) noexcept {
  while (!with_reserve(part)) pause_for_memory();
}

}  // namespace tutti
