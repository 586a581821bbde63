// What the fuzzers of checkpoints share: an input as a file, and what holds of every state_dict.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "checkpoint/state.h"
#include "fuzz/input.h"

namespace tutti::fuzz {

/// Bytes as a file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(fd_ >= 0);
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
      require(done > 0);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

/// Every element of a tensor that has no problem is in the file: whoever follows the strides stays
/// inside.
inline void check_tensor(const checkpoint::StoredTensor& tensor, std::uint64_t file_bytes) {
  if (!tensor.problem.empty()) return;
  const auto count = checkpoint::count_elements(tensor.sizes);
  require(count && tensor.strides.size() == tensor.sizes.size());
  require(tensor.elements.at <= file_bytes);
  require(tensor.elements.byte_count <= file_bytes - tensor.elements.at);
  require((tensor.elements.byte_count == 0) == (*count == 0));
  if (*count == 0) return;
  unsigned __int128 last = 0;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    require(tensor.sizes[i] > 0 && tensor.strides[i] >= 0);
    last += static_cast<unsigned __int128>(tensor.sizes[i] - 1) *
            static_cast<std::uint64_t>(tensor.strides[i]);
  }
  require((last + 1) * size_of(tensor.dtype) == tensor.elements.byte_count);
}

inline void check_state(const checkpoint::State& state, std::uint64_t file_bytes) {
  std::vector<std::string_view> names;
  for (const auto& tensor : state.tensors) {
    check_tensor(tensor, file_bytes);
    names.push_back(tensor.name);
  }
  std::ranges::sort(names);
  require(std::ranges::adjacent_find(names) == names.end());
}

/// A file of which nothing is known before.
inline void check_file(std::span<const std::byte> bytes) {
  const MemoryFile memory(bytes);
  take_or_refuse([&] {
    const checkpoint::File file(memory.path());
    check_state(read_state(file, std::nullopt), file.byte_count());
  });
}

}  // namespace tutti::fuzz
