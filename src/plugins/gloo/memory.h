// Memory that begins on a page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "tutti/error.h"

namespace tutti::gloo_backend {

inline constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t byte_count, std::size_t unit) noexcept {
  return (byte_count + unit - 1) / unit * unit;
}

/// Errors  kSystem.
inline std::shared_ptr<void> allocate_pages(std::size_t byte_count) {
  void* const data =
      std::aligned_alloc(kPageBytes, round_up(std::max<std::size_t>(byte_count, 1), kPageBytes));
  if (data == nullptr) {
    throw Error(ErrorCode::kSystem,
                "backend \"gloo\": no memory for " + std::to_string(byte_count) + " bytes");
  }
  return {data, [](void* memory) { std::free(memory); }};
}

}  // namespace tutti::gloo_backend
