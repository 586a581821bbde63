#include "simulate/batch.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "tutti/version.h"

namespace tutti::simulate {

namespace {

using nlohmann::json;

/// In a child, since what dead processes held is never given back.
struct Batch {
  pid_t pid = -1;
  std::FILE* answer = nullptr;
  std::uint64_t first = 0, end = 0;
};

Batch start_batch(const Rounds& rounds, std::uint64_t first, std::uint64_t end) {
  Batch batch{-1, std::tmpfile(), first, end};
  batch.pid = fork();
  if (batch.pid != 0) return batch;
  const std::string text = rounds(first, end).dump();
  std::fwrite(text.data(), 1, text.size(), batch.answer);
  std::fflush(batch.answer);
  _exit(0);
}

/// Empty: the child has crashed, or was killed.
std::optional<json> end_batch(Batch& batch, int& status) {
  waitpid(batch.pid, &status, 0);
  std::string text;
  std::rewind(batch.answer);
  for (int byte = 0; (byte = std::fgetc(batch.answer)) != EOF;) text += static_cast<char>(byte);
  std::fclose(batch.answer);
  if (status != 0) return std::nullopt;
  return json::parse(text);
}

/// One that has ended, of those under way.
std::vector<Batch>::iterator await_any(std::vector<Batch>& batches) {
  siginfo_t ended = {};
  while (waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  return std::find_if(batches.begin(), batches.end(),
                      [&](const Batch& batch) { return batch.pid == ended.si_pid; });
}

/// The rounds of a batch that has crashed, each in a child of its own.
json find_crash(const Rounds& rounds, const Batch& batch, int status) {
  for (std::uint64_t seed = batch.first; seed < batch.end; ++seed) {
    Batch round = start_batch(rounds, seed, seed + 1);
    int alone = 0;
    const auto part = end_batch(round, alone);
    if (!part)
      return {{"violation", fmt::format("seed {}: crashed, wait status {}", seed, alone)},
              {"again", fmt::format("--rounds 1 --seed {}", seed)}};
    if (part->contains("violation")) return *part;
  }
  const std::uint64_t count = batch.end - batch.first;
  return {
      {"violation", fmt::format("{} rounds from seed {} on crashed, wait status {}, and none alone",
                                count, batch.first, status)},
      {"again", fmt::format("--jobs 1 --rounds {} --seed {}", count, batch.first)}};
}

constexpr std::size_t kKept = 16;  // of an array

/// Adds numbers, and objects of them or of such objects; leaves out texts.
void add(json& sum, const json& part) {
  if (sum.is_null()) sum = json::object();
  for (const auto& [key, value] : part.items()) {
    if (value.is_object()) add(sum[key], value);
    if (value.is_array()) {
      json& all = sum[key];
      for (const json& each : value) all.push_back(each);
      if (all.size() > kKept) all.erase(all.begin(), all.end() - kKept);
    }
    if (!value.is_number()) continue;
    sum[key] = sum.value(key, std::uint64_t{0}) + value.get<std::uint64_t>();
  }
}

/// A number, or a line of them.
std::string text_of(const json& count) {
  if (!count.is_object()) return fmt::format("{:>9}", count.dump());
  std::string line;
  for (const auto& [key, each] : count.items()) line += fmt::format(" {} {}", each.dump(), key);
  return line;
}

/// Objects of arrays were for the soak itself.
void leave_out_arrays(json& sum) {
  for (auto at = sum.begin(); at != sum.end();)
    at = at->is_object() && !at->empty() && at->begin()->is_array() ? sum.erase(at) : std::next(at);
}

void print(const SoakOptions& options, const json& sum, double seconds) {
  const auto rounds = sum.value("rounds", std::uint64_t{0});
  fmt::print("{} rounds from seed {} in {:.1f} s ({:.0f} rounds/s)", rounds, options.seed, seconds,
             static_cast<double>(rounds) / seconds);
  for (const auto& [key, value] : sum.items())
    if (value.is_number() && key != "rounds") fmt::print(", {} {}", value.dump(), key);
  fmt::print("\n");
  for (const auto& [what, counts] : sum.items())
    if (counts.is_object())
      for (const auto& [key, count] : counts.items())
        fmt::print("  {:31} {:30} {}\n", what, key, text_of(count));
}

/// A line now and then while a run takes long: "123000 of 1000000 rounds have held, 947 s left".
class Progress {
 public:
  explicit Progress(std::uint64_t count) : count_(count) {}
  void advance(std::uint64_t rounds) {
    static constexpr std::chrono::seconds kBetween{10};
    done_ += rounds;
    const auto now = Clock::now();
    if (now < said_ + kBetween) return;
    said_ = now;
    const std::chrono::duration<double> took = now - began_;
    fmt::print(stderr, "{} of {} rounds have held, {:.0f} s left\n", done_, count_,
               took.count() * static_cast<double>(count_ - done_) / static_cast<double>(done_));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::uint64_t count_;
  std::uint64_t done_ = 0;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point said_ = began_;
};

/// `count` rounds; what was violated, if anything.
std::string run_all(const SoakOptions& options, const Rounds& rounds, std::uint64_t next,
                    std::uint64_t count, json& sum) {
  const auto jobs = static_cast<std::size_t>(options.jobs);
  // Many for each process, so that all have work to the end.
  const std::uint64_t at_a_time = std::clamp<std::uint64_t>(count / (16 * jobs), 1, 500);
  const std::uint64_t last = next + count;
  std::vector<Batch> batches;
  Progress progress(count);
  std::string violation;
  while (violation.empty() && (next < last || !batches.empty())) {
    while (next < last && batches.size() < jobs) {
      const std::uint64_t end = std::min(last, next + at_a_time);
      batches.push_back(start_batch(rounds, next, end));
      next = end;
    }
    int status = 0;
    const auto batch = await_any(batches);
    const auto answer = end_batch(*batch, status);
    const json part = answer ? *answer : find_crash(rounds, *batch, status);
    const std::uint64_t in_batch = batch->end - batch->first;
    batches.erase(batch);
    add(sum, part);
    if (!part.contains("violation")) {
      progress.advance(in_batch);
      continue;
    }
    if (part.contains("script")) std::ofstream(options.script) << part["script"].get<std::string>();
    violation = fmt::format("{}\nAgain: {}", part["violation"].get<std::string>(),
                            part.value("again", "--replay " + options.script));
  }
  int status = 0;
  for (Batch& batch : batches) end_batch(batch, status);
  return violation;
}

}  // namespace

void add_soak_options(CLI::App& app, SoakOptions& options, const char* script) {
  options.seed = std::random_device{}();
  options.script = script;
  // Together they are seeds, too. A negative number comes as a large one.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  app.add_option("--rounds", options.rounds, "how many rounds")
      ->check(CLI::Range(std::uint64_t{1}, kMost));
  app.add_option("--seed", options.seed, "of the first round; the others follow")
      ->check(CLI::Range(std::uint64_t{0}, kMost));
  app.add_option("--jobs", options.jobs, "processes that work at a time")
      ->check(CLI::Range(1, 1024));
  app.add_option("--out", options.out, "a JSON file with the figures");
  app.add_option("--script", options.script, "where the plan of a violation is written, shrunk");
  app.add_option("--replay", options.replay, "run the plan in this file, and no other");
}

int soak(const SoakOptions& options, Rounds rounds, const More& more) {
  std::ofstream out;
  if (!options.out.empty()) out.open(options.out, std::ios::app);  // before hours are spent
  if (!out) {
    fmt::print(stderr, "--out: cannot write {}\n", options.out);
    return 2;
  }
  const auto began = std::chrono::steady_clock::now();
  json sum = json::object();
  std::string violation;
  std::uint64_t next = options.seed;
  for (std::uint64_t count = options.rounds; count > 0 && violation.empty();) {
    violation = run_all(options, rounds, next, count, sum);
    next += count;
    count = more && violation.empty() ? more(sum, rounds) : 0;
  }
  leave_out_arrays(sum);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  print(options, sum, took.count());
  if (!options.out.empty()) {
    sum["commit"] = build_info().commit;
    sum["seed"] = options.seed;
    sum["seconds"] = took.count();
    sum["violations"] = violation.empty() ? 0 : 1;
    out.close();
    out.open(options.out);
    if (!(out << sum.dump(1) << std::endl)) {
      fmt::print(stderr, "--out: cannot write {}\n", options.out);
      return 2;
    }
  }
  if (violation.empty()) return 0;
  fmt::print("VIOLATED: {}\n", violation);
  return 1;
}

int replay(const std::string& path, const std::function<std::string(const std::string&)>& run) try {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("replay script: cannot read " + path);
  const std::string violation = run(std::string(std::istreambuf_iterator<char>(file), {}));
  fmt::print("{}\n", violation.empty() ? "all held" : "VIOLATED: " + violation);
  return violation.empty() ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}

}  // namespace tutti::simulate
