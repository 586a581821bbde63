// ./dev soak simulate: many rounds by seed; shrinks and prints what violates a promise.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "simulate/batch.h"
#include "simulate/expect.h"
#include "simulate/round.h"
#include "simulate/script.h"

namespace tutti::simulate {
namespace {

nlohmann::json to_json(const Tally& tally) {
  return {{"rounds", tally.rounds},
          {"steps", tally.steps},
          {"calls", tally.calls},
          {"first verdicts by fault", tally.answers},
          {"first verdicts by a fault alone", tally.alone},
          {"calls ended", tally.outcomes}};
}

nlohmann::json run_rounds(std::uint64_t first, std::uint64_t end, int ranks, int hosts) {
  Tally tally;
  for (std::uint64_t seed = first; seed < end; ++seed) {
    const Plan plan = make_plan(seed, ranks, hosts);
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

std::string run_script(const std::string& text) {
  Tally tally;
  std::string violation = run_round(from_script(text), tally);
  for (const auto& [what, count] : tally.outcomes)
    fmt::print("  call ended     {:28} {:>9}\n", what, count);
  return violation;
}

void print_expectations(const SoakOptions& options, int ranks) {
  for (std::uint64_t seed = options.seed; seed < options.seed + options.rounds; ++seed)
    fmt::print("{}\n", expect_drawn(make_plan(seed, ranks, 1)).dump());
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
  app.add_option("--ranks", ranks, "of every world; 0: 2 to 64, most often few");
  app.add_option("--hosts", hosts, "of every world; 0: half of the worlds one, else 2 to 8")
      ->check(CLI::Range(0, 64));
  bool expects = false;
  app.add_flag("--expect", expects,
               "print what scripts with one fault end in, a line of JSON each: for soak_real");
  CLI11_PARSE(app, argc, argv);
  // Buffers that come and go are not to be asked of the system each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  tutti::set_log_callback([](tutti::LogLevel, std::string_view) {});
  if (!options.replay.empty())
    return replay(options.replay, expects ? print_expectation : run_script);
  if (expects) {
    print_expectations(options, ranks);
    return 0;
  }
  return soak(options, [ranks, hosts](auto first, auto end) {
    return run_rounds(first, end, ranks, hosts);
  });
}
