// How much of a grid is run, and with which data.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

#include "sanitized.h"

namespace tutti::conformance {

#ifdef TUTTI_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
inline bool full() {
  const char* const wish = std::getenv("TUTTI_TEST_FULL");
  return wish != nullptr && std::string_view(wish) == "1";
}

inline std::uint64_t seed() {
  static const std::uint64_t kSeed = [] {
    const char* const wish = std::getenv("TUTTI_TEST_SEED");
    const std::uint64_t value =
        wish != nullptr ? std::strtoull(wish, nullptr, 0) : std::random_device()();
    fmt::print("TUTTI_TEST_SEED={}\n", value);
    return value;
  }();
  return kSeed;
}

}  // namespace tutti::conformance
