#include "launch/output_ends.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "net/system_error.h"

namespace tutti::launch {
namespace {

OutputEnds open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw net::system_error("cannot make a pipe", errno);
  return {net::Fd(ends[0]), net::Fd(ends[1])};
}

/// Raw: what the rank writes arrives as it is, and nothing echoes. Empty where there are no more.
OutputEnds open_terminal(int own_fd, int prefix_columns) {
  net::Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[64];
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0 ||
      ::ptsname_r(master.get(), name, sizeof name) != 0) {
    return {};
  }
  net::Fd slave(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios mode = {};
  if (!slave || ::tcgetattr(slave.get(), &mode) != 0) return {};
  ::cfmakeraw(&mode);
  ::tcsetattr(slave.get(), TCSANOW, &mode);
  winsize window = {};
  if (::ioctl(own_fd, TIOCGWINSZ, &window) == 0) {
    const int columns = std::max(1, window.ws_col - prefix_columns);
    if (window.ws_col != 0) window.ws_col = static_cast<unsigned short>(columns);
    ::ioctl(slave.get(), TIOCSWINSZ, &window);
  }
  return {std::move(master), std::move(slave)};
}

}  // namespace

OutputEnds open_output_ends(int own_fd, int prefix_columns) {
  OutputEnds ends;
  if (::isatty(own_fd) == 1) ends = open_terminal(own_fd, prefix_columns);
  if (!ends.rank_end) ends = open_pipe();
  ::fcntl(ends.launcher_end.get(), F_SETFL, ::fcntl(ends.launcher_end.get(), F_GETFL) | O_NONBLOCK);
  return ends;
}

net::Fd open_unblocking(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return {};
  int number = 0;
  const bool is_master = ::ioctl(fd, TIOCGPTN, &number) == 0;  // opening it makes another terminal
  if (!S_ISFIFO(status.st_mode) && (::isatty(fd) != 1 || is_master)) return {};
  return net::Fd(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                        O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

ssize_t write_unblocking(int fd, const char* bytes, std::size_t length) noexcept {
  const int flags = ::fcntl(fd, F_GETFL);
  const bool blocks = flags >= 0 && (flags & O_NONBLOCK) == 0;
  if (blocks) ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const ssize_t wrote = ::write(fd, bytes, length);
  const int error = errno;
  if (blocks) ::fcntl(fd, F_SETFL, flags);
  errno = error;
  return wrote;
}

bool are_same_file(int a, int b) noexcept {
  struct stat one = {}, other = {};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

int terminal_columns(int fd) noexcept {
  winsize window = {};
  return ::ioctl(fd, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}

}  // namespace tutti::launch
