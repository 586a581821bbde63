// Memory of the host that begins on a page.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include "tutti/error.h"

namespace tutti {

inline constexpr std::size_t kPageBytes = 4096;

/// Errors  kSystem: there is none.
inline std::shared_ptr<void> allocate_pages(std::size_t byte_count) {
  constexpr std::align_val_t kPage{kPageBytes};
  void* const data = ::operator new(byte_count, kPage, std::nothrow);
  if (data == nullptr) {
    throw Error(ErrorCode::kSystem, "no memory for " + std::to_string(byte_count) + " bytes");
  }
  return {data, [](void* memory) { ::operator delete(memory, kPage); }};
}

}  // namespace tutti
