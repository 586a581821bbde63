#include "soak/kills_rank.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <sstream>

#include "tutti/init.h"
#include "tutti/store.h"

namespace tutti::soak {
namespace {

constexpr int kWarmUp = 20;

std::vector<int> numbers_in(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) numbers.push_back(std::stoi(word));
  return numbers;
}

InitOptions init_options() {
  const char* file = std::getenv("SOAK_STORE");
  if (!file) return {};
  return {.rank = std::stoi(std::getenv("RANK")),
          .world_size = std::stoi(std::getenv("WORLD_SIZE")),
          .store = make_file_store(file)};
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();  // CLOCK_MONOTONIC
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

struct Loss::Told {
  std::promise<std::int64_t> at;
  std::shared_future<std::int64_t> known_at = at.get_future();
};

Loss::Loss(ProcessGroup& group) : told_(std::make_shared<Told>()) {
  group.on_failure([told = told_](const Error&) { told->at.set_value(now_ns()); });
}

std::string Loss::describe(const Error& error, const std::vector<int>& names) const {
  const std::int64_t thrown_at = now_ns();
  // The caller may hear of it before the control thread has run the callbacks.
  const bool known = told_->known_at.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  std::string culprits;
  for (const int culprit : error.context().culprits) {
    const int rank = names.empty() ? culprit : names.at(static_cast<std::size_t>(culprit));
    culprits += (culprits.empty() ? "" : ",") + std::to_string(rank);
  }
  return "code=" + std::string(name_of(error.code())) + " culprits=" + culprits +
         " known=" + std::to_string(known ? told_->known_at.get() : 0) +
         " thrown=" + std::to_string(thrown_at);
}

int run_until_a_loss(int argc, char** argv, const Workload& workload) {
  if (argc != 5) return 99;
  ProcessGroup world = init_process_group(init_options());
  const Loss loss(world);
  const std::vector<int> victims = numbers_in(argv[2]);
  const bool is_victim = world.rank() == victims.at(0);
  std::vector<char> resident;
  if (is_victim) resident.assign(std::strtoull(argv[3], nullptr, 10) << 20, 'r');
  if (is_victim && std::strcmp(argv[4], "helper") == 0 && ::fork() == 0) {
    for (;;) ::pause();
  }
  try {
    const Step step = workload.make_step(world, argv[1]);
    for (int done = 0;; ++done) {
      step();
      if (done == kWarmUp) say("ready " + std::to_string(::getpid()));
    }
  } catch (const Error& error) {
    say("lost " + loss.describe(error));
    std::fprintf(stderr, "%s\n", error.what());
  }
  if (workload.go_on) workload.go_on(world, victims);
  return 1;
}

}  // namespace tutti::soak
