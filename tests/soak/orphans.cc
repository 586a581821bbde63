// Soak `orphans`: launcher, guard, keeper or a rank is killed with SIGKILL at a random moment,
// while the job starts or runs, with helpers in sessions of their own: a second later no process of
// it is left, and a sibling job has lost none. One job in three has been started again before, and
// one in three keeps what its ranks print in files.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "e2e/launched_job.h"
#include "net/poller.h"
#include "net/process_tree.h"
#include "soak/soak.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;

/// Processes below us that are not the sibling's; those that have ended are reaped.
int strangers(const e2e::LaunchedJob& sibling, int siblings) {
  for (const pid_t pid : net::descendants_of(::getpid())) {
    if (pid != sibling.pid()) ::waitpid(pid, nullptr, WNOHANG);
  }
  return static_cast<int>(net::descendants_of(::getpid()).size()) - siblings;
}

/// Kills a rank once all are up; true when tutti run says that it starts them again.
bool fails_once(e2e::LaunchedJob& job) {
  if (!job.wait_for("ready", 3 * kRanks)) return false;
  const std::vector<pid_t> below = net::descendants_of(job.pid());  // guard, keeper, a rank
  if (below.size() < 3) return false;
  net::signal_descendant(below[2], ::getpid(), SIGKILL);
  return job.wait_for_error("; restart 1 of 1");
}

/// A folder that is gone in the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti_orphans_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

int soak(const Words& words) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  fmt::print(stderr, "orphans: seed {}\n", words.seed);
  std::mt19937_64 random(words.seed);
  e2e::LaunchedJob sibling({"run", "-n", "2", TUTTI_SOAK_RANK, "tree"});
  if (!sibling.wait_for("ready", 6)) return 1;
  const int siblings = static_cast<int>(net::descendants_of(::getpid()).size());
  Progress progress("orphans", words.rounds);
  const Folder logs;
  Figures gone;
  int failed = 0;
  for (int i = 0; i < words.rounds; ++i) {
    const bool while_starting = random() % 2 == 0;
    const auto moment = std::chrono::microseconds(random() % 20'000);
    const auto victim = random() % 4;  // launcher, guard, keeper, rank 0
    const bool restarts = random() % 3 == 0, keeps = random() % 3 == 0;
    std::vector<std::string> command = {
        "run", "-n", std::to_string(kRanks), "--failure-grace", "0", "--grace", "100ms"};
    if (restarts) command.insert(command.end(), {"--max-restarts", "1"});
    if (keeps) command.insert(command.end(), {"--log-dir", logs.path()});
    command.insert(command.end(), {TUTTI_SOAK_RANK, "tree"});
    e2e::LaunchedJob job(command);
    if (restarts && !fails_once(job)) {
      fmt::print(stderr, "orphans: round {}: was not started again\n{}{}", i, job.out(), job.err());
      return 1;
    }
    if (!while_starting) job.wait_for("ready", (restarts ? 2 : 1) * 3 * kRanks);
    Deadline until_the_moment = Deadline::after(moment);
    net::pause(moment, until_the_moment);
    pid_t pid = job.pid();
    const std::vector<pid_t> below = net::descendants_of(job.pid());
    if (victim > 0 && below.size() >= victim) pid = below[victim - 1];
    net::signal_descendant(pid, ::getpid(), SIGKILL);
    const Clock::time_point killed = Clock::now();
    job.wait_exit(20s);
    // A rank that dies gives its siblings the graces above; everybody else takes all along at once.
    const auto limit = std::chrono::duration<double>(words.scale * (victim == 3 ? 1.2 : 1.0));
    int left = 0;
    while ((left = strangers(sibling, siblings)) > 0 && Clock::now() - killed < limit) {
      Deadline soon = Deadline::after(2ms);
      net::pause(2ms, soon);
    }
    gone.samples.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - killed).count());
    const bool late = gone.samples.back() > limit.count() * 1000;
    if (late) {
      ++failed;
      fmt::print(stderr,
                 "orphans: round {}: gone only after {:.0f} ms (killed who {}, {}), seed {}\n{}{}",
                 i, gone.samples.back(), victim, while_starting ? "starting" : "running",
                 words.seed, job.out(), job.err());
    }
    if (left != 0) {
      ++failed;
      fmt::print(stderr, "orphans: round {}: {} processes {} (killed pid {}, who {})\n{}{}", i,
                 std::abs(left), left > 0 ? "left" : "of the sibling are gone", pid, victim,
                 job.out(), job.err());
      break;
    }
    progress.advance("launcher, guard, keeper, rank", failed);
  }
  sibling.signal(SIGTERM);
  const int code = sibling.wait_exit(20s);
  if (code != 143) fmt::print(stderr, "orphans: the sibling ended with {}\n", code);
  fmt::print("orphans: {} rounds, gone after {}; {} wrong\n", words.rounds, gone.summary(), failed);
  write_evidence(words, "orphans",
                 {{"gone_p99_ms", fmt::format("{:.2f}", gone.percentile(0.99))},
                  {"gone_max_ms", fmt::format("{:.2f}", gone.percentile(1))},
                  {"histogram", gone.histogram_json()},
                  {"wrong_rounds", std::to_string(failed)}});
  return failed == 0 && code == 143 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) { return tutti::soak::soak(tutti::soak::read_words(argc, argv)); }
