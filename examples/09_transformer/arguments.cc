#include "arguments.h"

#include <cstdio>

namespace {

constexpr const char* kHelp =
    R"(Trains a Transformer to predict the next character of a text, on all ranks of a job.

  tutti run -n 4 ./transformer --plot loss.svg               4 processes
  tutti run -n 4 ./transformer --checkpoint run.pt           Ctrl-C saves
  tutti run -n 4 ./transformer --checkpoint run.pt --resume  and this goes on

  --text PATH           a file, or a folder of files (%s)
  --steps N             steps to train (%zu)
  --batch N             samples per step, over all ranks (%zu)
  --lr X                learning rate at its highest; it falls to 0 (%g)
  --seed N              for weights, order and dropout (%zu)
  --device NAME         cpu (default), or cuda: the ranks of a host take its devices in turn
  --limit N             use only the first N characters
  --plot FILE           draw the loss here, as SVG, while it trains and at the end
  --checkpoint FILE     on Ctrl-C or SIGTERM, save everything here and end
  --checkpoint-every N  save there every N steps, too
  --resume              go on from the checkpoint; tutti run --max-restarts does so by itself
)";

void print_help() {
  const Arguments defaults;
  std::printf(kHelp, defaults.text.c_str(), defaults.steps, defaults.batch, defaults.learning_rate,
              defaults.seed);
}

}  // namespace

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  parse_command_line(argc, argv,
                     {.program = "transformer",
                      .print_help = print_help,
                      .options = {{"--text", &arguments.text},
                                  {"--steps", &arguments.steps},
                                  {"--limit", &arguments.limit},
                                  {"--plot", &arguments.plot}}},
                     &arguments);
  return arguments;
}
