// What a rank's memory looks like to the engine. The owner writes, everybody reads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tutti::native {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kLinePayload = 48;
inline constexpr std::size_t kMaxEngineRanks = 256;
inline constexpr std::size_t kSmallBytes = 28 * 1024;

/// How a rank enters an operation: the number of the operation in the engine, the chain that says
/// which one it is, and what fits of the data. One cache line, so that one transfer tells all.
struct alignas(kCacheLine) Line {
  std::atomic<std::uint64_t> number{0};
  std::atomic<std::uint64_t> chain{0};
  std::byte payload[kLinePayload]{};
};
static_assert(sizeof(Line) == kCacheLine);

/// How far a rank has come in the ring: a position that only grows.
struct alignas(kCacheLine) Counter {
  std::atomic<std::uint64_t> position{0};
};

/// The fixed part of a rank's memory; all zero is its right beginning.
struct EngineHead {
  Line lines[2];    ///< operation k uses k mod 2
  Counter staged;   ///< own input is in the own ring up to here
  Counter reduced;  ///< own slices of the result are in the own ring up to here
  Counter drained;  ///< nothing before this is needed any more from anybody's ring
  alignas(4096) std::byte small[2][kSmallBytes];
};
static_assert(std::is_standard_layout_v<EngineHead>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace tutti::native
