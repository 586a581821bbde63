// Soak `flood`: neighbours connect without end to the socket where a job's ranks meet.
//
// They close at once, send garbage or an oversized frame, hold their connections or drip bytes into
// them; one process or eight. Shown, for strangers (another user; needs root): jobs started one
// after another, by `tutti run` and by hand, all start, each within 5 s or three times what it
// takes beside as many busy loops; a job that makes groups makes at least half as many as beside as
// many busy loops; the process that serves it takes at most 32 MiB more memory. For neighbours of
// our own user: all jobs start.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "e2e/launched_job.h"
#include "net/poller.h"
#include "soak/neighbours.h"
#include "soak/soak.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Orders = Page::Orders;

constexpr int kRanks = 3;
constexpr std::array kCounts{1, 8};
constexpr double kLongestStart = 5;     // s
constexpr double kSlowestStart = 3;     // times a start beside busy loops
constexpr double kSlowestGroups = 0.5;  // of the groups beside busy loops
constexpr double kMostMemory = 32;      // MiB

struct Combination {
  Harm harm;
  int count;
  bool is_other_user;
};
std::string name_of(const Combination& combination) {
  return fmt::format("{}, {} of {} user", name_of(combination.harm), combination.count,
                     combination.is_other_user ? "another" : "our");
}

class Flood {
 public:
  explicit Flood(const Words& words) : words_(words), progress_("flood", count_rounds()) {}
  int run();

 private:
  bool wants(const std::string& series) const {
    return words_.only.empty() || words_.only == series;
  }
  int count_rounds() const;
  void start_jobs(const Combination& combination);
  /// Starts a job and lets it end; how long its last rank took to join, if all went well.
  std::optional<double> start_job(Orders orders, bool by_hand, const std::string& what);
  void run_job(const Combination& combination);
  /// Groups per second while the neighbours follow `orders`.
  double measure(Orders orders);
  void wrong(const std::string& what, const std::string& printed = {});
  e2e::LaunchedJob make_job(bool by_hand, const char* work);

  const Words& words_;
  SharedPage page_;
  Progress progress_;
  int failed_ = 0, jobs_ = 0;
  double longest_start_ = 0, slowest_groups_ = 1e300, most_memory_ = 0;
  std::string starts_json_, groups_json_;
};

int Flood::count_rounds() const {
  const int combinations = static_cast<int>(kHarms.size() * kCounts.size());
  return combinations * ((wants("start") ? words_.rounds : 0) + (wants("work") ? 1 : 0) +
                         (wants("own") ? words_.rounds : 0));
}

void Flood::wrong(const std::string& what, const std::string& printed) {
  ++failed_;
  fmt::print(stderr, "flood: {}\n{}", what, printed);
}

void pause_for(std::chrono::nanoseconds duration) {
  Deadline end = Deadline::after(duration);
  net::pause(duration, end);
}

e2e::LaunchedJob Flood::make_job(bool by_hand, const char* work) {
  constexpr const char* kByHand =
      "export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1; shift;"
      "RANK=0 \"$@\" & a=$!; RANK=1 \"$@\" & b=$!; RANK=2 \"$@\" & c=$!;"
      "wait $a && wait $b && wait $c";
  const int port = 20'000 + (static_cast<int>(::getpid()) * 31 + jobs_++) % 40'000;
  e2e::LaunchedJob::Command command;
  if (by_hand) {
    command.words = {"sh", "-c", kByHand, "sh", std::to_string(port)};
  } else {
    command.words = {TUTTI_COMMAND, "run", "-n", std::to_string(kRanks)};
  }
  command.words.insert(command.words.end(), {TUTTI_SOAK_RANK, page_.path(), work});
  return e2e::LaunchedJob(command);
}

std::vector<double> starts_of(const e2e::LaunchedJob& job) {
  static const std::regex kStarted("started ([0-9.]+)");
  std::vector<double> seconds;
  const std::string& text = job.out();
  for (std::sregex_iterator match(text.begin(), text.end(), kStarted), end; match != end; ++match) {
    seconds.push_back(std::stod((*match)[1]));
  }
  return seconds;
}

std::optional<double> Flood::start_job(Orders orders, bool by_hand, const std::string& what) {
  page_->orders.store(orders);
  e2e::LaunchedJob job = make_job(by_hand, "start");
  const int code = job.wait_exit(90s);
  const std::vector<double> seconds = starts_of(job);
  if (code == 0 && seconds.size() == kRanks)
    return *std::max_element(seconds.begin(), seconds.end());
  wrong(fmt::format("{}, {}: {} of {} ranks started, exit code {}", what,
                    by_hand ? "by hand" : "tutti run", seconds.size(), kRanks, code),
        job.out() + job.err());
  return std::nullopt;
}

