// ./dev soak real: scripts of the simulator with one fault, run by real ranks: as processes, and as
// threads of one process where no fault befalls a process. Each is told what it was told in the
// simulation. With --hosts N they are processes of several hosts, which tests/soak/real_hosts.py
// has made.
//
// soak_simulate says which scripts end in the same whatever the order of steps, and in what.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "simulate/batch.h"
#include "simulate/real/compare.h"
#include "simulate/script.h"
#include "soak/soak.h"
#include "tutti/log.h"

namespace tutti::simulate {
namespace {

using nlohmann::json;
using soak::Figures;

/// What soak_simulate prints with these arguments, line by line.
std::vector<json> ask_simulator(const std::string& arguments) {
  const std::string command = fmt::format("\"{}\" --expect {}", TUTTI_SIMULATOR, arguments);
  std::FILE* const answer = ::popen(command.c_str(), "r");
  if (answer == nullptr) throw std::runtime_error("cannot run " + command);
  std::string text;
  std::array<char, 65536> block;
  for (std::size_t got; (got = std::fread(block.data(), 1, block.size(), answer)) > 0;)
    text.append(block.data(), got);
  if (::pclose(answer) != 0) throw std::runtime_error("it failed: " + command);
  std::vector<json> lines;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    if (text[at] == '{') lines.push_back(json::parse(text.substr(at, end - at)));
  return lines;
}

Plan plan_of(const json& expectation) {
  return from_script(expectation.at("script").get<std::string>());
}

/// Scripts whose end depends on the plan alone: out of those of a seed and the next ones, or one in
/// a file.
class Scripts {
 public:
  Scripts(const SoakOptions& options, int hosts)
      : next_(options.seed), file_(options.replay), hosts_(hosts) {}

  int hosts() const noexcept { return hosts_; }
  /// Throws std::runtime_error if a simulation violates something, or has more or fewer hosts.
  std::vector<json> choose(std::size_t count) {
    constexpr std::uint64_t kAtATime = 50;
    std::vector<json> chosen;
    while (chosen.size() < count && !(had_file_ && lines_.empty())) {
      if (lines_.empty()) {
        const bool is_of_file = had_file_ = !file_.empty();
        lines_ = ask_simulator(
            is_of_file ? fmt::format("--replay \"{}\"", file_)
                       : fmt::format("--seed {} --rounds {} --hosts {}", next_, kAtATime, hosts_));
        next_ += kAtATime;
      }
      take(lines_.front(), chosen);
      lines_.erase(lines_.begin());
    }
    return chosen;
  }

  std::map<std::string, int> left_out;  ///< by reason
  int calls_left_out = 0;

 private:
  void take(json& line, std::vector<json>& chosen) {
    if (line.contains("violation"))
      throw std::runtime_error(fmt::format("seed {}, simulated: VIOLATED: {}",
                                           line.at("seed").dump(),
                                           line.at("violation").get<std::string>()));
    if (line.contains("left out")) {
      ++left_out[line.at("left out")];
      return;
    }
    const int needed = plan_of(line).hosts();
    if (needed == 1 && hosts_ > 1 && file_.empty()) {
      ++left_out["it has one rank, and no hosts"];
      return;
    }
    if (needed > hosts_ || (needed == 1) != (hosts_ == 1))
      throw std::runtime_error(
          fmt::format("a script of {} host(s): ./dev soak real{} --replay FILE", needed,
                      needed > 1 ? fmt::format(" --hosts {}", needed) : ""));
    calls_left_out += line.at("calls left out").get<int>();
    chosen.push_back(std::move(line));
  }

