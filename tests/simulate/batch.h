// Many rounds by seed, in batches, each in a child process: what the programs of this folder share.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace CLI {
class App;
}

namespace tutti::simulate {

struct SoakOptions {
  std::uint64_t rounds = 1000;
  std::uint64_t seed = 0;
  int jobs = 2;
  std::string out, replay, script;
};

/// --rounds, --seed, --jobs, --out, --script and --replay. The seed is a random one without it.
void add_soak_options(CLI::App& app, SoakOptions& options, const char* script);

/// Runs the rounds of the seeds from the first up to the second, or up to a violation. Answers with
/// a tally ("rounds" and other numbers, objects of numbers, and tables: objects of those; and
/// objects of arrays, of which the last elements are kept, and not printed), and if something was
/// violated with "violation", in words, and "script", to replay it. Rounds that crash are run again
/// one by one, so that the seed is known.
using Rounds = std::function<nlohmann::json(std::uint64_t, std::uint64_t)>;
/// Asked once all rounds have held: how many more there are to be, and which. It may add to `sum`.
using More = std::function<std::uint64_t(nlohmann::json& sum, Rounds& rounds)>;

/// All rounds; prints what was counted. Returns the exit code.
int soak(const SoakOptions& options, Rounds rounds, const More& more = {});

/// `run` with the text of a file. Prints its answer: what was violated, or "". Returns the exit
/// code.
int replay(const std::string& path, const std::function<std::string(const std::string&)>& run);

}  // namespace tutti::simulate
