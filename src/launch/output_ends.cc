#include "launch/output_ends.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
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

int terminal_columns(int fd) noexcept {
  winsize window = {};
  return ::ioctl(fd, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}

}  // namespace tutti::launch