  std::uint64_t next_;
  const std::string file_;
  const int hosts_;
  bool had_file_ = false;
  std::vector<json> lines_;
};

constexpr std::array<const char*, 2> kAs = {"processes", "threads"};

/// "die -> kPeerLost": the fault, and with what groups end.
std::string kind_of(const json& expectation, const Plan& plan) {
  std::set<std::string> ends;
  for (const json& told : expectation.at("told"))
    if (!told.is_null())
      for (const auto& [group, ending] : told.at("groups").items()) {
        const auto text = ending.get<std::string>();
        if (text != "well" && text != "left") ends.insert(text.substr(0, text.find(' ')));
      }
  return fmt::format("{} -> {}", name_of(plan.faults.front().kind),
                     ends.empty() ? "well" : fmt::format("{}", fmt::join(ends, ", ")));
}

/// Whether the simulator finds an interleaving in which ranks are told what these were.
bool is_explained(const json& expectation, const Run& run) {
  if (!run.is_explainable) return false;
  const std::string path =
      fmt::format("{}/{}.json", std::getenv("TMPDIR"), static_cast<int>(::getpid()));
  std::ofstream(path) << json{
      {"script", expectation.at("script")}, {"told", run.told}, {"unlike", run.unlike}};
  const std::vector<json> answer = ask_simulator(fmt::format("--replay \"{}\"", path));
  std::filesystem::remove(path);
  return answer.at(0).contains("explained");
}

/// Runs a script in every way that it can be.
json run_script(const json& expectation, const Hosts* hosts) {
  const Plan plan = plan_of(expectation);
  json result = {{"seed", expectation.at("seed")},
                 {"kind", kind_of(expectation, plan)},
                 {"explained", false},
                 {"runs", json::array()}};
  for (const RanksAs as : {RanksAs::processes, RanksAs::threads}) {
    if (as == RanksAs::threads && !is_of_threads(plan)) continue;
    const auto began = Clock::now();
    const Run run = run_real(expectation, as, hosts);
    const std::chrono::duration<double, std::milli> took = Clock::now() - began;
    result["runs"].push_back({{"as", kAs[static_cast<std::size_t>(as)]},
                              {"ms", took.count()},
                              {"calls", run.calls},
                              {"differences", run.differences}});
    if (run.differences.empty()) continue;
    if (is_explained(expectation, run)) {
      result["explained"] = true;
      continue;
    }
    result["script"] = expectation.at("script");
    result["simulated"] = expectation.at("told");
    result["runs"].back()["told"] = run.told;
  }
  return result;
}

struct Total {
  std::map<std::string, std::map<std::string, int>> runs;  // by kind of script, then how
  int scripts = 0, calls = 0, different = 0;
  int explained = 0;  ///< scripts
  int broken = 0;     ///< processes that should have run scripts
  Figures took;
};

/// The script of a difference, where it can be run again, and what both were told.
void show(const json& result, const std::string& path) {
  std::ofstream(path) << result.at("script").get<std::string>();
  fmt::print("DIFFERENT: seed {} ({}); again: --replay {}\n", result.at("seed").dump(),
             result.at("kind").get<std::string>(), path);
  for (const json& run : result.at("runs")) {
    if (!run.contains("told")) continue;
    fmt::print("as {}:\n", run.at("as").get<std::string>());
    for (const json& difference : run.at("differences"))
      fmt::print("  {}\n", difference.get<std::string>());
    for (std::size_t rank = 0; rank < run.at("told").size(); ++rank)
      fmt::print("  rank {} simulated {}\n  rank {} real      {}\n", rank,
                 result.at("simulated").at(rank).dump(), rank, run.at("told").at(rank).dump());
  }
}

void add(Total& total, const json& result, const SoakOptions& options) {
  if (result.contains("script")) {
    show(result, total.different++ == 0 ? options.script
                                        : fmt::format("{}.{}", options.script, total.different));
    return;
  }
  if (result.at("explained")) {
    ++total.explained;
    return;
  }
  ++total.scripts;
  for (const json& run : result.at("runs")) {
    ++total.runs[result.at("kind")][run.at("as")];
    total.calls += run.at("calls").get<int>();
    total.took.samples.push_back(run.at("ms"));
  }
}

/// Runs every jobs-th script from `first` on, in a process of its own; on `hosts`, if there are
/// any.
pid_t start_worker(const std::vector<json>& expectations, std::size_t first, std::size_t jobs,
                   const Hosts* hosts, int out) {
  std::fflush(nullptr);
  const pid_t worker = ::fork();
  if (worker != 0) return worker;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what it leaves behind is seen
  set_log_callback([](LogLevel, std::string_view) {});
  if (hosts != nullptr) hosts->enter(0);
  for (std::size_t i = first; i < expectations.size(); i += jobs) {
    const std::string text = run_script(expectations[i], hosts).dump();
    if (::send(out, text.data(), text.size(), 0) != std::ssize(text)) std::_Exit(1);
  }
  std::_Exit(0);
}

/// Runs all scripts, some at a time: each on hosts of its own, where it has several.
void run_all(const std::vector<json>& expectations, const SoakOptions& options,
             const std::vector<Hosts>& hosts, soak::Progress& progress, Total& total) {
  std::array<int, 2> ends;  // one message for each script
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) != 0)
    throw std::runtime_error("cannot make a socket");
  const std::size_t jobs = std::min(static_cast<std::size_t>(options.jobs), expectations.size());
  std::vector<pid_t> workers;
  for (std::size_t first = 0; first < jobs; ++first)
    workers.push_back(
        start_worker(expectations, first, jobs, hosts.empty() ? nullptr : &hosts[first], ends[1]));
  ::close(ends[1]);
  std::vector<char> buffer(1 << 20);
  std::size_t done = 0;
  for (ssize_t got; (got = ::recv(ends[0], buffer.data(), buffer.size(), 0)) > 0; ++done) {
    const json result = json::parse(buffer.data(), buffer.data() + got);
    add(total, result, options);
    if (!result.at("explained")) progress.advance(result.at("kind"), total.different);
  }
  ::close(ends[0]);
  for (const pid_t worker : workers) {
    int status = 0;
    ::waitpid(worker, &status, 0);
    if (status != 0) ++total.broken;
  }
  if (done != expectations.size()) ++total.broken;
}

