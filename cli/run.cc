// tutti run: words of torchrun and mpirun become the options of one job.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/cores.h"
#include "command.h"
#include "launch/arguments.h"
#include "launch/job.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  tutti run -n 4 ./train --epochs 3            four ranks on this host\n"
    "  tutti run --nproc-per-node=auto ./train      one rank per core\n"
    "  tutti run -n 2 -- python3 train.py           any program; it finds RANK, WORLD_SIZE, ...\n"
    "  tutti run -n 4 --timeout 10min ./train       give up after ten minutes (exit code 124)\n"
    "  tutti run -n 4 --dry-run ./train             say what would be started, and where\n"
    "\n"
    "Starts a program on several ranks, prints their output as whole lines, and ends with the "
    "exit\n"
    "code of the rank that failed first (128 + signal if it was killed). No process of the job\n"
    "outlives it.";
constexpr const char* kFooter =
    "\nExit codes: the root cause's own; 2 wrong usage, 3 the ranks did not all meet, 124 "
    "timeout.\n"
    "INT TERM HUP QUIT USR1 USR2 CONT TSTP are handed on to the ranks; a second Ctrl-C kills them.";

class Formatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "\nUsage: tutti run [options] [--] PROGRAM [arguments...]\n";
  }
};

/// The words as CLI11 parsed them.
struct Words {
  std::string count = "1";
  std::string grace = "30s", failure_grace, timeout = "never";
  bool dry_run = false;
};

void declare(CLI::App& app, Words& words) {
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "this text");
  app.formatter(std::make_shared<Formatter>());
  app.add_option("-n,--np,--nproc-per-node", words.count,
                 "number of ranks: N, or auto (cpu): one per core; 1 if not given")
      ->type_name("N");
  app.add_option("--grace", words.grace, "from a request to end until SIGKILL (30s)")
      ->type_name("TIME");
  app.add_option("--failure-grace", words.failure_grace,
                 "what the others have to end by themselves after a rank failed (5s, or "
                 "TUTTI_FAILURE_GRACE)")
      ->type_name("TIME");
  app.add_option("--timeout", words.timeout, "end the job after this time (never)")
      ->type_name("TIME");
  app.add_flag("--dry-run", words.dry_run,
               "print rank -> host -> cores and the command; start nothing");
}

std::vector<launch::OptionWord> option_words(const CLI::App& app) {
  std::vector<launch::OptionWord> known;
  for (const CLI::Option* option : app.get_options()) {
    const bool takes_value = option->get_items_expected_max() > 0;
    for (const std::string& name : option->get_snames()) known.push_back({name, takes_value});
    for (const std::string& name : option->get_lnames()) known.push_back({name, takes_value});
  }
  return known;
}

std::chrono::milliseconds milliseconds_of(std::chrono::nanoseconds span) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365 * 10);
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::min(span, kLongest));
}

std::chrono::milliseconds duration_of(const char* option, const std::string& text) {
  return milliseconds_of(parse_duration(option, text));
}

/// The setting of that name, which the ranks get as well.
std::chrono::milliseconds failure_grace_of(const std::string& option, Environment& environment) {
  if (!option.empty()) {
    environment["TUTTI_FAILURE_GRACE"] =
        fmt::format("{}ms", duration_of("--failure-grace", option).count());
  }
  return milliseconds_of(Config({}, environment).duration(Setting::failure_grace));
}

void parse(CLI::App& app, std::vector<std::string> options) {
  std::reverse(options.begin(), options.end());  // CLI11 takes them from the back
  try {
    app.parse(options);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ParseError& error) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->count() < 2) continue;
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} is given {} times, with {}: give it once", option->get_name(false, true),
                      option->count(), fmt::join(option->results(), " and ")));
    }
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
}

}  // namespace

int run_command(std::span<const std::string> words) {
  CLI::App app(kExamples, "tutti run");
  Words parsed;
  declare(app, parsed);
  const launch::CutArguments cut = launch::cut_arguments(words, option_words(app));
  try {
    parse(app, cut.options);
  } catch (const CLI::CallForHelp&) {
    const std::string text = app.help();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  if (cut.command.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no program given: tutti run [options] [--] PROGRAM [arguments...]; tutti run "
                "--help shows examples");
  }
  const bool count_given = app.get_option("-n")->count() > 0;
  if (!count_given) {
    const std::string late = launch::explain_late_count(cut.command);
    if (!late.empty()) throw Error(ErrorCode::kInvalidArgument, late);
  }
  launch::JobOptions options;
  options.rank_count = launch::parse_rank_count(parsed.count, usable_cores());
  options.command = cut.command;
  options.environment = read_environment();
  options.grace = duration_of("--grace", parsed.grace);
  options.failure_grace = failure_grace_of(parsed.failure_grace, options.environment);
  if (parsed.timeout != "never") options.timeout = duration_of("--timeout", parsed.timeout);
  if (parsed.dry_run) {
    const std::string text = launch::describe_job(options);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  return launch::run_job(options);
}

}  // namespace tutti::cli
