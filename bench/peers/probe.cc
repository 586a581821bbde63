// In which state is the machine: how long does a cache line take from one core to another? Prints
// the median of several short series, in nanoseconds one way.
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>

namespace {

struct alignas(128) Flag {
  std::atomic<unsigned> value{0};
};

void pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

}  // namespace

int main() {
  constexpr unsigned kSeries = 9, kRounds = 2000;
  auto* flags = static_cast<Flag*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  pin(child == 0 ? 1 : 0);
  if (child == 0) {
    // It would spin for ever if the parent were killed.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    for (unsigned round = 1; round <= kSeries * kRounds; ++round) {
      while (flags[0].value.load(std::memory_order_acquire) != round) _mm_pause();
      flags[1].value.store(round, std::memory_order_release);
    }
    ::_exit(0);
  }
  std::array<double, kSeries> series;
  unsigned round = 0;
  for (double& one_way : series) {
    const auto start = std::chrono::steady_clock::now();
    for (unsigned end = round + kRounds; round < end;) {
      flags[0].value.store(++round, std::memory_order_release);
      while (flags[1].value.load(std::memory_order_acquire) != round) _mm_pause();
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    one_way = took.count() / kRounds / 2;
  }
  ::waitpid(child, nullptr, 0);
  std::sort(series.begin(), series.end());
  std::printf("%.0f\n", series[kSeries / 2]);
}
