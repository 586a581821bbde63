// Soak `spawn`: a program spawns three ranks by fork, by exec and as threads, and one of them ends
// in some way: it throws, exits, is killed, hangs (also deaf to SIGTERM); of threads one throws,
// returns a code or hangs in a call. Every rank of a process has a helper in a session of its own.
// Shown each time: the error is one, and names rank, code and exit code; nothing is left. Or the
// spawner is killed at a random moment, while its ranks start or run: nothing is left.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "e2e/launched_job.h"
#include "net/poller.h"
#include "net/process_tree.h"
#include "soak/soak.h"
#include "spawn/ways.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Way {
  std::string word;
  std::string code;    ///< of the error
  int exit_code = -1;  ///< of the culprit; -1: any
  std::string text;    ///< a part of what it says
};

const std::vector<Way>& ways_of_processes() {
  static const std::vector<Way> ways = {
      {"throws", "kPeerLost", 1, "threw: out of luck"},
      {"error", "kUnsupported", 1, "failed: no such thing"},
      {"exits", "kPeerLost", 5, "ended with exit code 5"},
      {"killed", "kPeerLost", 137, "was killed by SIGKILL"},
      {"hangs", "kTimeout", 143, "was ended (killed by SIGTERM)"},
      {"stubborn", "kTimeout", 137, "was ended (killed by SIGKILL)"},
  };
  return ways;
}

const std::vector<Way>& ways_of_threads() {
  static const std::vector<Way> ways = {
      {"throws", "kPeerLost", 1, "threw: out of luck"},
      {"error", "kUnsupported", 1, "failed: no such thing"},
      {"returns", "kPeerLost", 7, "returned 7"},
      {"waits", "kTimeout", -1, "last completed all_reduce #1"},
  };
  return ways;
}

/// How long until nothing is left below us.
std::chrono::nanoseconds time_until_gone(std::chrono::nanoseconds limit) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const auto took = Clock::now() - begin;
    if (net::descendants_of(::getpid()).empty() || took > limit) return took;
    Deadline soon = Deadline::after(1ms);
    net::pause(1ms, soon);
  }
}

class Soak {
 public:
  explicit Soak(const Words& words) : words_(words), random_(words.seed) {}
  int run();

 private:
  void end_in(const std::string& start, const Way& way);
  void kill_spawner(const std::string& start);
  void expect_nothing(const std::string& what, std::vector<std::string>& wrong);
  void count(const std::string& series, const e2e::LaunchedJob& job,
             const std::vector<std::string>& wrong);
  std::string series_json() const;

  const Words words_;
  std::mt19937_64 random_;
  int wrong_ = 0;
  std::map<std::string, std::pair<int, int>> series_;
  Figures told_, gone_;
};

void Soak::expect_nothing(const std::string& what, std::vector<std::string>& wrong) {
  const std::chrono::nanoseconds limit(static_cast<std::int64_t>(1e9 * words_.scale));
  const auto took = time_until_gone(limit);
  gone_.samples.push_back(std::chrono::duration<double, std::milli>(took).count());
  if (took > limit) wrong.push_back("something is left after " + what);
}

void Soak::count(const std::string& series, const e2e::LaunchedJob& job,
                 const std::vector<std::string>& wrong) {
  auto& [rounds, failed] = series_[series];
  ++rounds;
  if (wrong.empty()) return;
  ++failed;
  ++wrong_;
  fmt::print(stderr, "spawn: {}: {} (seed {})\n{}{}", series, fmt::join(wrong, "; "), words_.seed,
             job.out(), job.err());
  net::kill_everything_below();
}

void Soak::end_in(const std::string& start, const Way& way) {
  const bool hangs = way.code == "kTimeout";
  const bool are_processes = start != "thread";
  const Clock::time_point begin = Clock::now();
  e2e::LaunchedJob job(e2e::LaunchedJob::Command{
      {TUTTI_SOAK_RANK, start, way.word + (are_processes ? "+helpers" : ""),
       hangs ? std::to_string(int(300 * words_.scale)) : "30000"}});
  const int code = job.wait_exit(60s);
  if (!hangs) {
    told_.samples.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::vector<std::string> wrong;
  if (code != 0) wrong.push_back(fmt::format("the spawner ended with {}", code));
  const std::string begin_of_line = fmt::format("{} culprits {} exits ", way.code, ways::kCulprit);
  if (!job.out().starts_with(begin_of_line)) wrong.push_back("another error");
  if (job.out().find(way.text) == std::string::npos) wrong.push_back("another text");
  int exits[ways::kRanks] = {-9, -9, -9};
  const std::string after = job.out().substr(std::min(job.out().size(), begin_of_line.size()));
  std::sscanf(after.c_str(), "%d %d %d", &exits[0], &exits[1], &exits[2]);
  if (std::any_of(std::begin(exits), std::end(exits), [](int exit) { return exit < 0; })) {
    wrong.push_back("a rank has no exit code");
  }
  if (way.exit_code >= 0 && exits[ways::kCulprit] != way.exit_code) {
    wrong.push_back("another exit code");
  }
  expect_nothing("the spawner had ended", wrong);
  count(start + " " + way.word, job, wrong);
}

void Soak::kill_spawner(const std::string& start) {
  e2e::LaunchedJob job(
      e2e::LaunchedJob::Command{{TUTTI_SOAK_RANK, start, "hangs+helpers", "60000"}});
  const auto moment = std::chrono::microseconds(random_() % 40'000);
  Deadline until_the_moment = Deadline::after(moment);
  net::pause(moment, until_the_moment);
  job.signal(SIGKILL);
  job.wait_exit(20s);
  std::vector<std::string> wrong;
  expect_nothing(fmt::format("the spawner was killed at {} us", moment.count()), wrong);
  count(start + " spawner killed", job, wrong);
}

/// {"fork throws": {"rounds": 100, "wrong": 0}, ...}
std::string Soak::series_json() const {
  std::string text;
  for (const auto& [name, counts] : series_) {
    text += fmt::format(R"({}"{}": {{"rounds": {}, "wrong": {}}})", text.empty() ? "" : ", ", name,
                        counts.first, counts.second);
  }
  return "{" + text + "}";
}

int Soak::run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  fmt::print(stderr, "spawn: seed {}\n", words_.seed);
  Progress progress("spawn", words_.rounds);
  for (int round = 0; round < words_.rounds; ++round) {
    for (const std::string start : {"fork", "exec"}) {
      for (const Way& way : ways_of_processes()) end_in(start, way);
      kill_spawner(start);
    }
    for (const Way& way : ways_of_threads()) end_in("thread", way);
    progress.advance("each way", wrong_);
  }
  fmt::print("spawn        {} rounds of {} ways: told after {}; gone after {}; {} wrong\n",
             words_.rounds, series_.size(), told_.summary(), gone_.summary(), wrong_);
  write_evidence(words_, "spawn",
                 {{"ways", series_json()},
                  {"told_p50_ms", fmt::format("{:.2f}", told_.percentile(0.5))},
                  {"told_max_ms", fmt::format("{:.2f}", told_.percentile(1))},
                  {"gone_max_ms", fmt::format("{:.2f}", gone_.percentile(1))},
                  {"wrong", std::to_string(wrong_)}});
  return wrong_ == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) {
  return tutti::soak::Soak(tutti::soak::read_words(argc, argv)).run();
}
