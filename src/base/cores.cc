#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <numeric>
#include <string>

namespace tutti {
namespace {

void read_affinity(Cores& cores) noexcept {
  for (std::size_t most = 1024; most <= 1 << 20; most *= 4) {
    cpu_set_t* const set = CPU_ALLOC(most);
    if (set == nullptr) return;
    const std::size_t byte_count = CPU_ALLOC_SIZE(most);
    const bool read = ::sched_getaffinity(0, byte_count, set) == 0;
    for (std::size_t core = 0; read && core < most; ++core) {
      if (CPU_ISSET_S(core, byte_count, set)) {
        cores.mask[core / 64 % cores.mask.size()] |= std::uint64_t{1} << core % 64;
      }
    }
    CPU_FREE(set);
    if (read) return;
  }
}

/// Path of the own group in the unified hierarchy: the line "0::/path".
std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return {};
}

void read_quota(Cores& cores) {
  for (std::string path = own_cgroup(); !path.empty();) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    long quota = 0;
    long period = 0;
    if (file >> quota >> period && quota > 0 && period > 0) {  // "max 100000" does not parse
      cores.quota = static_cast<std::uint32_t>(
          std::min<long>(cores.quota, std::max(1L, (quota + period - 1) / period)));
    }
    if (path == "/") break;
    path.erase(std::max<std::size_t>(path.rfind('/'), 1));
  }
}

}  // namespace

void Cores::join(const Cores& other) noexcept {
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= other.mask[i];
  quota = std::min(quota, other.quota);
}

int Cores::count() const noexcept {
  const int cores = std::accumulate(mask.begin(), mask.end(), 0, [](int sum, std::uint64_t word) {
    return sum + std::popcount(word);
  });
  return std::max(1, static_cast<int>(std::min(static_cast<std::uint32_t>(cores), quota)));
}

Cores own_cores() noexcept {
  Cores cores;
  read_affinity(cores);
  try {
    read_quota(cores);
  } catch (...) {  // no memory for a path: the mask alone
  }
  return cores;
}

bool leave_core(int core) noexcept {
  cpu_set_t own;
  if (core < 0 || core >= CPU_SETSIZE || ::sched_getaffinity(0, sizeof own, &own) != 0) {
    return false;
  }
  cpu_set_t others = own;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return false;
  const bool moved = ::sched_setaffinity(0, sizeof others, &others) == 0;
  ::sched_setaffinity(0, sizeof own, &own);
  return moved;
}

int usable_cores() noexcept { return own_cores().count(); }

}  // namespace tutti
