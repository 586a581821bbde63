#include "checkpoint/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "base/signals.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // Linux moves less than 2 GiB in a call

std::string words(int error) { return std::generic_category().message(error); }

/// The file that a chain of links leads to, which need not be there yet.
std::string end_of_links(std::string path) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(fs::path(path), error); ++links) {
    const fs::path target = fs::read_symlink(path, error);
    if (error) break;
    path = (fs::path(path).parent_path() / target).string();
  }
  return path;
}

std::string random_digits() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

File::File(const std::string& path)
    // A pipe without a writer would be waited for.
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (fd_ < 0) throw Error(ErrorCode::kSystem, "cannot be opened: " + words(errno));
  struct stat status {};
  const bool is_file = ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
  if (!is_file) {
    ::close(fd_);
    throw Error(ErrorCode::kSystem, "is no file that can be read: a folder, a pipe or a device");
  }
  byte_count_ = static_cast<std::uint64_t>(status.st_size);
}

File::~File() { ::close(fd_); }

void File::read(std::uint64_t at, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(fd_, to.data(), std::min(to.size(), kMostAtOnce),
                                static_cast<off_t>(at));  // at is inside of a file
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(ErrorCode::kSystem, "cannot be read: " + words(errno));
    if (got == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("is cut short: {} bytes at {} are missing", to.size(), at));
    }
    to = to.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
}

std::vector<std::byte> File::read(Extent extent) const {
  if (extent.at > byte_count_ || extent.byte_count > byte_count_ - extent.at) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("is cut short or damaged: it names {} bytes at {}, and has {}",
                            extent.byte_count, extent.at, byte_count_));
  }
  std::vector<std::byte> bytes(extent.byte_count);
  read(extent.at, bytes);
  return bytes;
}

Draft::Draft(const std::string& path)
    : path_(end_of_links(path)),
      // Ranks that all save by mistake do not write into each other's, also in containers, which
      // share the folder and have the same numbers of processes.
      draft_(path_ + ".part-" + random_digits()),
      fd_(::open(draft_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail(errno);
  struct stat before {};
  if (::stat(path_.c_str(), &before) != 0) return;
  if (S_ISREG(before.st_mode)) {
    ::fchmod(fd_, before.st_mode & 07777);  // as far as we may
    return;
  }
  remove();
  throw Error(ErrorCode::kInvalidArgument, "is no file: a folder, a pipe or a device");
}

Draft::~Draft() {
  if (!is_complete_) remove();
}

void Draft::remove() noexcept {
  ::close(fd_);
  ::unlink(draft_.c_str());
}

void Draft::fail(int error) const {
  throw Error(ErrorCode::kSystem,
              fmt::format("cannot be written: {} (at first it is {})", words(error), draft_));
}

void Draft::write(std::span<const std::byte> bytes) {
  const TooLargeIsAnError too_large_is_an_error;
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    byte_count_ += static_cast<std::uint64_t>(done);
  }
}

void Draft::complete() {
  if (::fsync(fd_) != 0) fail(errno);
  if (std::rename(draft_.c_str(), path_.c_str()) != 0) fail(errno);
  is_complete_ = true;
  ::close(fd_);
}

}  // namespace tutti::checkpoint
