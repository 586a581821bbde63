// Files as checkpoints need them: read in pieces, and written beside and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::checkpoint {

/// Where bytes are in a file.
struct Extent {
  std::uint64_t at = 0;
  std::uint64_t byte_count = 0;
};

/// A file that is read in pieces. Nothing of it is kept in memory or mapped: one that is cut short
/// meanwhile is an error, not a signal.
class File {
 public:
  /// Errors    kSystem: cannot be opened, or is no file.
  explicit File(const std::string& path);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  std::uint64_t byte_count() const noexcept { return byte_count_; }
  /// Errors    kInvalidArgument: ends before. kSystem: cannot be read.
  void read(std::uint64_t at, std::span<std::byte> to) const;
  std::vector<std::byte> read(Extent extent) const;

 private:
  const int fd_;
  std::uint64_t byte_count_ = 0;
};

/// A file that stands under its name when it is complete, and until then under a name of its own.
/// A file that was there before lends it its mode; a link leads to the file that is replaced.
class Draft {
 public:
  /// Errors    kSystem: cannot be written. kInvalidArgument: a folder, a pipe or a device is there.
  explicit Draft(const std::string& path);
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft();  // what was not completed is removed

  std::uint64_t byte_count() const noexcept { return byte_count_; }
  /// Errors    kSystem: no space, no permission.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// It is on the disk, then under its name: also a host that dies leaves the old or the new one.
  void complete();

 private:
  [[noreturn]] void fail(int error) const;
  void remove() noexcept;

  const std::string path_, draft_;
  const int fd_;
  bool is_complete_ = false;
  std::uint64_t byte_count_ = 0;
};

}  // namespace tutti::checkpoint
