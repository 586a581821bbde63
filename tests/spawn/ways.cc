#include "spawn/ways.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tutti/tutti.h"

namespace tutti::ways {
namespace {

using namespace std::chrono_literals;

void hang() {
  for (;;) ::pause();
}

/// It outlives its parent if nobody ends it.
void start_helper() {
  if (::fork() != 0) return;
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  hang();
}

int end_in(const std::string& way) {
  if (way == "error") throw Error(ErrorCode::kUnsupported, "no such thing", {.culprits = {2}});
  if (way == "throws") throw std::runtime_error("out of luck");
  if (way == "throws odd") throw 42;
  if (way == "unwinds") ::pthread_exit(nullptr);
  if (way == "returns") return 7;
  if (way == "leaves") return 0;
  if (way == "exits") ::_exit(5);
  if (way == "killed") ::raise(SIGKILL);
  if (way == "aborts") std::abort();
  if (way == "hangs") hang();
  if (way == "stubborn") {
    ::signal(SIGTERM, SIG_IGN);
    hang();
  }
  if (way == "waits") init_process_group({.name = "nobody else comes"});
  if (way == "spawns") spawn(2, [](int) {}).join();
  throw std::invalid_argument("no such way: " + way);
}

int be_rank(int rank, const std::string& way) {
  const bool is_culprit = rank == kCulprit;
  if (way == "before" && is_culprit) ::_exit(6);
  if (way == "absent" && is_culprit) return 0;
  auto world = init_process_group();
  if (world.rank() != rank || world.world_size() != kRanks || world.local_rank() != rank) {
    throw std::logic_error("it is another rank");
  }
  float x = static_cast<float>(rank);
  world.all_reduce(x);
  if (x != 3) throw std::logic_error("another sum");
  if (way == "well") return 0;
  if (way == "exits well") {
    world.close();
    ::_exit(0);
  }
  if (is_culprit && way == "untold") {
    world.abort("on purpose");
    return 0;
  }
  if (is_culprit) return end_in(way);
  if (way == "untold") {
    std::this_thread::sleep_for(200ms);
    return 0;
  }
  for (;;) world.all_reduce(x);
}

}  // namespace

Result attempt(Start start, const std::string& way, std::chrono::nanoseconds timeout,
               std::chrono::nanoseconds grace) {
  const std::size_t plus = way.find("+helpers");
  const std::string name = way.substr(0, plus);
  const bool has_helpers = plus != std::string::npos;
  Spawned ranks = spawn(kRanks,
                        [name, has_helpers](int rank) {
                          if (has_helpers) start_helper();
                          return be_rank(rank, name);
                        },
                        {.start = start, .grace = grace});
  Result result;
  try {
    ranks.join(timeout);
    result.is_well = true;
  } catch (const Error& error) {
    result.code = error.code();
    result.text = error.what();
    result.culprits = error.context().culprits;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    result.exit_codes.push_back(ranks.exit_code(rank).value_or(-2));
  }
  return result;
}

std::string line_of(const Result& result) {
  const std::string exits = fmt::format("exits {}", fmt::join(result.exit_codes, " "));
  if (result.is_well) return "well " + exits;
  return fmt::format("{} culprits {} {}: {}", name_of(result.code), fmt::join(result.culprits, " "),
                     exits, result.text);
}

}  // namespace tutti::ways
