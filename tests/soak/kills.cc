// Soak `kills`: one of four ranks is killed with SIGKILL at a random moment, again and again.
//
// Shown in every round: each survivor has stored the cause within the promise (P1: 99 of 100 within
// 100 ms, all within 1 s, counted from kill(2)); all name the same culprit; `tutti run` exits with
// 137; a second later nothing is left: no process (the soak is a subreaper), no socket of the
// agent, nothing new in /dev/shm or TMPDIR. In the series ddp each survivor then trains on: alone,
// and in a group of the survivors until one of these is killed, too.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "e2e/launched_job.h"
#include "net/poller.h"
#include "net/process_tree.h"
#include "soak/soak.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4;

struct Series {
  std::string name, program, workload;
  int rounds = 0;
  double resident_gib = 0;
  bool helper = false;
  bool goes_on = false;  ///< without the victim, until another is lost
};

struct Round {
  std::vector<double> known_ms;    ///< by survivor, from kill(2)
  std::vector<std::string> wrong;  ///< what the promise does not allow
  std::string printed;             ///< by a job that was wrong
};

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// Each of `survivors` ranks says `word` and that it lost `victim`, in time.
void judge_loss(const std::string& text, const std::string& word, int survivors, int victim,
                std::int64_t killed_at, Round& round) {
  const std::regex lost(R"(\[(\d+)\] )" + word +
                        R"( code=(\w+) culprits=([\d,]*) known=(\d+) thrown=(\d+))");
  int told = 0;
  for (std::sregex_iterator match(text.begin(), text.end(), lost), end; match != end; ++match) {
    if ((*match)[3] != std::to_string(victim) || (*match)[2] != "kPeerLost") {
      round.wrong.push_back(fmt::format("{}: rank {} names {} ({}) where {} was killed", word,
                                        (*match)[1].str(), (*match)[3].str(), (*match)[2].str(),
                                        victim));
    }
    const std::int64_t known_at = std::stoll((*match)[4]);
    if (known_at < killed_at) {
      round.wrong.push_back(
          fmt::format("{}: rank {} was not told by on_failure", word, (*match)[1].str()));
    }
    round.known_ms.push_back(static_cast<double>(known_at - killed_at) / 1e6);
    ++told;
  }
  if (told != survivors)
    round.wrong.push_back(fmt::format("{}: {} ranks report, {} expected", word, told, survivors));
}

/// What the survivors of the first loss do without the victim.
void judge_rest(const std::string& text, Round& round) {
  static const std::regex kDies(R"(\[(\d+)\] dies at=(\d+))");
  std::smatch dies;
  if (!std::regex_search(text, dies, kDies)) {
    round.wrong.push_back("the survivors did not train on");
    return;
  }
  for (const char* line : {"] alone", "] together 3"}) {
    std::size_t times = 0;
    for (std::size_t at = 0; (at = text.find(line, at)) != std::string::npos; ++at) ++times;
    if (times != kRanks - 1)
      round.wrong.push_back(fmt::format("{} of {} ranks say '{}'", times, kRanks - 1, line + 2));
  }
  judge_loss(text, "second", kRanks - 2, std::stoi(dies[1]), std::stoll(dies[2]), round);
}

