// ./dev soak simulate, its second half: hosts that vote about the log of their world.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "simulate/batch.h"
#include "simulate/votes/world.h"

namespace tutti::simulate::votes {
namespace {

nlohmann::json to_json(const Tally& tally) {
  return {{"rounds", tally.rounds},
          {"steps", tally.steps},
          {"frames", tally.frames},
          {"fault", tally.faults},
          {"happened", tally.happened}};
}

nlohmann::json run_rounds(std::uint64_t first, std::uint64_t end, int hosts) {
  Tally tally;
  for (std::uint64_t seed = first; seed < end; ++seed) {
    const Plan plan = make_plan(seed, hosts);
    const std::string violation = run_round(plan, tally);
    if (violation.empty()) continue;
    const Plan shrunk = shrink(plan);
    Tally nothing;
    nlohmann::json json = to_json(tally);
    json["violation"] =
        fmt::format("seed {}: {}\nshrunk: {}", seed, violation, run_round(shrunk, nothing));
    json["script"] = to_script(shrunk);
    return json;
  }
  return to_json(tally);
}

std::string run_script(const std::string& text) {
  Tally nothing;
  return run_round(from_script(text), nothing);
}

}  // namespace
}  // namespace tutti::simulate::votes

int main(int argc, char** argv) {
  using namespace tutti::simulate;
  CLI::App app{"Hosts that vote, faults and time, simulated by seed"};
  SoakOptions options;
  int hosts = 0;
  add_soak_options(app, options, "votes-violation.json");
  app.add_option("--hosts", hosts, "of every world; 0: 2 to 8")->check(CLI::Range(0, 8));
  CLI11_PARSE(app, argc, argv);
  if (hosts == 1) hosts = 2;
  if (!options.replay.empty()) return replay(options.replay, votes::run_script);
  return soak(options,
              [hosts](auto first, auto end) { return votes::run_rounds(first, end, hosts); });
}
