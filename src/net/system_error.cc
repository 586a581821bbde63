#include "net/system_error.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace tutti::net {
namespace {

std::string_view advice(int error_number) {
  switch (error_number) {
    case EMFILE:
      return "; this process may open no more files: raise `ulimit -n`";
    case ENFILE:
      return "; this machine has no more open files: raise fs.file-max";
    case ENOSPC:
      return "; what this goes to is full: free space on its file system or device";
    case EFBIG:
      return "; files may not grow that far here: see `ulimit -f`";
    case ENOMEM:
      return "; memory is short: raise the limit of the container or use fewer ranks";
    case EACCES:
    case EPERM:
      return "; a sandbox or another user may be in the way";
    default:
      return "";
  }
}

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The smallest pids.max on the way from our control group to the root; empty: none is set.
std::string smallest_pids_max() {
  std::ifstream groups("/proc/self/cgroup");
  unsigned long long smallest = ~0ull;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kind = line.substr(first + 1, second - first - 1);
    if (!kind.empty() && kind != "pids") continue;
    const std::string root = kind.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const std::string text = first_line_of(root + path + "/pids.max");
      if (!text.empty() && text != "max") {
        smallest = std::min(smallest, std::strtoull(text.c_str(), nullptr, 10));
      }
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return smallest == ~0ull ? std::string() : std::to_string(smallest);
}

/// Where /proc does not say it nobody knows, and it is rare.
bool are_children_elsewhere() {
  std::error_code failed;
  const auto own = std::filesystem::read_symlink("/proc/self/ns/pid", failed);
  return !own.empty() &&
         own != std::filesystem::read_symlink("/proc/self/ns/pid_for_children", failed);
}

/// "; this user may have 1 processes and threads (ulimit -u) ...: raise it"
std::string process_limits() {
  rlimit limit{};
  std::string text;
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text = fmt::format("this user may have {} processes and threads (`ulimit -u`)", limit.rlim_cur);
  }
  // No memory for a thread's stack is EAGAIN as well.
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += fmt::format("{}this process may have {} MiB of address space (`ulimit -v`)",
                        text.empty() ? "" : ", ", limit.rlim_cur >> 20);
  }
  if (const std::string pids = smallest_pids_max(); !pids.empty()) {
    text += fmt::format("{}this container may have {} (pids.max)", text.empty() ? "" : ", ", pids);
  }
  if (text.empty()) {
    return "; the machine has no room for more (kernel.threads-max, kernel.pid_max)";
  }
  return fmt::format("; {}: raise the limit, or start fewer ranks and threads", text);
}

}  // namespace

std::string advice_on_threads(int error_number) {
  // A thread is refused by EINVAL for nothing else, as we ask for it; a process by ENOMEM.
  if (error_number == EINVAL || (error_number == ENOMEM && are_children_elsewhere())) {
    return "; what this process starts belongs to another pid namespace (unshare --pid without "
           "--fork): it can have no threads, and no processes once the first of these has ended; "
           "use unshare --pid --fork --mount-proc";
  }
  return error_number == EAGAIN ? process_limits() : std::string(advice(error_number));
}

Error no_thread_error(std::string_view what, int error_number) {
  const std::string text = std::generic_category().message(error_number);
  return Error(ErrorCode::kSystem, fmt::format("{}: {} (errno {}){}", what, text, error_number,
                                               advice_on_threads(error_number)));
}

Error system_error(std::string_view what, int error_number) {
  const std::string text = std::generic_category().message(error_number);
  return Error(ErrorCode::kSystem,
               fmt::format("{}: {} (errno {}){}", what, text, error_number, advice(error_number)));
}

}  // namespace tutti::net