Round run_round(const Series& series, std::mt19937_64& random, const Leftovers& leftovers) {
  Round round;
  const int victim = static_cast<int>(random() % kRanks);
  const auto moment = std::chrono::microseconds(random() % 20'000);
  const auto resident_mib = static_cast<std::uint64_t>(series.resident_gib * 1024);
  e2e::LaunchedJob job({"run", "--failure-grace", "30", "-n", std::to_string(kRanks), "sh", "-c",
                        "echo agent=$TUTTI_AGENT.; exec \"$@\"", "sh", series.program,
                        series.workload, std::to_string(victim), std::to_string(resident_mib),
                        series.helper ? "helper" : "alone"});
  if (!job.wait_for("ready ", kRanks, 60s)) {
    round.wrong.push_back("the job did not get ready: " + job.err());
    return round;
  }
  Deadline until_the_moment = Deadline::after(moment);
  net::pause(moment, until_the_moment);
  const int pid = e2e::numbers_after(job.out(), fmt::format("[{}] ready ", victim)).at(0);
  const std::int64_t killed_at = now_ns();
  ::kill(pid, SIGKILL);
  const int code = job.wait_exit(30s);
  if (code != 137) round.wrong.push_back(fmt::format("exit code {} instead of 137", code));
  judge_loss(job.out(), "lost", kRanks - 1, victim, killed_at, round);
  if (series.goes_on) judge_rest(job.out(), round);
  if (job.err().find(fmt::format("ROOT CAUSE: rank {} ", victim)) == std::string::npos) {
    round.wrong.push_back("the post-mortem names another rank");
  }
  if (!e2e::is_childless_within(1s)) round.wrong.push_back("processes are left after 1 s");
  const std::size_t agent = job.out().find("agent=") + 6;
  const std::string address = job.out().substr(agent, job.out().find('.', agent) - agent);
  for (const std::string& left : leftovers.found(address)) round.wrong.push_back("left: " + left);
  if (!round.wrong.empty()) round.printed = job.out() + job.err();
  return round;
}

int soak(const Words& words) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<Series> all = {
      {"collectives", TUTTI_SOAK_RANK, "collectives", words.rounds},
      {"training", TUTTI_SOAK_RANK, "training", words.rounds},
      {"resident", TUTTI_SOAK_RANK, "collectives", words.rounds, words.resident_gib},
      {"helper", TUTTI_SOAK_RANK, "collectives", words.rounds, 0, true}};
#ifdef TUTTI_SOAK_DDP_RANK
  all.push_back({"ddp", TUTTI_SOAK_DDP_RANK, "ddp", words.rounds, 0, false, true});
#else
  fmt::print(stderr, "kills: built without libtorch: no series with DistributedDataParallel\n");
#endif
  if (!words.only.empty()) {
    std::erase_if(all, [&](const Series& series) { return series.name != words.only; });
    if (all.empty()) {
      fmt::print(stderr, "kills: --only {}: there is no such series\n", words.only);
      return 2;
    }
  }
  int rounds = 0;
  for (const Series& series : all) rounds += series.rounds;
  fmt::print(stderr, "kills: seed {}\n", words.seed);
  std::mt19937_64 random(words.seed);
  const Leftovers leftovers;
  Progress progress("kills", rounds);
  Figures total;
  int failed = 0;
  std::vector<std::pair<std::string, std::string>> fields;
  for (const Series& series : all) {
    Figures figures;
    for (int i = 0; i < series.rounds; ++i) {
      const Round round = run_round(series, random, leftovers);
      figures.samples.insert(figures.samples.end(), round.known_ms.begin(), round.known_ms.end());
      if (!round.wrong.empty() && ++failed == 1) fmt::print(stderr, "{}", round.printed);
      for (const std::string& what : round.wrong) {
        fmt::print(stderr, "kills: {} round {}: {}\n", series.name, i, what);
      }
      net::kill_everything_below();
      progress.advance(series.name, failed);
    }
    fmt::print("{:<12} {} rounds, {}\n", series.name, series.rounds, figures.summary());
    fields.emplace_back(
        series.name, fmt::format(R"({{"rounds": {}, "p50_ms": {:.2f}, "p99_ms": {:.2f}, )"
                                 R"("max_ms": {:.2f}, "histogram": {}}})",
                                 series.rounds, figures.percentile(0.5), figures.percentile(0.99),
                                 figures.percentile(1), figures.histogram_json()));
    total.samples.insert(total.samples.end(), figures.samples.begin(), figures.samples.end());
  }
  const bool in_time =
      total.percentile(0.99) <= 100 * words.scale && total.percentile(1) <= 1000 * words.scale;
  fmt::print("{:<12} {} rounds, {}; promise: p99 {} max {} ms: {}; {} rounds wrong\n", "all",
             rounds, total.summary(), 100 * words.scale, 1000 * words.scale,
             in_time ? "kept" : "BROKEN", failed);
  fields.emplace_back("histogram", total.histogram_json());
  fields.emplace_back("p99_ms", fmt::format("{:.2f}", total.percentile(0.99)));
  fields.emplace_back("max_ms", fmt::format("{:.2f}", total.percentile(1)));
  fields.emplace_back("wrong_rounds", std::to_string(failed));
  write_evidence(words, "kills", fields);
  return in_time && failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) { return tutti::soak::soak(tutti::soak::read_words(argc, argv)); }
