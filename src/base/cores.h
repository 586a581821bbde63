// How many cores a process, or the ranks of a host together, may keep busy.
#pragma once

#include <array>
#include <cstdint>

#include "tutti/types.h"

namespace tutti {

/// Cores by number (modulo 1024) and how many of them may be busy at a time.
struct TUTTI_API Cores {
  std::array<std::uint64_t, 16> mask{};
  std::uint32_t quota = UINT32_MAX;

  /// Adds the cores of another rank: launchers bind ranks to cores of their own. Their quotas are
  /// taken for one and the same.
  void join(const Cores& other) noexcept;
  /// At least 1.
  int count() const noexcept;
};

/// Of the calling thread: its affinity mask, and the least cgroup v2 quota on the way from its own
/// group to the root. Reads files: call it once.
TUTTI_API Cores own_cores() noexcept;

/// Moves the calling thread from `core` to another one that it may use, even if that is busy; it
/// may be moved back. False: there is none. About 10 us.
bool leave_core(int core) noexcept;

/// own_cores().count().
int usable_cores() noexcept;

}  // namespace tutti
