// A rank of the soak `init`: begins a world, makes two groups and ends all in order. Says what it
// fails with, and when; a tracer (kill_at) hears of each phase by a system call that does nothing.
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "soak/kill_at.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

const char* phase = "start";

void enter(tutti::soak::Phase number, const char* name) {
  phase = name;
  ::syscall(SYS_prctl, tutti::soak::kPhaseMark, static_cast<int>(number), 0, 0, 0);
}

long long now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

/// One write, so that lines of several ranks do not mix: "RANK 1 <now> <phase> <code> <culprits>
/// text".
void say(const char* code, const std::string& culprits, std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  const char* const rank = std::getenv("RANK");
  const std::string line = "RANK " + std::string(rank != nullptr ? rank : "?") + " " +
                           std::to_string(now()) + " " + phase + " " + code + " " + culprits + " " +
                           text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::_Exit(9);
}

void live() {
  using soak::Phase;
  enter(Phase::init, "init");
  auto world = init_process_group();
  std::vector<int> all(static_cast<std::size_t>(world.world_size()));
  std::iota(all.begin(), all.end(), 0);
  enter(Phase::new_group, "new_group");
  auto group = world.new_group(all);
  enter(Phase::split, "split");
  auto half = world.split({.color = 0, .key = world.rank()});
  enter(Phase::close, "close");
  half.close();
  group.close();
  world.close();
  enter(Phase::end, "end");
}

}  // namespace

int main() {
  try {
    live();
    say("ok", "-", "");
  } catch (const Error& error) {
    std::string culprits;
    for (const int rank : error.context().culprits)
      culprits += (culprits.empty() ? "" : ",") + std::to_string(rank);
    say(std::string(name_of(error.code())).c_str(), culprits.empty() ? "-" : culprits,
        error.what());
    return 1;
  } catch (const std::exception& error) {
    say("std", "-", error.what());
    return 2;
  }
  return 0;
}