void Flood::start_jobs(const Combination& combination) {
  const Neighbours neighbours(page_, combination.harm, combination.count,
                              combination.is_other_user);
  Figures beside_loops, flooded;
  for (int i = 0; i < words_.rounds; ++i) {
    const bool by_hand = (i + combination.count) % 2 == 0;
    if (i % 5 == 0 && combination.is_other_user) {  // nothing is promised of the others' time
      if (const auto start = start_job(Orders::spin, by_hand, "beside busy loops")) {
        beside_loops.samples.push_back(1000 * *start);
      }
    }
    if (const auto start = start_job(Orders::flood, by_hand, name_of(combination))) {
      flooded.samples.push_back(1000 * *start);
    }
    progress_.advance(name_of(combination), failed_);
  }
  const double longest = flooded.percentile(1);
  const double limit =
      words_.scale * std::max(1000 * kLongestStart, kSlowestStart * beside_loops.percentile(0.5));
  if (combination.is_other_user) {
    longest_start_ = std::max(longest_start_, longest);
    if (longest > limit) {
      wrong(fmt::format("{}: a start of {:.0f} ms, {:.0f} ms promised", name_of(combination),
                        longest, limit));
    }
  }
  fmt::print("{:<28} {:>3} of {} jobs started: p50 {:.0f} max {:.0f} ms\n", name_of(combination),
             flooded.samples.size(), words_.rounds, flooded.percentile(0.5), longest);
  starts_json_ +=
      fmt::format(R"({}"{}": {{"jobs": {}, "started": {}, "p50_ms": {:.1f}, "max_ms": {:.1f})",
                  starts_json_.empty() ? "" : ", ", name_of(combination), words_.rounds,
                  flooded.samples.size(), flooded.percentile(0.5), longest);
  if (combination.is_other_user) {
    starts_json_ +=
        fmt::format(R"(, "beside_busy_loops_p50_ms": {:.1f})", beside_loops.percentile(0.5));
  }
  starts_json_ += "}";
}

double Flood::measure(Orders orders) {
  page_->orders.store(orders);
  pause_for(100ms);  // until the flood has risen
  const std::uint64_t before = page_->groups.load();
  const Clock::time_point begin = Clock::now();
  pause_for(std::min<std::chrono::nanoseconds>(2s, words_.rounds * 250ms));
  while (page_->groups.load() < before + 3 && Clock::now() - begin < 20s) pause_for(10ms);
  const std::chrono::duration<double> took = Clock::now() - begin;
  return static_cast<double>(page_->groups.load() - before) / took.count();
}

/// The most memory that a process has had, in MiB.
double peak_memory(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    double kib = 0;
    status >> kib;
    return kib / 1024;
  }
  return 0;
}

void Flood::run_job(const Combination& combination) {
  const Neighbours neighbours(page_, combination.harm, combination.count,
                              combination.is_other_user);
  page_->orders.store(Orders::rest);
  page_->is_job_to_end.store(false);
  page_->groups.store(0);
  e2e::LaunchedJob job = make_job(false, "work");
  if (!job.wait_for("started ", kRanks, 60s)) {
    return wrong("the job that is to work did not start", job.out() + job.err());
  }
  measure(Orders::rest);
  const double memory_before = peak_memory(job.pid());
  double busy = 0, flooded = 0;
  const int pairs = words_.rounds >= 10 ? 3 : 1;
  for (int i = 0; i < pairs; ++i) {
    busy += measure(Orders::spin) / pairs;
    flooded += measure(Orders::flood) / pairs;
  }
  const double memory = peak_memory(job.pid()) - memory_before;
  page_->orders.store(Orders::rest);
  page_->is_job_to_end.store(true);
  if (const int code = job.wait_exit(60s); code != 0) {
    wrong(fmt::format("{}: the job ended with {}", name_of(combination), code),
          job.out() + job.err());
  }
  slowest_groups_ = std::min(slowest_groups_, flooded / busy);
  most_memory_ = std::max(most_memory_, memory);
  if (flooded * words_.scale < kSlowestGroups * busy || memory > kMostMemory * words_.scale) {
    wrong(fmt::format("{}: {:.2f} of the groups, {:+.1f} MiB", name_of(combination), flooded / busy,
                      memory));
  }
  fmt::print("{:<28} {:.0f} groups/s, {:.0f} beside busy loops: {:.2f}; {:+.1f} MiB\n",
             name_of(combination), flooded, busy, flooded / busy, memory);
  groups_json_ += fmt::format(
      R"({}"{}": {{"groups_per_s": {:.1f}, "beside_busy_loops": {:.1f}, "ratio": {:.3f}, )"
      R"("memory_mib": {:.2f}}})",
      groups_json_.empty() ? "" : ", ", name_of(combination), flooded, busy, flooded / busy,
      memory);
  progress_.advance("work, " + name_of(combination), failed_);
}

int Flood::run() {
  const bool is_root = ::geteuid() == 0;
  if (!is_root) fmt::print(stderr, "flood: not root: only neighbours of our own user\n");
  for (const Harm harm : kHarms) {
    for (const int count : kCounts) {
      if (wants("start") && is_root) start_jobs({harm, count, true});
      if (wants("work") && is_root) run_job({harm, count, true});
      if (wants("own")) start_jobs({harm, count, false});
    }
  }
  if (longest_start_ > 0) fmt::print("flood: longest start {:.0f} ms\n", longest_start_);
  if (slowest_groups_ < 1e300) {
    fmt::print("flood: slowest groups {:.2f} of those beside busy loops, most memory {:+.1f} MiB\n",
               slowest_groups_, most_memory_);
  }
  fmt::print("flood: {} wrong\n", failed_);
  write_evidence(words_, "flood",
                 {{"starts", "{" + starts_json_ + "}"},
                  {"work", "{" + groups_json_ + "}"},
                  {"wrong", std::to_string(failed_)}});
  return failed_ == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) {
  const tutti::soak::Words words = tutti::soak::read_words(argc, argv);
  ::setenv("TUTTI_TIMEOUT", "60s", 1);
  return tutti::soak::Flood(words).run();
}
