#include "standin/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

namespace tutti::standin {

namespace {

constexpr std::size_t kPage = 4096;

void* mapped(int fd, std::size_t byte_count, int access) {
  void* const at = ::mmap(nullptr, byte_count, access, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : at;
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

std::shared_ptr<Allocation> Allocation::make(MemoryKind kind, int device, std::size_t byte_count) {
  std::shared_ptr<Allocation> made(new Allocation(kind, device, byte_count));
  if (kind == MemoryKind::device) return made->map() ? made : nullptr;
  // From the heap, so that AddressSanitizer knows where it ends.
  void* memory = nullptr;
  if (::posix_memalign(&memory, kPage, byte_count) != 0) return nullptr;
  made->given = made->view = static_cast<std::byte*>(memory);
  return made;
}

bool Allocation::map() {
  const int fd = ::memfd_create("device", MFD_CLOEXEC);
  if (fd < 0) return false;
  if (::ftruncate(fd, static_cast<off_t>(byte_count)) == 0) {
    given = static_cast<std::byte*>(mapped(fd, byte_count, PROT_NONE));
    view = static_cast<std::byte*>(mapped(fd, byte_count, PROT_READ | PROT_WRITE));
  }
  ::close(fd);
  return given != nullptr && view != nullptr;
}

Allocation::~Allocation() {
  if (kind != MemoryKind::device) {
    std::free(view);
    return;
  }
  if (given != nullptr) ::munmap(given, byte_count);
  if (view != nullptr) ::munmap(view, byte_count);
}

Memory& Memory::get() {
  static auto& memory = *new Memory;  // streams use it until the process ends
  return memory;
}

Result Memory::allocate(MemoryKind kind, int device, std::size_t byte_count, void** given) {
  if (given == nullptr || byte_count == 0) return kInvalidValue;
  const std::size_t limit = kind == MemoryKind::pinned ? pinned_limit_ : device_limit_;
  const std::lock_guard lock(mutex_);
  std::size_t& bytes = bytes_of(kind, device);
  if (bytes > limit || byte_count > limit - bytes) return kOutOfMemory;
  auto made = Allocation::make(kind, device, byte_count);
  if (made == nullptr) return kOutOfMemory;
  bytes += byte_count;
  *given = made->given;
  allocations_.emplace(address(made->given) + byte_count, std::move(made));
  return kSuccess;
}

Result Memory::free(const void* given, bool is_pinned) {
  if (given == nullptr) return is_pinned ? kInvalidValue : kSuccess;
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.upper_bound(address(given));
  if (found == allocations_.end() || found->second->given != given ||
      (found->second->kind == MemoryKind::pinned) != is_pinned) {
    return kInvalidValue;
  }
  if (found->second.use_count() > 1) ++freed_in_use_;
  bytes_of(found->second->kind, found->second->device) -= found->second->byte_count;
  allocations_.erase(found);
  return kSuccess;
}

std::shared_ptr<Allocation> Memory::find(const void* pointer) const {
  const std::shared_lock lock(mutex_);
  const auto found = allocations_.upper_bound(address(pointer));
  if (found == allocations_.end() || found->second->given > pointer) return nullptr;
  return found->second;
}

Result Memory::place(const void* pointer, std::size_t byte_count, Place* place) const {
  place->owner = find(pointer);
  if (place->owner == nullptr) {
    place->bytes = static_cast<std::byte*>(const_cast<void*>(pointer));
    return pointer == nullptr && byte_count > 0 ? kInvalidValue : kSuccess;
  }
  const auto offset =
      static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - place->owner->given);
  place->bytes = place->owner->view + offset;
  return byte_count <= place->owner->byte_count - offset ? kSuccess : kInvalidValue;
}

std::size_t Memory::pinned_bytes() const {
  const std::shared_lock lock(mutex_);
  return pinned_bytes_;
}

std::size_t Memory::device_bytes(int device) const {
  const std::shared_lock lock(mutex_);
  return device_bytes_[device];
}

void Memory::reset() {
  pinned_limit_ = kPinnedLimit;
  device_limit_ = kDeviceLimit;
  freed_in_use_ = 0;
}

}  // namespace tutti::standin
