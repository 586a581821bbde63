// ./dev soak simulate: many rounds by seed; shrinks and prints what violates a promise.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "simulate/batch.h"
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
  CLI11_PARSE(app, argc, argv);
  // Buffers that come and go are not to be asked of the system each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  tutti::set_log_callback([](tutti::LogLevel, std::string_view) {});
  if (!options.replay.empty()) return replay(options.replay, run_script);
  return soak(options, [ranks, hosts](auto first, auto end) {
    return run_rounds(first, end, ranks, hosts);
  });
}
