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
Manual run_manual() {
  const RunWords words;
  return {
      .name = "tutti run",
      .summary = "start a program on several ranks and see it through",
      .usage = "[options] [--] PROGRAM [arguments...]",
      .operand = "PROGRAM",
      .examples = {{"tutti run -n 4 ./train --epochs 3", "four ranks on this host"},
                   {"tutti run --nproc-per-node=auto ./train", "one rank per core"},
                   {"tutti run -n 2 train.py", "Python; it finds RANK, WORLD_SIZE, ..."},
                   {"tutti run -n 4 --timeout 10min ./train",
                    "give up after ten minutes (exit code 124)"},
                   {"tutti run -n 4 --dry-run ./train", "say what would be started, and where"}},
      .paragraphs =
          {"Starts a program on several ranks, prints their output as whole lines, and ends with "
           "the exit code of the rank that failed first (128 + signal if it was killed). No "
           "process of the job outlives it. Rank 0 reads what tutti run gets on stdin; the others "
           "find it empty.",
           "Words may have one dash or two, and dashes or underscores in them; torchrun's are also "
           "taken from its variables, PET_NPROC_PER_NODE and the like. Taken, and without meaning "
           "here: " +
               RunWords::meaningless() + "."},
      .groups = words.groups(),
      .hidden = words.hidden(),
      .sections = {{"Exit codes",
                    {"The root cause's own; 1 what ranks have printed to stdout is lost, 2 wrong "
                     "usage, 3 the ranks did not all meet, 124 timeout."}},
                   {"Signals",
                    {"INT TERM HUP QUIT USR1 USR2 CONT TSTP are handed on to the ranks; a second "
                     "Ctrl-C kills them."}}}};
}

int run_command(std::span<const std::string> words) {
  RunWords parsed;
  const launch::CutArguments cut = launch::cut_arguments(words, parsed.known());
  const Environment environment = read_environment();
  if (!parsed.parse(cut, environment)) {
    print(help_text(run_manual()));
    return 0;
  }
  std::vector<std::string> notes;
  const launch::JobOptions options = parsed.job(cut.command, environment, &notes);
  if (cut.command.empty()) {  // and no value was the program: `-n ./train` has been refused
    throw Error(ErrorCode::kInvalidArgument,
                "no program given: tutti run [options] [--] PROGRAM [arguments...]; tutti run "
                "--help shows examples");
  }
  if (const std::string late = launch::explain_late_count(cut);
      !late.empty() && !parsed.knows_ranks(environment)) {
    notes.push_back("tutti run: " + late);
  }
  for (const std::string& note : notes) std::fprintf(stderr, "%s\n", note.c_str());
  if (parsed.is_dry_run()) {
    print(launch::describe_job(options));
    return 0;
  }
  return launch::run_job(options);
}

}  // namespace tutti::cli
