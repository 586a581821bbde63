// The memory that the stand-in of CUDA has given out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>

#include "standin/cuda.h"

namespace tutti::standin {

enum class MemoryKind : std::uint8_t { pinned, device, managed };

/// Lives until it is freed and no stream has work left with it.
class Allocation {
 public:
  /// Null: the host has none.
  static std::shared_ptr<Allocation> make(MemoryKind kind, int device, std::size_t byte_count);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();

  const MemoryKind kind;
  const int device;
  const std::size_t byte_count;
  std::byte* given = nullptr;  ///< what the program has; device memory cannot be used there
  std::byte* view = nullptr;   ///< the same bytes, where they can

 private:
  Allocation(MemoryKind its_kind, int its_device, std::size_t its_byte_count)
      : kind(its_kind), device(its_device), byte_count(its_byte_count) {}
  bool map();
};

/// One end of a copy. No `owner`: memory of the host that CUDA does not know.
struct Place {
  std::byte* bytes = nullptr;
  std::shared_ptr<Allocation> owner;
};

/// All allocations, by address.
class Memory {
 public:
  static Memory& get();

  Result allocate(MemoryKind kind, int device, std::size_t byte_count, void** given);
  /// Only what allocate() gave, and only as pinned memory or as the other kinds.
  Result free(const void* given, bool is_pinned);
  /// That which the address lies in; null: none.
  std::shared_ptr<Allocation> find(const void* pointer) const;
  /// Of the bytes from `pointer` on; kInvalidValue: they go beyond an allocation.
  Result place(const void* pointer, std::size_t byte_count, Place* place) const;

  void set_pinned_limit(std::size_t byte_count) { pinned_limit_ = byte_count; }
  void set_device_limit(std::size_t byte_count) { device_limit_ = byte_count; }
  std::size_t device_limit() const { return device_limit_; }
  std::size_t pinned_bytes() const;
  std::size_t device_bytes(int device) const;
  std::size_t freed_in_use() const { return freed_in_use_; }
  void reset();

 private:
  static constexpr std::size_t kPinnedLimit = std::size_t{1} << 40;
  static constexpr std::size_t kDeviceLimit = std::size_t{4} << 30;

  std::size_t& bytes_of(MemoryKind kind, int device) {
    return kind == MemoryKind::pinned ? pinned_bytes_ : device_bytes_[device];
  }

  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<Allocation>> allocations_;  // by end; mutex_
  std::size_t pinned_bytes_ = 0, device_bytes_[kMostDevices] = {};     // mutex_
  std::atomic<std::size_t> pinned_limit_{kPinnedLimit}, device_limit_{kDeviceLimit};
  std::atomic<std::size_t> freed_in_use_{0};
};

}  // namespace tutti::standin
