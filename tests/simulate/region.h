// Where the memories of a round lie: boards and arenas, one after the other.
//
// They stand for memfds. Each has the same address whenever the round runs again, so that nothing
// depends on what lay there before. Their descriptors are numbers that the system never gives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::simulate {

/// A range of addresses where programs have nothing; pages come when they are touched.
inline constexpr std::uintptr_t kRegion = std::uintptr_t{1} << 36;
inline constexpr std::size_t kRegionBytes = std::size_t{1} << 38;

/// Whether it lies in a memory.
inline bool is_shared(const volatile void* at) noexcept {
  return reinterpret_cast<std::uintptr_t>(at) - kRegion < kRegionBytes;
}

/// All memories are gone; those of the next round are zero.
void clear_region() noexcept;

}  // namespace tutti::simulate
