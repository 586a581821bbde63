// tutti run: words of torchrun and mpirun become the options of one job.
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "command.h"
#include "launch/arguments.h"
#include "launch/job.h"
#include "run_words.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

void print(std::FILE* file, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), file);
}

}  // namespace

int run_command(std::span<const std::string> words) {
  RunWords parsed;
  const launch::CutArguments cut = launch::cut_arguments(words, parsed.known());
  const Environment environment = read_environment();
  if (!parsed.parse(cut.options, environment)) {
    print(stdout, parsed.help());
    return 0;
  }
  if (cut.command.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no program given: tutti run [options] [--] PROGRAM [arguments...]; tutti run "
                "--help shows examples");
  }
  if (!parsed.names_ranks()) {
    const std::string late = launch::explain_late_count(cut.command);
    if (!late.empty()) throw Error(ErrorCode::kInvalidArgument, late);
  }
  std::vector<std::string> notes;
  const launch::JobOptions options = parsed.job(cut.command, environment, &notes);
  for (const std::string& note : notes) print(stderr, note + "\n");
  if (parsed.is_dry_run()) {
    print(stdout, launch::describe_job(options));
    return 0;
  }
  return launch::run_job(options);
}

}  // namespace tutti::cli
