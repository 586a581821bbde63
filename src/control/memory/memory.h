// Memory that several processes share: making it, mapping it once per process.
//
// A *memory* is a memfd: no name in any file system, gone with its last user. Its owner makes and
// maps it, *seals* it (nobody can shrink, grow or, if asked, newly write it) and hands the
// descriptor to the others, who map it and close the descriptor.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "net/fd.h"

namespace tutti::control {

/// A memfd of `bytes` bytes of zeros, sealed against shrinking and growing. Takes no pages yet.
net::Fd make_memory(const char* name, std::size_t bytes);
/// Reserves pages, so that touching them cannot kill us (SIGBUS). kSystem when memory is short.
void reserve_memory(const net::Fd& memory, std::size_t offset, std::size_t bytes);
/// Nobody can map this memory writable from now on; mappings that exist stay writable.
void seal_writes(const net::Fd& memory);

/// One mapping of a memory, shared by everybody in this process who asked for it.
class Mapping {
 public:
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  std::byte* data() const noexcept { return data_; }
  std::size_t byte_count() const noexcept { return byte_count_; }

 private:
  friend std::shared_ptr<Mapping> map_shared(const net::Fd&, std::size_t, bool);
  Mapping() = default;
  std::byte* data_ = nullptr;
  std::size_t byte_count_ = 0;
  bool writable_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// Maps the first `bytes` bytes. Ranks of one process get the same mapping: the table is keyed by
/// (device, inode), and a mapping that is writable serves those who only read. Owners map before
/// they hand over. kInvalidArgument when the memory is smaller than `bytes` or could still shrink.
std::shared_ptr<Mapping> map_shared(const net::Fd& memory, std::size_t bytes, bool writable);

}  // namespace tutti::control
