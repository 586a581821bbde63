#include "net/fd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <vector>

#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

/// The private descriptors of this process. Never destroyed: some are closed after main.
struct Private {
  std::mutex mutex;  // held across fork, and while a descriptor is opened or closed
  std::vector<int> descriptors;
};
Private& all_private();

void before_fork() noexcept { all_private().mutex.lock(); }
void after_fork_in_parent() noexcept { all_private().mutex.unlock(); }

/// In the child, where only calls are allowed that a signal handler may make. The numbers stay
/// taken, since objects of the child still name them.
void after_fork_in_child() noexcept {
  Private& all = all_private();
  const int nobody =
      all.descriptors.empty() ? -1 : ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (const int fd : all.descriptors) {
    if (nobody < 0 || ::dup3(nobody, fd, O_CLOEXEC) < 0) ::close(fd);
  }
  if (nobody >= 0) ::close(nobody);
  all.mutex.unlock();
}

Private& all_private() {
  static Private& all = [&]() -> Private& {
    ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return *new Private;
  }();
  return all;
}

}  // namespace

Fd Fd::open_private(const std::function<int()>& open) {
  Private& all = all_private();
  const std::lock_guard lock(all.mutex);
  all.descriptors.reserve(all.descriptors.size() + 1);
  Fd fd(open());
  if (!fd) return fd;
  all.descriptors.push_back(fd.fd_);
  fd.is_private_ = true;
  return fd;
}

int Fd::release() noexcept {
  if (std::exchange(is_private_, false)) {
    const std::lock_guard lock(all_private().mutex);
    std::erase(all_private().descriptors, fd_);
  }
  return std::exchange(fd_, -1);
}

void Fd::reset() noexcept {
  if (fd_ < 0) return;
  // EINTR included: on Linux the descriptor is gone in any case.
  if (!std::exchange(is_private_, false)) {
    ::close(std::exchange(fd_, -1));
    return;
  }
  // Under the lock, or its number could be somebody else's before it is forgotten.
  const std::lock_guard lock(all_private().mutex);
  std::erase(all_private().descriptors, fd_);
  ::close(std::exchange(fd_, -1));
}

Fd Fd::duplicate() const {
  Fd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_error("cannot duplicate a descriptor", errno);
  return copy;
}

void hold_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // It gets the lowest free number, which is fd: those below are open.
    const int opened = ::open("/dev/null", O_RDONLY);
    if (opened < 0) throw system_error("cannot open /dev/null", errno);
    if (opened > STDERR_FILENO) ::close(opened);  // another thread was faster
  }
}

void require_descriptors(std::size_t least, std::size_t wanted, std::string_view what) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  std::size_t open = 0;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator each("/proc/self/fd", unreadable), end;
       !unreadable && each != end; each.increment(unreadable))
    ++open;
  if (open + wanted > limit.rlim_cur && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min<rlim_t>(open + wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (open + least <= limit.rlim_cur) return;
  throw Error(ErrorCode::kSystem,
              fmt::format("{} needs {} descriptors more, and of {} that this process may open {} "
                          "are in use: raise `ulimit -n`",
                          what, least, limit.rlim_cur, open));
}

}  // namespace tutti::net
