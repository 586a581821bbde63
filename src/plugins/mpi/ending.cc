#include "plugins/mpi/ending.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <thread>

#include "base/log.h"

namespace tutti::mpi {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPageBytes = 4096;

/// Null if the kernel refuses.
void* map_page(int fd, int protection) noexcept {
  void* const page = ::mmap(nullptr, kPageBytes, protection, MAP_SHARED, fd, 0);
  return page == MAP_FAILED ? nullptr : page;
}

/// The page that a peer shows, or null.
const void* page_of(const PageAddress& peer) {
  const std::string path = fmt::format("/proc/{}/fd/{}", peer.pid, peer.fd);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat about = {};
  const bool is_page = ::fstat(fd, &about) == 0 && about.st_size == kPageBytes;
  const void* const page = is_page ? map_page(fd, PROT_READ) : nullptr;
  ::close(fd);
  return page;
}

}  // namespace

Ending::Ending(std::chrono::nanoseconds grace) : grace_(grace), own_{::getpid(), -1} {
  const int fd = ::memfd_create("tutti-mpi-exit", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return;
  // Sealed: a page that became shorter would be a SIGBUS for those who look at it.
  if (::ftruncate(fd, kPageBytes) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    arrived_ = static_cast<Page*>(map_page(fd, PROT_READ | PROT_WRITE));
  }
  if (arrived_ != nullptr) {
    own_.fd = fd;
  } else {
    ::close(fd);
  }
}

void Ending::watch(const std::vector<PageAddress>& peers) {
  if (!ends_.empty()) return;  // a second world has the same processes
  for (const PageAddress& peer : peers) {
    if (peer.pid == own_.pid) continue;
    const void* const page = page_of(peer);
    if (page == nullptr) continue;
    const long end = ::syscall(SYS_pidfd_open, peer.pid, 0);
    if (end < 0) continue;
    others_.push_back(static_cast<const Page*>(page));
    ends_.push_back({static_cast<int>(end), POLLIN, 0});
  }
}

/// Waits up to `patience` for the end of a peer; -1 ms: for ever.
bool Ending::any_ended(std::chrono::milliseconds patience) noexcept {
  return ::poll(ends_.data(), ends_.size(), static_cast<int>(patience.count())) > 0;
}

bool Ending::all_arrived() const noexcept {
  return std::all_of(others_.begin(), others_.end(),
                     [](const Page* arrived) { return arrived->load() != 0; });
}

bool Ending::await_peers(const std::atomic<bool>& has_failed) noexcept {
  if (arrived_ != nullptr) arrived_->store(1);
  const bool finalizes = await_all(has_failed);
  if (arrived_ != nullptr && !finalizes) arrived_->store(0);
  return finalizes;
}

bool Ending::await_all(const std::atomic<bool>& has_failed) noexcept {
  for (auto patience = 0ms; !all_arrived(); patience = std::min(patience + 1ms, kTick)) {
    if (has_failed.load()) return false;
    if (!any_ended(patience)) continue;
    for (std::size_t peer = 0; peer < ends_.size(); ++peer) {
      if (ends_[peer].revents == 0 || others_[peer]->load() != 0) continue;
      log(LogLevel::info,
          "backend \"mpi\": another process ended without finalising MPI, so this one does not "
          "either");
      return false;
    }
    ::poll(nullptr, 0, static_cast<int>(kTick.count()));  // that one had arrived; others have not
  }
  return true;
}

/// Ends the process if MPI_Finalize goes on for the grace after a peer has ended. Only time in
/// which this process ran counts: it may be stopped.
void Ending::watch_finalize(int exit_code) noexcept {
  while (!any_ended(-1ms)) {
  }
  for (auto waited = 0ns; waited < grace_; waited += kTick) {
    if (finalized_.load()) return;
    ::poll(nullptr, 0, static_cast<int>(kTick.count()));
  }
  if (finalized_.load()) return;  // what else the program does at its end is its own affair
  log(LogLevel::warn,
      fmt::format("backend \"mpi\": another process has ended, and MPI_Finalize has not returned "
                  "here for {:.3g} s since; this process leaves it, with its own exit code {} "
                  "(setting failure_grace)",
                  std::chrono::duration<double>(grace_).count(), exit_code));
  std::fflush(nullptr);
  ::_exit(exit_code);
}

void Ending::finalize(int exit_code) noexcept {
  try {
    if (!ends_.empty()) std::thread([this, exit_code] { watch_finalize(exit_code); }).detach();
  } catch (const std::system_error&) {
    return;  // nobody to watch: what cannot be left is not entered
  }
  MPI_Finalize();
  finalized_.store(true);
}

}  // namespace tutti::mpi
