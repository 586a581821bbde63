// Random numbers out of a seed.
#pragma once

#include <cmath>
#include <cstdint>

namespace tutti::simulate {

/// A probability, for many draws.
class Chance {
 public:
  explicit Chance(double probability) noexcept
      : below_(static_cast<std::uint64_t>(std::ceil(probability * 0x1p53))) {}
  bool is_possible() const noexcept { return below_ > 0; }

 private:
  friend class Random;
  std::uint64_t below_;  // of 2^53
};

/// SplitMix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// 0 to below - 1.
  std::uint64_t below(std::uint64_t below) noexcept { return next() % below; }
  int from_to(int first, int last) noexcept {
    return first + static_cast<int>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  bool chance(Chance chance) noexcept { return (next() >> 11) < chance.below_; }
  bool chance(double probability) noexcept { return chance(Chance(probability)); }

 private:
  std::uint64_t state_;
};

}  // namespace tutti::simulate
