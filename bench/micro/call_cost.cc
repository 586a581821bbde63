// What does the public call cost beside the bare engine, at 8 bytes and two ranks? Both are timed
// in turns in the same two processes; the difference of the medians is the price of checks, chain,
// board, observers and waiting.
#include <sys/wait.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>

#include "../bare_engine.h"

namespace {

constexpr int kRanks = 2;
constexpr int kTurns = 41;
constexpr int kCalls = 5000;

template <class Call>
double nanoseconds_each(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int index = 0; index < kCalls; ++index) call();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / kCalls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  const bench::BareMemory memory(kRanks,
                                 tutti::native::engine_tuning(kRanks, tutti::usable_cores()));
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(20000 + ::getpid() % 10000).c_str(), 1);
  const int rank = ::fork() == 0 ? 1 : 0;
  {
    bench::BareEngine engine(memory, rank, kRanks);
    tutti::InitOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    tutti::ProcessGroup world = tutti::init_process_group(options);
    float data[2] = {0, 0};
    std::vector<double> bare, call;
    for (int turn = 0; turn < kTurns; ++turn) {
      bare.push_back(nanoseconds_each([&] { engine.all_reduce(data, 2); }));
      call.push_back(nanoseconds_each([&] { world.all_reduce(std::span(data)); }));
    }
    if (rank == 0) {
      std::printf(
          "all_reduce of 8 bytes, %d ranks, ns per call: engine %.1f, public call %.1f, "
          "cost of the call %.1f\n",
          kRanks, median(bare), median(call), median(call) - median(bare));
    }
  }
  if (rank == 0) ::wait(nullptr);
}
