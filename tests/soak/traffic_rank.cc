// What an operation sends from host to host, by the counter of the host's link, beside what the
// schedule says: `traffic_rank BYTES TIMES`, one rank on each host or more, started by
// `./dev hosts`. It fails where the two differ by more than a fifth.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/schedule/schedule.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

constexpr double kMostOff = 0.2;

/// Ranks with the same one are on one host.
std::uint64_t host_id() {
  struct stat space {};
  if (::stat("/proc/self/ns/net", &space) != 0) throw std::runtime_error("no /proc/self/ns/net");
  return space.st_ino;
}

/// Bytes that this host has given to its link so far.
double sent() {
  std::ifstream file("/sys/class/net/eth0/statistics/tx_bytes");
  double bytes = 0;
  if (!(file >> bytes)) throw std::runtime_error("no eth0 here: start this with ./dev hosts");
  return bytes;
}

std::size_t chunk_begin(std::size_t count, std::int32_t chunk, std::int32_t parts) {
  return count * static_cast<std::size_t>(chunk) / static_cast<std::size_t>(parts);
}

/// Bytes of payload that the schedule of an all_reduce has the ranks of host `own` send to others.
double scheduled(const std::vector<std::uint64_t>& host_of, std::uint64_t own, std::size_t count) {
  std::size_t elements = 0;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    if (host_of[rank] != own) continue;
    const native::Schedule schedule =
        native::make_schedule({.op = Op::all_reduce,
                               .group_size = static_cast<int>(host_of.size()),
                               .rank = static_cast<int>(rank),
                               .in_place = true});
    for (const native::Step& step : schedule.steps) {
      if (step.kind != native::Step::Kind::send) continue;
      if (host_of[static_cast<std::size_t>(step.peer)] == own) continue;
      const std::int32_t chunk = step.source.chunk, parts = schedule.parts;
      elements += parts == 0
                      ? count
                      : chunk_begin(count, chunk + 1, parts) - chunk_begin(count, chunk, parts);
    }
  }
  return static_cast<double>(elements * sizeof(float));
}

int measure(std::size_t bytes, int times) {
  ProcessGroup world = init_process_group();
  const std::vector<std::uint64_t> host_of = all_gather_object(world, host_id());
  std::vector<float> data(bytes / sizeof(float));
  world.all_reduce(data);  // connections are made
  world.barrier();
  const double before = sent();
  for (int i = 0; i < times; ++i) world.all_reduce(data);
  world.barrier();
  const double counted = (sent() - before) / times;
  world.close();
  const auto me = static_cast<std::size_t>(world.rank());
  const bool is_first =
      std::find(host_of.begin(), host_of.end(), host_of[me]) == host_of.begin() + world.rank();
  if (!is_first) return 0;
  const double wanted = scheduled(host_of, host_of[me], data.size());
  std::printf("all_reduce of %zu bytes: this host sent %.0f bytes, the schedule says %.0f: %.3fx\n",
              bytes, counted, wanted, counted / wanted);
  return std::abs(counted / wanted - 1) <= kMostOff ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: traffic_rank BYTES TIMES");
  return measure(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]));
} catch (const std::exception& failed) {
  std::fprintf(stderr, "traffic_rank: %s\n", failed.what());
  return 2;
}
