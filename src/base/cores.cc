// How many cores this process may keep busy: its affinity mask, and the least cgroup v2 quota on
// the way from its own group to the root.
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/wait.h"

namespace tutti {
namespace {

int affinity_cores() noexcept {
  for (int cores = 1024; cores <= 1 << 20; cores *= 4) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(cores));
    if (set == nullptr) break;
    const std::size_t byte_count = CPU_ALLOC_SIZE(static_cast<std::size_t>(cores));
    const bool read = ::sched_getaffinity(0, byte_count, set) == 0;
    const int usable = read ? CPU_COUNT_S(byte_count, set) : 0;
    CPU_FREE(set);
    if (usable > 0) return usable;
  }
  return 1;
}

/// Path of the own group in the unified hierarchy: the line "0::/path".
std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return {};
}

int quota_cores(int cores) {
  for (std::string path = own_cgroup(); !path.empty();) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    long quota = 0;
    long period = 0;
    if (file >> quota >> period && quota > 0 && period > 0) {  // "max 100000" does not parse
      cores = std::min(cores, static_cast<int>(std::max(1L, (quota + period - 1) / period)));
    }
    if (path == "/") break;
    path.erase(std::max<std::size_t>(path.rfind('/'), 1));
  }
  return cores;
}

}  // namespace

int usable_cores() noexcept {
  const int cores = affinity_cores();
  try {
    return quota_cores(cores);
  } catch (...) {
    return cores;
  }
}

}  // namespace tutti
