#include "base/stderr_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace tutti {

namespace {

constexpr std::size_t kMostWaiting = 64 * 1024;

/// As write, without waiting. The descriptor belongs to others as well, so its flags stay as they
/// are: a pipe is opened anew. Files never make a writer wait for anybody.
ssize_t write_now(std::string_view bytes) noexcept {
  struct stat status {};
  if (::fstat(STDERR_FILENO, &status) != 0) return -1;
  if (S_ISSOCK(status.st_mode)) {
    return ::send(STDERR_FILENO, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  const bool is_file = S_ISREG(status.st_mode);
  const int own =
      is_file ? -1 : ::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own < 0 && !is_file && errno == ENXIO) return -1;  // a pipe without a reader
  // Where it cannot be opened anew (no /proc, another user's): as it is.
  const ssize_t written = ::write(own >= 0 ? own : STDERR_FILENO, bytes.data(), bytes.size());
  const int error = errno;
  if (own >= 0) ::close(own);
  errno = error;
  return written;
}

}  // namespace

void StderrLines::add(std::string line) {
  line += '\n';
  write_some();
  if (waiting_.size() + line.size() > kMostWaiting) {
    ++lost_;
    return;
  }
  if (lost_ > 0) {
    waiting_ += fmt::format("tutti: {} lines were lost: nobody read stderr\n", lost_);
    lost_ = 0;
  }
  waiting_ += line;
  write_some();
}

void StderrLines::write_bare(std::string_view prefix, std::string_view text) noexcept {
  std::array<char, 512> line;
  std::size_t size = 0;
  for (const std::string_view part : {prefix, text}) {
    size += part.copy(line.data() + size, line.size() - 1 - size);
  }
  line[size++] = '\n';
  write_now({line.data(), size});
}

void StderrLines::write_some() noexcept {
  while (!waiting_.empty()) {
    const ssize_t written = write_now(waiting_);
    if (written > 0) {
      waiting_.erase(0, static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      return;
    } else if (written >= 0 || errno != EINTR) {
      waiting_.clear();  // nobody reads: there is nowhere left to say so
      lost_ = 0;
    }
  }
}

}  // namespace tutti
