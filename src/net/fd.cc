#include "net/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "net/system_error.h"

namespace tutti::net {

void Fd::reset() noexcept {
  // EINTR included: on Linux the descriptor is gone in any case.
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Fd Fd::duplicate() const {
  Fd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_error("cannot duplicate a descriptor", errno);
  return copy;
}

}  // namespace tutti::net
