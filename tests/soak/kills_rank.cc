#include "soak/kills_rank.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tutti/init.h"

namespace tutti::soak {
namespace {

constexpr int kWarmUp = 20;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();  // CLOCK_MONOTONIC
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace

int run_until_a_loss(int argc, char** argv,
                     const std::function<Step(ProcessGroup&, const std::string&)>& make_step) {
  if (argc != 5) return 99;
  ProcessGroup world = init_process_group();
  const auto told = std::make_shared<std::promise<std::int64_t>>();
  std::future<std::int64_t> known_at = told->get_future();
  world.on_failure([told](const Error&) { told->set_value(now_ns()); });
  const bool is_victim = world.rank() == std::atoi(argv[2]);
  std::vector<char> resident;
  if (is_victim) resident.assign(std::strtoull(argv[3], nullptr, 10) << 20, 'r');
  if (is_victim && std::strcmp(argv[4], "helper") == 0 && ::fork() == 0) {
    for (;;) ::pause();
  }
  try {
    const Step step = make_step(world, argv[1]);
    for (int done = 0;; ++done) {
      step();
      if (done == kWarmUp) say("ready " + std::to_string(::getpid()));
    }
  } catch (const Error& error) {
    const std::int64_t thrown_at = now_ns();
    // The caller may hear of it before the control thread has run the callbacks.
    const bool known = known_at.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    std::string culprits;
    for (const int culprit : error.context().culprits) {
      culprits += (culprits.empty() ? "" : ",") + std::to_string(culprit);
    }
    say("lost code=" + std::string(name_of(error.code())) + " culprits=" + culprits + " known=" +
        std::to_string(known ? known_at.get() : 0) + " thrown=" + std::to_string(thrown_at));
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace tutti::soak
