// How a rank stores what others will read: plainly, or past its caches.
//
// Rewriting lines that another core's cache still holds is quick where the two share a cache and
// slow where they do not; non-temporal stores cost the same in both places. Which is true can
// change while a program runs (a virtual machine's cores are moved about). So the writer measures
// its own copies, keeps a running mean of the ticks per KiB for both ways, takes the better one,
// and now and then tries the other. The choice is the writer's alone and never changes a result.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace tutti::native {

/// Counts at a constant rate; its unit does not matter here.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

class StoreChoice {
 public:
  /// For the next copy.
  kernels::Store next() noexcept {
    const bool try_other = ++copies_ % kTryEvery == 0 || (copies_ == kFirstTry);
    const std::size_t better = ticks_per_kib_[1] * kMargin < ticks_per_kib_[0] ? 1 : 0;
    chosen_ = try_other ? 1 - better : better;
    return chosen_ == 1 ? kernels::Store::streaming : kernels::Store::cached;
  }

  /// What that copy took.
  void measured(std::size_t byte_count, std::uint64_t took) noexcept {
    if (byte_count < kLeastBytes) return;
    const double sample = static_cast<double>(took) * 1024 / static_cast<double>(byte_count);
    double& mean = ticks_per_kib_[chosen_];
    // A copy during which the thread lost its core says little: no sample counts more than twice
    // the mean.
    mean = mean == kUntried ? sample : mean + (std::min(sample, 2 * mean) - mean) / 4;
  }

 private:
  static constexpr std::size_t kLeastBytes = 4096;
  static constexpr std::uint32_t kTryEvery = 128;
  static constexpr std::uint32_t kFirstTry = 16;  // by then the ring's pages are mapped
  static constexpr double kMargin = 1.25;

  static constexpr double kUntried = 1e30;

  std::array<double, 2> ticks_per_kib_{kUntried, kUntried};  // cached, streaming
  std::size_t chosen_ = 0;
  std::uint32_t copies_ = 0;
};

}  // namespace tutti::native
