#include "launch/stdin_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "net/system_error.h"

namespace tutti::launch {

net::Fd StdinPump::open(int source) {
  if (::isatty(source) != 1) {
    net::Fd same(::fcntl(source, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!same) same = net::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));  // stdin was closed
    if (!same) throw net::system_error("cannot open /dev/null", errno);
    return same;
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw net::system_error("cannot make a pipe", errno);
  terminal_ = source;
  pipe_ = net::Fd(ends[1]);
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  return net::Fd(ends[0]);
}

net::Watch StdinPump::watch() const {
  if (!pipe_) return {};
  if (!pending_.empty()) return {.fd = pipe_.get(), .want_write = true};
  const pid_t foreground = ::tcgetpgrp(terminal_);  // none: it is not the controlling terminal
  const bool in_foreground = foreground < 0 || foreground == ::getpgrp();
  return in_foreground ? net::Watch{.fd = terminal_, .want_read = true} : net::Watch{};
}

void StdinPump::pump(const net::Watch& ready) {
  if (ready.readable && pending_.empty()) {
    char buffer[4096];
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) pipe_.reset();
    if (got > 0) pending_.assign(buffer, static_cast<std::size_t>(got));
  }
  if (pending_.empty()) return;
  const ssize_t wrote = ::write(pipe_.get(), pending_.data(), pending_.size());
  if (wrote >= 0) {
    pending_.erase(0, static_cast<std::size_t>(wrote));
  } else if (errno != EINTR && errno != EAGAIN) {  // rank 0 does not read any more
    pending_.clear();
    pipe_.reset();
  }
}

}  // namespace tutti::launch
