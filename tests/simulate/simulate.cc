// ./dev soak simulate: many rounds by seed; shrinks and prints what violates a promise.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "simulate/batch.h"
#include "simulate/expect.h"
#include "simulate/round.h"
#include "simulate/script.h"

namespace tutti::simulate {
namespace {

constexpr const char* kTable = "first verdicts by a fault alone";
constexpr const char* kSeeds = "seeds";

nlohmann::json to_json(const Tally& tally) {
  return {{"rounds", tally.rounds},       {"steps", tally.steps},
          {"calls", tally.calls},         {"first verdicts by fault", tally.answers},
          {kTable, tally.alone},          {kSeeds, tally.seeds},
          {"calls ended", tally.outcomes}};
}

using PlanOf = std::function<Plan(std::uint64_t number)>;

nlohmann::json run_rounds(std::uint64_t first, std::uint64_t end, const PlanOf& plan_of) {
  Tally tally;
  for (std::uint64_t number = first; number < end; ++number) {
    const Plan plan = plan_of(number);
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

/// Cells of the table, a fault, the operation and the answer, that have been met less often than
/// others: plans that met them are run again, each time in another order of steps.
class Rare {
 public:
  /// `at_least`: how often each cell is to be met. `most`: rounds for it.
  Rare(std::uint64_t at_least, std::uint64_t most, std::function<Plan(std::uint64_t seed)> plan_of)
      : at_least_(at_least), left_(most), plan_of_(std::move(plan_of)) {}

  std::uint64_t more(nlohmann::json& sum, Rounds& rounds) {
    auto cells = std::make_shared<std::vector<std::vector<std::uint64_t>>>();
    missing_.clear();
    for (const auto& [row, counts] : sum[kTable].items())
      for (const auto& [operation, count] : counts.items()) {
        if (count.get<std::uint64_t>() >= at_least_) continue;
        const std::string cell = fmt::format("{}, {}", row, operation);
        cells->push_back(sum[kSeeds][cell].get<std::vector<std::uint64_t>>());
        missing_.push_back(fmt::format("{}: {}", cell, count.dump()));
      }
    sum[fmt::format("cells met less than {} times", at_least_)] = cells->size();
    const std::uint64_t count = std::min(left_, kAtATime * cells->size());
    left_ -= count;
    rounds = [this, cells](std::uint64_t first, std::uint64_t end) {
      return run_rounds(first, end, [&](std::uint64_t number) {
        const auto& seeds = (*cells)[number % cells->size()];
        Plan plan = plan_of_(seeds[number / cells->size() % seeds.size()]);
        plan.interleaving = Random(number).next() | 1;
        return plan;
      });
    };
    return count;
  }
  const std::vector<std::string>& missing() const noexcept { return missing_; }

 private:
  static constexpr std::uint64_t kAtATime = 200;

  const std::uint64_t at_least_;
  std::uint64_t left_;
  const std::function<Plan(std::uint64_t seed)> plan_of_;
  std::vector<std::string> missing_;
};

std::string run_script(const std::string& text) {
  Tally tally;
  std::string violation = run_round(from_script(text), tally);
  for (const auto& [what, count] : tally.outcomes)
    fmt::print("  call ended     {:28} {:>9}\n", what, count);
  return violation;
}

void print_expectations(const SoakOptions& options, int ranks, int hosts) {
  for (std::uint64_t seed = options.seed; seed < options.seed + options.rounds; ++seed)
    fmt::print("{}\n", expect_drawn(make_plan(seed, ranks, std::max(hosts, 1))).dump());
}

/// Of a script; with "told" and "unlike" beside it, whether that can be.
std::string print_expectation(const std::string& text) {
  const auto asked = nlohmann::json::parse(text);
  const bool is_told = asked.contains("told");
  const Plan plan = from_script(is_told ? asked.at("script").get<std::string>() : text);
  fmt::print("{}\n",
             (is_told ? explain(plan, asked.at("told"), asked.at("unlike")) : expect(plan)).dump());
  return {};
}

}  // namespace
}  // namespace tutti::simulate

int main(int argc, char** argv) {
  using namespace tutti::simulate;
  CLI::App app{"Ranks, faults and time, simulated by seed around the product's own code"};
  SoakOptions options;
  int ranks = 0, hosts = 0;
  add_soak_options(app, options, "simulate-violation.json");
  app.add_option("--ranks", ranks, "of every world; 0: 2 to 64, most often few")
      ->check(CLI::Range(0, 4096));
  app.add_option("--hosts", hosts, "of every world; 0: half of the worlds one, else 2 to 8")
      ->check(CLI::Range(0, 64));
  bool expects = false;
  app.add_flag("--expect", expects,
               "print what scripts with one fault end in, a line of JSON each: for soak_real");
  std::uint64_t at_least = 0, most = 2'000'000;
  app.add_option("--each", at_least,
                 "then meet each fault at each operation with each answer so often: plans that met "
                 "one are run again, in other orders of steps");
  app.add_option("--more", most, "how many rounds of that kind at most");
  CLI11_PARSE(app, argc, argv);
  // Buffers that come and go are not to be asked of the system each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  tutti::set_log_callback([](tutti::LogLevel, std::string_view) {});
  if (!options.replay.empty())
    return replay(options.replay, expects ? print_expectation : run_script);
  if (expects) {
    print_expectations(options, ranks, hosts);
    return 0;
  }
  const auto plan_of = [ranks, hosts](std::uint64_t seed) { return make_plan(seed, ranks, hosts); };
  const Rounds rounds = [&](auto first, auto end) { return run_rounds(first, end, plan_of); };
  if (at_least == 0) return soak(options, rounds);
  Rare rare(at_least, most, plan_of);
  const int code =
      soak(options, rounds, [&](auto& sum, auto& more) { return rare.more(sum, more); });
  for (const std::string& cell : rare.missing())
    fmt::print("met less than {} times: {}\n", at_least, cell);
  return rare.missing().empty() ? code : 1;
}
