// A rank of the soak `kills`: works until one of the others is killed, then says when it knew.
//
// kills_rank WORKLOAD VICTIM RESIDENT_MIB HELPER: WORKLOAD is `collectives` (random operations of
// random sizes, the same on all ranks) or `training` (buckets reduced asynchronously while the next
// is computed). The victim holds RESIDENT_MIB of memory; with HELPER it has a live forked child.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace {

constexpr int kWarmUp = 20;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();  // CLOCK_MONOTONIC
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void collective_step(tutti::ProcessGroup& world, std::mt19937& random) {
  std::vector<float> data(1 + random() % (1u << (random() % 18)), 1.0f);
  const int root = static_cast<int>(random() % static_cast<unsigned>(world.world_size()));
  switch (random() % 4) {
    case 0:
      world.all_reduce(data);
      break;
    case 1:
      world.broadcast(data, {.root = root});
      break;
    case 2:
      world.reduce(data, {.root = root});
      break;
    default:
      world.barrier();
  }
}

/// One step of training: gradients become ready bucket by bucket.
void training_step(tutti::ProcessGroup& world, std::vector<std::vector<float>>& buckets) {
  std::vector<tutti::Work> works;
  for (std::vector<float>& bucket : buckets) {
    for (float& gradient : bucket) gradient = gradient * 0.5f + 1.0f;
    works.push_back(world.all_reduce(bucket, tutti::ReduceOp::avg, tutti::async));
  }
  for (tutti::Work& work : works) work.wait();
}

void work_until_it_fails(tutti::ProcessGroup& world, const std::string& workload) {
  std::mt19937 random(7);  // the same operations everywhere
  std::vector<std::vector<float>> buckets(8, std::vector<float>(64 * 1024));
  for (int step = 0;; ++step) {
    if (workload == "training") {
      training_step(world, buckets);
    } else {
      collective_step(world, random);
    }
    if (step == kWarmUp) say(fmt::format("ready {}", ::getpid()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 99;
  const std::string workload = argv[1];
  tutti::ProcessGroup world = tutti::init_process_group();
  const auto told = std::make_shared<std::promise<std::int64_t>>();
  std::future<std::int64_t> known_at = told->get_future();
  world.on_failure([told](const tutti::Error&) { told->set_value(now_ns()); });
  const bool is_victim = world.rank() == std::atoi(argv[2]);
  std::vector<char> resident;
  if (is_victim) resident.assign(std::strtoull(argv[3], nullptr, 10) << 20, 'r');
  if (is_victim && std::strcmp(argv[4], "helper") == 0 && ::fork() == 0) {
    for (;;) ::pause();
  }
  try {
    work_until_it_fails(world, workload);
  } catch (const tutti::Error& error) {
    const std::int64_t thrown_at = now_ns();
    std::string culprits;
    for (const int culprit : error.context().culprits) {
      culprits += (culprits.empty() ? "" : ",") + std::to_string(culprit);
    }
    // The caller may hear of it before the control thread has run the callbacks.
    const bool known = known_at.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    say(fmt::format("lost code={} culprits={} known={} thrown={}", name_of(error.code()), culprits,
                    known ? known_at.get() : 0, thrown_at));
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
