// Soak `endings`: jobs end in the ways of tests/e2e/endings.h, again and again.
//
// Shown: where all leave in order, in whatever way and however long one of them is stopped
// meanwhile, nobody is told of anything and the code is 0; where a group failed and some program
// was not told, the job is FAILED with the right root cause although every rank returned 0; where
// all were told and went on, the code is 0.
#include "e2e/endings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "e2e/launched_job.h"
#include "soak/soak.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;
using e2e::Ending;

/// Jobs at a time: most of them wait for something.
constexpr int kAtOnce = 3;

struct Job {
  Ending row;
  int stopped_ms = 0;
};

int between(std::mt19937_64& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

std::vector<Job> jobs_of(Ending::Kind kind, int count, std::mt19937_64& random) {
  std::vector<Ending> rows = e2e::endings();
  std::erase_if(rows, [&](const Ending& row) { return row.kind != kind; });
  std::vector<Job> jobs;
  for (int i = 0; i < count; ++i) {  // every way as often as any other
    const Ending& row = rows[static_cast<std::size_t>(i) % rows.size()];
    const bool waits_long = row.way == "stopped in close";  // destructors give up after 2 s
    jobs.push_back({row, between(random, 300, waits_long ? 3000 : 700)});
  }
  return jobs;
}

std::vector<std::string> judge(const Ending& row, int code, const e2e::LaunchedJob& job) {
  std::vector<std::string> wrong;
  if (code != row.code) wrong.push_back(fmt::format("exit code {} instead of {}", code, row.code));
  std::vector<std::string> told = e2e::lines_of(job.out());
  std::erase_if(told, [](const auto& line) { return line.find("told by ") == line.npos; });
  std::sort(told.begin(), told.end());
  if (told != row.told) wrong.push_back(fmt::format("told: {}", fmt::join(told, "; ")));
  const std::string mark = "ROOT CAUSE: ";
  const std::size_t at = job.err().find(mark);
  const bool right = row.root.empty()
                         ? at == std::string::npos
                         : at != std::string::npos &&
                               job.err().compare(at + mark.size(), row.root.size(), row.root) == 0;
  if (!right) wrong.push_back("another root cause");
  if (row.kind == Ending::Kind::orderly && job.err().find("] tutti: ") != std::string::npos)
    wrong.push_back("a rank wrote an error line");
  return wrong;
}

class Soak {
 public:
  explicit Soak(std::vector<Job> jobs)
      : jobs_(std::move(jobs)), progress_("endings", static_cast<int>(jobs_.size())) {}

  /// How many jobs were wrong.
  int run() {
    std::vector<std::thread> workers;
    for (int i = 0; i < kAtOnce; ++i) workers.emplace_back([this] { work(); });
    for (std::thread& worker : workers) worker.join();
    return wrong_;
  }
  /// {"close": {"jobs": 25, "wrong": 0}, ...}
  std::string ways_json() const {
    std::string text;
    for (const auto& [way, counts] : ways_)
      text += fmt::format(R"({}"{}": {{"jobs": {}, "wrong": {}}})", text.empty() ? "" : ", ", way,
                          counts.first, counts.second);
    return "{" + text + "}";
  }

 private:
  void work() {
    for (;;) {
      const Job* next = nullptr;
      {
        const std::lock_guard lock(mutex_);
        if (begun_ == jobs_.size()) return;
        next = &jobs_[begun_++];
      }
      e2e::LaunchedJob job(
          {"run", "-n", "3", TUTTI_SOAK_RANK, next->row.way, std::to_string(next->stopped_ms)});
      const int code = job.wait_exit(60s);
      const std::vector<std::string> wrong = judge(next->row, code, job);
      const std::lock_guard lock(mutex_);
      auto& [jobs, failed] = ways_[next->row.way];
      ++jobs;
      if (!wrong.empty()) {
        ++failed;
        ++wrong_;
        fmt::print(stderr, "endings: '{}' ({}, stopped for {} ms): {}\n{}{}", next->row.way,
                   next->row.what, next->stopped_ms, fmt::join(wrong, "; "), job.out(), job.err());
      }
      progress_.advance(next->row.way, wrong_);
    }
  }

  const std::vector<Job> jobs_;
  std::mutex mutex_;
  std::size_t begun_ = 0;                            // mutex_
  int wrong_ = 0;                                    // mutex_
  std::map<std::string, std::pair<int, int>> ways_;  // mutex_
  Progress progress_;                                // mutex_
};

int soak(const Words& words) {
  fmt::print(stderr, "endings: seed {}\n", words.seed);
  std::mt19937_64 random(words.seed);
  std::vector<Job> jobs;
  for (const auto& [kind, count] : {std::pair{Ending::Kind::orderly, words.rounds},
                                    {Ending::Kind::untold, words.rounds},
                                    {Ending::Kind::told, words.rounds / 2}}) {
    for (Job& job : jobs_of(kind, count, random)) jobs.push_back(std::move(job));
  }
  std::shuffle(jobs.begin(), jobs.end(), random);
  const std::size_t count = jobs.size();
  Soak run(std::move(jobs));
  const int wrong = run.run();
  fmt::print("endings      {} orderly, {} untold, {} told: {} of {} jobs wrong\n", words.rounds,
             words.rounds, words.rounds / 2, wrong, count);
  write_evidence(words, "endings",
                 {{"orderly", std::to_string(words.rounds)},
                  {"untold", std::to_string(words.rounds)},
                  {"told", std::to_string(words.rounds / 2)},
                  {"ways", run.ways_json()},
                  {"wrong", std::to_string(wrong)}});
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) { return tutti::soak::soak(tutti::soak::read_words(argc, argv)); }