void print(const Scripts& scripts, const Total& total) {
  fmt::print("real: {} scripts, {} runs ({}), {} calls compared, {} scripts different\n",
             total.scripts, total.took.samples.size(), total.took.summary(), total.calls,
             total.different);
  for (const auto& [kind, runs] : total.runs)
    for (const auto& [as, count] : runs) fmt::print("  {:40} {:10} {:>5}\n", kind, as, count);
  for (const auto& [why, count] : scripts.left_out)
    fmt::print("  left out: {:60} {:>5}\n", why, count);
  fmt::print(
      "  left out once it was run: {:44} {:>5}\n  calls left out, since their end depends on the "
      "moment: {}\n",
      "a rare interleaving ends as the real ranks did", total.explained, scripts.calls_left_out);
}

void write_evidence(const SoakOptions& options, const Scripts& scripts, const Total& total) {
  soak::Words words;
  words.rounds = static_cast<int>(options.rounds);
  words.seed = options.seed;
  words.out = options.out;
  words.hosts = scripts.hosts();
  soak::write_evidence(words, "real",
                       {{"scripts", std::to_string(total.scripts)},
                        {"different", std::to_string(total.different)},
                        {"runs", json(total.runs).dump()},
                        {"run_ms_p50", fmt::format("{:.1f}", total.took.percentile(0.5))},
                        {"run_ms_max", fmt::format("{:.1f}", total.took.percentile(1))},
                        {"calls_compared", std::to_string(total.calls)},
                        {"calls_left_out", std::to_string(scripts.calls_left_out)},
                        {"scripts_left_out", json(scripts.left_out).dump()},
                        {"scripts_left_out_once_run", std::to_string(total.explained)}});
}

int soak_real(const SoakOptions& options, int host_count, const std::vector<Hosts>& hosts) {
  const soak::Leftovers leftovers;
  fmt::print(stderr, "real: seed {}\n", options.seed);
  Scripts scripts(options, host_count);
  Total total;
  soak::Progress progress("real", static_cast<int>(options.rounds));
  for (std::size_t missing = options.rounds; missing > 0 && total.broken == 0;) {
    const std::vector<json> chosen = scripts.choose(missing);
    if (chosen.empty()) break;  // of a file there is one
    run_all(chosen, options, hosts, progress, total);
    missing = options.rounds - static_cast<std::size_t>(total.scripts + total.different);
  }
  print(scripts, total);
  if (options.replay.empty()) write_evidence(options, scripts, total);
  const std::vector<std::string> left = leftovers.found("");
  for (const std::string& name : left) fmt::print("left behind: {}\n", name);
  if (total.broken > 0) fmt::print("not all was run: a process that runs scripts has failed\n");
  return total.broken == 0 && left.empty() && total.different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::simulate

int main(int argc, char** argv) try {
  using namespace tutti::simulate;
  CLI::App app{"Scripts of the simulator with one fault, run by real ranks"};
  SoakOptions options;
  options.rounds = 200;
  options.jobs = 8;
  add_soak_options(app, options, "real-difference.json");
  int host_count = 1;
  std::vector<std::string> on;
  app.add_option("--hosts", host_count, "of a script: ./dev soak real --hosts N")
      ->check(CLI::Range(1, 64));
  app.add_option("--on", on,
                 "hosts for a script at a time, as tests/soak/real_hosts.py gives them");
  CLI11_PARSE(app, argc, argv);
  if ((host_count > 1) != !on.empty())
    throw std::runtime_error("scripts of several hosts need some: ./dev soak real --hosts N");
  if (!on.empty()) options.jobs = static_cast<int>(on.size());
  return soak_real(options, host_count, {on.begin(), on.end()});
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
