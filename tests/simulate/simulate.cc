// ./dev soak simulate: many rounds by seed; shrinks and prints what violates a promise.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "base/log.h"
#include "simulate/round.h"
#include "simulate/script.h"

namespace tutti::simulate {
namespace {

struct Options {
  std::uint64_t rounds = 1000;
  std::uint64_t seed = 0;
  int ranks = 0;
  int jobs = 2;
  std::string out, replay;
  std::string script = "simulate-violation.json";
};

nlohmann::json to_json(const Tally& tally) {
  return {{"rounds", tally.rounds},
          {"steps", tally.steps},
          {"calls", tally.calls},
          {"first verdicts by fault", tally.answers},
          {"first verdicts by fault and what the finder did last", tally.table},
          {"calls ended", tally.outcomes}};
}

void add(Tally& sum, const nlohmann::json& part) {
  sum.rounds += part["rounds"].get<std::uint64_t>();
  sum.steps += part["steps"].get<std::uint64_t>();
  sum.calls += part["calls"].get<std::uint64_t>();
  for (const auto& [key, count] : part["first verdicts by fault"].items())
    sum.answers[key] += count.get<std::uint64_t>();
  for (const auto& [key, count] :
       part["first verdicts by fault and what the finder did last"].items())
    sum.table[key] += count.get<std::uint64_t>();
  for (const auto& [key, count] : part["calls ended"].items())
    sum.outcomes[key] += count.get<std::uint64_t>();
}

/// Rounds [first, end) in this process. Returns what is to be told to the parent.
nlohmann::json run_batch(const Options& options, std::uint64_t first, std::uint64_t end) {
  Tally tally;
  for (std::uint64_t round = first; round < end; ++round) {
    const Plan plan = make_plan(options.seed + round, options.ranks);
    const std::string violation = run_round(plan, tally);
    if (violation.empty()) continue;
    const Plan shrunk = shrink(plan);
    Tally nothing;
    nlohmann::json json = to_json(tally);
    json["violation"] =
        fmt::format("seed {}: {}\nshrunk: {}", plan.seed, violation, run_round(shrunk, nothing));
    json["script"] = to_script(shrunk);
    return json;
  }
  return to_json(tally);
}

/// In a child, since what dead processes held is never given back.
struct Batch {
  pid_t pid = -1;
  std::FILE* answer = nullptr;
  std::uint64_t first = 0;
};

Batch start_batch(const Options& options, std::uint64_t first, std::uint64_t end) {
  Batch batch{-1, std::tmpfile(), first};
  batch.pid = fork();
  if (batch.pid != 0) return batch;
  const std::string text = run_batch(options, first, end).dump();
  std::fwrite(text.data(), 1, text.size(), batch.answer);
  std::fflush(batch.answer);
  _exit(0);
}

nlohmann::json end_batch(Batch& batch) {
  int status = 0;
  waitpid(batch.pid, &status, 0);
  std::string text;
  std::rewind(batch.answer);
  for (int byte = 0; (byte = std::fgetc(batch.answer)) != EOF;) text += static_cast<char>(byte);
  std::fclose(batch.answer);
  if (status == 0) return nlohmann::json::parse(text);
  Tally nothing;
  nlohmann::json json = to_json(nothing);
  json["violation"] =
      fmt::format("a batch from round {} on ended with wait status {}", batch.first, status);
  return json;
}

int run(const Options& options) {
  constexpr std::uint64_t kBatch = 500;
  const auto began = std::chrono::steady_clock::now();
  Tally sum;
  std::vector<Batch> batches;
  std::string violation;
  std::uint64_t next = 0;
  while (violation.empty() && (next < options.rounds || !batches.empty())) {
    while (next < options.rounds && batches.size() < static_cast<std::size_t>(options.jobs)) {
      const std::uint64_t end = std::min(options.rounds, next + kBatch);
      batches.push_back(start_batch(options, next, end));
      next = end;
    }
    const nlohmann::json part = end_batch(batches.front());
    batches.erase(batches.begin());
    add(sum, part);
    if (part.contains("violation")) violation = part["violation"].get<std::string>();
    if (part.contains("script")) std::ofstream(options.script) << part["script"].get<std::string>();
  }
  for (Batch& batch : batches) end_batch(batch);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  fmt::print("{} rounds from seed {} in {:.1f} s ({:.0f} rounds/s), {} calls, {} steps\n",
             sum.rounds, options.seed, took.count(), static_cast<double>(sum.rounds) / took.count(),
             sum.calls, sum.steps);
  for (const auto& [what, count] : sum.answers)
    fmt::print("  first verdict  {:28} {:>9}\n", what, count);
  for (const auto& [what, count] : sum.outcomes)
    fmt::print("  call ended     {:28} {:>9}\n", what, count);
  if (!options.out.empty()) {
    nlohmann::json json = to_json(sum);
    json["seed"] = options.seed;
    json["seconds"] = took.count();
    json["violations"] = violation.empty() ? 0 : 1;
    std::ofstream(options.out) << json.dump(1) << "\n";
  }
  if (violation.empty()) return 0;
  fmt::print("VIOLATED: {}\nAgain: --replay {}\n", violation, options.script);
  return 1;
}

/// One round out of a file, in this process.
int replay(const std::string& path) try {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("replay script: cannot read " + path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Tally tally;
  const std::string violation = run_round(from_script(text), tally);
  for (const auto& [what, count] : tally.outcomes)
    fmt::print("  call ended     {:28} {:>9}\n", what, count);
  fmt::print("{}\n", violation.empty() ? "all held" : "VIOLATED: " + violation);
  return violation.empty() ? 0 : 1;
} catch (const std::runtime_error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}

}  // namespace
}  // namespace tutti::simulate

int main(int argc, char** argv) {
  tutti::simulate::Options options;
  options.seed = std::random_device{}();
  CLI::App app{"Ranks, faults and time, simulated by seed around the product's own code"};
  app.add_option("--rounds", options.rounds, "how many rounds");
  app.add_option("--seed", options.seed, "of the first round; the others follow");
  app.add_option("--ranks", options.ranks, "of every world; 0: 2 to 64, most often few");
  app.add_option("--jobs", options.jobs, "processes that work at a time");
  app.add_option("--out", options.out, "a JSON file with the figures");
  app.add_option("--script", options.script, "where the plan of a violation is written, shrunk");
  app.add_option("--replay", options.replay, "run the plan in this file, and no other");
  CLI11_PARSE(app, argc, argv);
  // Buffers that come and go are not to be asked of the system each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  tutti::set_log_callback([](tutti::LogLevel, std::string_view) {});
  if (!options.replay.empty()) return tutti::simulate::replay(options.replay);
  return tutti::simulate::run(options);
}
