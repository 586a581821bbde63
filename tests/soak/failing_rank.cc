// A rank of `./dev soak failing-jobs`: it works, until one of them fails at a moment and in a way.
//
//     failing_rank VICTIM WAY MOMENT OTHERS
//
// WAY: exit, return, abort, segv, kill, throw, hang. MOMENT: start, init (while others are in it),
// loop, group (while others make one), end (after the last goodbye). OTHERS: what a rank does when
// it is told: return (7), throw, well (0), deaf (sleeps until it is ended).
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

using namespace std::chrono_literals;

struct Part {
  int rank = 0, victim = 0;
  std::string way, moment, others;
};

[[noreturn]] void sleep_on() {
  for (;;) std::this_thread::sleep_for(1h);
}

/// Ends the process, or never returns, or returns from main with what it gives.
int fail(const std::string& way) {
  if (way == "exit") ::_exit(3);
  if (way == "abort") std::abort();
  if (way == "segv") {
    std::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
  }
  if (way == "kill") ::kill(::getpid(), SIGKILL);
  if (way == "throw") throw std::runtime_error("the data are gone");
  if (way == "hang") sleep_on();
  return 5;
}

int work(const Part& part) {
  const auto fails_at = [&](const char* moment) {
    return part.rank == part.victim && part.moment == moment;
  };
  if (fails_at("start")) return fail(part.way);
  if (part.rank == part.victim && part.moment == "init") std::this_thread::sleep_for(200ms);
  if (fails_at("init")) return fail(part.way);
  auto world = tutti::init_process_group();
  std::vector<float> data(10'000, 1.0f);
  for (int step = 0; step < 50; ++step) {
    if (step == 25 && fails_at("loop")) return fail(part.way);
    world.all_reduce(data);
  }
  if (fails_at("group")) return fail(part.way);
  std::vector<int> all(static_cast<std::size_t>(world.world_size()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
  auto group = world.new_group(all);
  group.barrier();
  group.close();
  world.close();
  if (fails_at("end")) return fail(part.way);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const rank = std::getenv("RANK");
  if (argc != 5 || rank == nullptr) return 2;
  const Part part{std::atoi(rank), std::atoi(argv[1]), argv[2], argv[3], argv[4]};
  try {
    return work(part);
  } catch (const tutti::Error& error) {
    std::printf("told %s\n", std::string(name_of(error.code())).c_str());
    std::fflush(stdout);
    if (part.others == "throw") throw;
    if (part.others == "well") return 0;
    if (part.others == "deaf") {
      std::signal(SIGTERM, SIG_IGN);
      sleep_on();
    }
    return 7;
  }
}
