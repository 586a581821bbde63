// In place of control/memory/memory.cc: memfds, their seals, mappings and pages were a fifth of
// what a round took.
#include "simulate/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <memory>
#include <vector>

#include "control/memory/memory.h"
#include "net/system_error.h"
#include "simulate/kernel.h"

namespace tutti::control {

Mapping::~Mapping() = default;

}  // namespace tutti::control

namespace tutti::simulate {

using control::Mapping;

namespace {

constexpr std::size_t kPageBytes = 4096;
/// The descriptor of the first memory: no process has so many.
constexpr int kFirst = 1 << 28;

struct Memory {
  std::byte* data = nullptr;
  std::size_t byte_count = 0;
  std::shared_ptr<Mapping> mapping = {};
};

struct Memories {
  std::vector<Memory> all;
  std::byte* end = nullptr;  ///< where the next one begins

  Memories() {
    void* const memory =
        mmap(reinterpret_cast<void*>(kRegion), kRegionBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    end = static_cast<std::byte*>(memory);
  }
};

Memories& memories() {
  static Memories& object = *new Memories;
  return object;
}

bool is_memory(int fd) noexcept { return fd >= kFirst; }

Memory& memory_of(int fd) { return memories().all.at(static_cast<std::size_t>(fd - kFirst)); }

}  // namespace

void clear_region() noexcept {
  auto* const begin = reinterpret_cast<std::byte*>(kRegion);
  madvise(begin, static_cast<std::size_t>(memories().end - begin), MADV_DONTNEED);
  memories().all.clear();
  memories().end = begin;
}

}  // namespace tutti::simulate

namespace tutti::control {

using simulate::Kernel;

net::Fd make_memory(const char*, std::size_t bytes) {
  simulate::Memories& memories = simulate::memories();
  memories.all.push_back({.data = memories.end, .byte_count = bytes});
  memories.end += (bytes + simulate::kPageBytes - 1) / simulate::kPageBytes * simulate::kPageBytes;
  if (!simulate::is_shared(memories.end)) std::abort();  // a round that never ends makes groups
  return net::Fd(simulate::kFirst + static_cast<int>(memories.all.size()) - 1);
}

void reserve_memory(const net::Fd&, std::size_t, std::size_t bytes) {
  const Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->inside() || !kernel->self().has_no_memory) return;
  throw net::system_error(fmt::format("cannot reserve {} bytes of shared memory", bytes), ENOSPC);
}

void seal_writes(const net::Fd&) {}

std::shared_ptr<Mapping> map_shared(const net::Fd& memory, std::size_t, bool) {
  simulate::Memory& mapped = simulate::memory_of(memory.get());
  if (!mapped.mapping) {
    mapped.mapping = std::shared_ptr<Mapping>(new Mapping);
    mapped.mapping->data_ = mapped.data;
    mapped.mapping->byte_count_ = mapped.byte_count;
  }
  return mapped.mapping;
}

}  // namespace tutti::control

// ---- descriptors of memories -------------------------------------------------------------------

using tutti::simulate::is_memory;

extern "C" {

int __real_close(int fd);
int __real_fcntl(int fd, int operation, ...);
int __real_fstat(int fd, struct stat* status);

int __wrap_close(int fd) { return is_memory(fd) ? 0 : __real_close(fd); }

/// One memory has one number, however often it was handed over.
int __wrap_fcntl(int fd, int operation, ...) {
  va_list list;
  va_start(list, operation);
  const long argument = va_arg(list, long);
  va_end(list);
  return is_memory(fd) ? fd : __real_fcntl(fd, operation, argument);
}

int __wrap_fstat(int fd, struct stat* status) {
  if (!is_memory(fd)) return __real_fstat(fd, status);
  *status = {};
  status->st_size = static_cast<off_t>(tutti::simulate::memory_of(fd).byte_count);
  return 0;
}
}
