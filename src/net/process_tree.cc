#include "net/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "net/fd.h"
#include "net/poller.h"
#include "net/process_info.h"

namespace tutti::net {
namespace {

using namespace std::chrono_literals;

/// For children that nobody knows, as ranks whose keeper has died: the kernel has killed these.
constexpr auto kUnknownEnd = 100ms;

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

/// A small file of /proc; empty when it cannot be read.
std::string read_small(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::read(fd, buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(fd);
  return text;
}

/// Children by parent from one scan of all processes: for kernels without /proc/.../children.
std::vector<pid_t> descendants_by_scan(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : numbers_in("/proc")) {
    if (const auto stat = stat_of(pid)) children.emplace(stat->parent, pid);
  }
  std::vector<pid_t> found = {root};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

bool kernel_lists_children() {
  static const bool yes =
      ::access(fmt::format("/proc/self/task/{}/children", ::syscall(SYS_gettid)).c_str(), R_OK) ==
      0;
  return yes;
}

void append_children(pid_t parent, std::vector<pid_t>& found) {
  const std::string tasks = fmt::format("/proc/{}/task", parent);
  for (const pid_t task : numbers_in(tasks)) {
    const std::string text = read_small(fmt::format("{}/{}/children", tasks, task));
    for (const char* cursor = text.c_str(); *cursor != '\0';) {
      char* end = nullptr;
      const long number = std::strtol(cursor, &end, 10);
      if (end == cursor) break;
      found.push_back(static_cast<pid_t>(number));
      cursor = end;
    }
  }
}

/// A child that nobody has reaped, or one in that process group. The kernel says so, without /proc.
bool has_child(idtype_t type, pid_t id) noexcept {
  siginfo_t info;
  return ::waitid(type, static_cast<id_t>(id), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void kill_known(const std::vector<pid_t>& known) noexcept {
  for (const pid_t pid : known) {
    if (has_child(P_PID, pid)) ::kill(pid, SIGKILL);
    if (has_child(P_PGID, pid)) ::kill(-pid, SIGKILL);
  }
}

bool are_gone(const std::vector<pid_t>& known) noexcept {
  return std::none_of(known.begin(), known.end(),
                      [](pid_t pid) { return has_child(P_PID, pid) || has_child(P_PGID, pid); });
}

/// Whether /proc shows who is there. It does not where no descriptor is left to look with.
bool proc_tells() { return has_own_proc() && Fd(::open("/proc/self/task", O_RDONLY | O_CLOEXEC)); }

}  // namespace

std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  const Directory directory(::opendir(folder.c_str()));
  if (!directory) return numbers;
  while (const dirent* entry = ::readdir(directory.get())) {
    const int number = std::atoi(entry->d_name);
    if (number > 0) numbers.push_back(number);
  }
  return numbers;
}

std::vector<pid_t> descendants_of(pid_t root) {
  if (!has_own_proc()) return {};
  if (!kernel_lists_children()) return descendants_by_scan(root);
  std::vector<pid_t> found;
  append_children(root, found);
  for (std::size_t i = 0; i < found.size(); ++i) append_children(found[i], found);
  return found;
}

bool signal_descendant(pid_t pid, pid_t ancestor, int signal_number) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    // Refused by a sandbox, or no descriptor is left. A child that nobody has reaped keeps its
    // number; what is deeper comes to us, a subreaper, when its parents have ended.
    return has_child(P_PID, pid) && ::kill(pid, signal_number) == 0;
  }
  const bool ours = descends_from(pid, ancestor);
  const bool sent = ours && ::syscall(SYS_pidfd_send_signal, pidfd, signal_number, nullptr, 0) == 0;
  ::close(pidfd);
  return sent;
}

bool kill_and_reap_below(const std::vector<pid_t>& known) {
  const pid_t self = ::getpid();
  const bool sees_all = proc_tells();
  for (const pid_t below : descendants_of(self)) signal_descendant(below, self, SIGKILL);
  kill_known(known);
  for (;;) {
    siginfo_t ended = {};
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0) return errno == ECHILD;
    if (ended.si_pid == 0) return false;
    if (!sees_all)
      ::kill(-ended.si_pid, SIGKILL);  // its number is nobody else's until it is reaped
    ::waitpid(ended.si_pid, nullptr, 0);
  }
}

void kill_everything_below(const std::vector<pid_t>& known) {
  auto until = Deadline::Clock::now() + kUnknownEnd;
  for (auto rest = 1ms; !kill_and_reap_below(known); rest = std::min(2 * rest, 16ms)) {
    const auto now = Deadline::Clock::now();
    if (proc_tells() || !are_gone(known)) until = now + kUnknownEnd;
    if (now >= until) return;
    Deadline never;
    pause(rest, never);  // the kernel needs a while to give back a large memory
  }
}

}  // namespace tutti::net
