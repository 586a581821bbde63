// A rank of the soak `links`.
//
//   links_rank work          works until it is told of a loss; after SIGUSR1 it says whether the
//                            loss is what it was, and whether anybody can be let in again
//   links_rank steps N       N all_reduces; says the hash of all results
//   links_rank late R S      rank R comes S seconds late to an all_reduce
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

using namespace tutti;
using namespace std::chrono_literals;

constexpr int kWarmUp = 20;
constexpr auto kLongest = 60s;  // until SIGUSR1
constexpr auto kArrive = 20s;   // no call of `work` waits longer

volatile std::sig_atomic_t is_asked = 0;

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::string culprits_of(const Error& error) {
  std::string text;
  for (const int rank : error.context().culprits) {
    text += (text.empty() ? "" : ",") + std::to_string(rank);
  }
  return text;
}

/// What rank `rank` gives to step `step`: values whose sum depends on the order of the additions.
std::vector<float> values(int rank, int step) {
  std::mt19937 sizes(static_cast<unsigned>(step));
  std::mt19937 random(static_cast<unsigned>(step * 1000 + rank));
  std::vector<float> data(1 + sizes() % (1u << (sizes() % 17)));
  for (float& value : data) value = static_cast<float>(random()) / 1e5f;
  return data;
}

/// Empty if every way to go on fails for what this rank was told first.
std::string try_again(ProcessGroup& world, const Error& first) {
  try {
    world.barrier();
    return "a barrier of the world went well";
  } catch (const Error& error) {
    if (error.code() != first.code() || culprits_of(error) != culprits_of(first)) {
      return "the world has another cause now: " + std::string(error.what());
    }
  }
  std::vector<int> all(static_cast<std::size_t>(world.world_size()));
  std::iota(all.begin(), all.end(), 0);
  try {
    world.new_group(all).barrier();
    return "a new group of all ranks went well";
  } catch (const Error& error) {
    if (error.code() == first.code() && culprits_of(error) == culprits_of(first)) return {};
    return "a new group of all ranks has another cause: " + std::string(error.what());
  }
}

int work(ProcessGroup& world) {
  const auto told = std::make_shared<std::promise<std::int64_t>>();
  std::future<std::int64_t> known_at = told->get_future();
  world.on_failure([told](const Error&) { told->set_value(now_ns()); });
  try {
    for (int step = 0;; ++step) {
      std::vector<float> data = values(world.rank(), step % 64);
      world.all_reduce(data);
      if (step == kWarmUp) say("ready");
    }
  } catch (const Error& error) {
    const bool known = known_at.wait_for(5s) == std::future_status::ready;
    say("lost code=" + std::string(name_of(error.code())) + " culprits=" + culprits_of(error) +
        " known=" + std::to_string(known ? known_at.get() : 0));
    say(error.what());
    const auto until = std::chrono::steady_clock::now() + kLongest;
    while (is_asked == 0 && std::chrono::steady_clock::now() < until) ::usleep(10'000);
    const std::string wrong = try_again(world, error);
    say("again " + (wrong.empty() ? "lost" : wrong));
    return wrong.empty() ? 0 : 1;
  }
}

int steps(ProcessGroup& world, int count) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (int step = 0; step < count; ++step) {
    std::vector<float> data = values(world.rank(), step);
    world.all_reduce(data);
    for (const float value : data) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      hash = (hash ^ bits) * 1099511628211u;
    }
    if (step == kWarmUp) say("ready");
  }
  world.close();
  say("hash " + std::to_string(hash));
  return 0;
}

int come_late(ProcessGroup& world, int late, int seconds) {
  world.barrier();
  say("ready");
  if (world.rank() == late) std::this_thread::sleep_for(std::chrono::seconds(seconds));
  float sum = 1;
  world.all_reduce(sum);
  const bool is_right = sum == static_cast<float>(world.world_size());
  world.close();
  say(is_right ? "done" : "wrong sum");
  return is_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  std::signal(SIGUSR1, [](int) { is_asked = 1; });
  const std::string workload = argc > 1 ? argv[1] : "";
  ProcessGroup world =
      init_process_group({.timeout = workload == "work" ? Timeout(kArrive) : Timeout()});
  if (workload == "work" && argc == 2) return work(world);
  if (workload == "steps" && argc == 3) return steps(world, std::atoi(argv[2]));
  if (workload == "late" && argc == 4)
    return come_late(world, std::atoi(argv[2]), std::atoi(argv[3]));
  return 99;
} catch (const Error& error) {
  say("failed " + std::string(name_of(error.code())) + " culprits=" + culprits_of(error) + " " +
      error.what());
  return 1;
}
