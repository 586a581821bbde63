#include "control/memory/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "net/system_error.h"
#include "tutti/error.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tutti::control {
namespace {

/// Mappings of this process by (device, inode). Part of what control/process may hold: it is never
/// destroyed, since ranks may end after main.
struct MappingTable {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Mapping>> mappings;
};
MappingTable& mapping_table() {
  static auto* table = new MappingTable;
  return *table;
}

struct stat stat_memory(const net::Fd& memory, std::size_t bytes) {
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) {
    throw net::system_error("cannot look at a memory", errno);
  }
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  const bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (!is_sealed || static_cast<std::size_t>(status.st_size) < bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a memory of {} bytes ({}) cannot be mapped for {} bytes",
                            status.st_size, is_sealed ? "sealed" : "not sealed", bytes));
  }
  return status;
}

/// Where a file may not grow that far the kernel answers ftruncate with SIGXFSZ, which ends the
/// process without a word; memory counts as a file.
void check_file_size_limit(std::size_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_cur >= bytes) return;
  throw Error(
      ErrorCode::kSystem,
      fmt::format("cannot make {} bytes of shared memory: this process may make files of at "
                  "most {} bytes (RLIMIT_FSIZE), and memory counts as one: raise the limit "
                  "with `ulimit -f unlimited`",
                  bytes, limit.rlim_cur));
}

}  // namespace

net::Fd make_memory(const char* name, std::size_t bytes) {
  check_file_size_limit(bytes);
  net::Fd memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) throw net::system_error("cannot make shared memory (memfd_create)", errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    throw net::system_error(fmt::format("cannot give shared memory {} bytes", bytes), errno);
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    throw net::system_error("cannot seal shared memory", errno);
  }
  return memory;
}

void reserve_memory(const net::Fd& memory, std::size_t offset, std::size_t bytes) {
  int result = 0;
  do {
    result = ::fallocate(memory.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    // Of a file in memory that says that memory is short.
    throw net::system_error(fmt::format("cannot reserve {} bytes of shared memory", bytes),
                            errno == ENOSPC ? ENOMEM : errno);
  }
}

void seal_writes(const net::Fd& memory) {
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    throw net::system_error("cannot seal shared memory against writes", errno);
  }
}

Mapping::~Mapping() {
  {
    MappingTable& table = mapping_table();
    const std::lock_guard lock(table.mutex);
    const auto found = table.mappings.find({device_, inode_});
    // Somebody may have mapped it anew between our last owner's end and now.
    if (found != table.mappings.end() && found->second.expired()) table.mappings.erase(found);
  }
  if (data_ != nullptr) ::munmap(data_, byte_count_);
}

std::shared_ptr<Mapping> map_shared(const net::Fd& memory, std::size_t bytes, bool writable) {
  const struct stat status = stat_memory(memory, bytes);
  MappingTable& table = mapping_table();
  // Declared before the lock: their destructor takes the lock, too.
  std::shared_ptr<Mapping> mapping;
  std::shared_ptr<Mapping> fresh(new Mapping);
  const std::lock_guard lock(table.mutex);
  std::weak_ptr<Mapping>& entry = table.mappings[{status.st_dev, status.st_ino}];
  mapping = entry.lock();
  if (mapping && mapping->byte_count_ >= bytes && (mapping->writable_ || !writable)) {
    return mapping;
  }
  void* data =
      ::mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED) {
    throw net::system_error(fmt::format("cannot map {} bytes of shared memory", bytes), errno);
  }
  fresh->data_ = static_cast<std::byte*>(data);
  fresh->byte_count_ = bytes;
  fresh->writable_ = writable;
  fresh->device_ = status.st_dev;
  fresh->inode_ = status.st_ino;
  entry = fresh;
  return fresh;
}

}  // namespace tutti::control
