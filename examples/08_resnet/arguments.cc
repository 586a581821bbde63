#include "arguments.h"

#include <cstdio>

namespace {

constexpr const char* kHelp =
    R"(Trains ResNet-18 on Fashion-MNIST, on all ranks of a job.

  tutti run -n 4 ./resnet --plot loss.svg                 4 processes
  tutti run -n 4 ./resnet --checkpoint run.pt             Ctrl-C saves
  tutti run -n 4 ./resnet --checkpoint run.pt --resume    and this goes on

  --data DIR            folder with the four IDX files (%s)
  --epochs N            passes over the training images (%zu)
  --batch N             images per step, over all ranks (%zu)
  --lr X                learning rate at its highest; it falls to 0 (%g)
  --seed N              for weights and order (%zu)
  --device NAME         cpu (default), or cuda: the ranks of a host take its devices in turn
  --limit N             use only the first N training images
  --plot FILE           draw the loss here, as SVG, while it trains and at the end
  --checkpoint FILE     on Ctrl-C or SIGTERM, save everything here and end
  --checkpoint-every N  save there every N steps, too
  --resume              go on from the checkpoint; tutti run --max-restarts does so by itself
)";

void print_help() {
  const Arguments defaults;
  std::printf(kHelp, defaults.data.c_str(), defaults.epochs, defaults.batch, defaults.learning_rate,
              defaults.seed);
}

}  // namespace

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  parse_command_line(argc, argv,
                     {.program = "resnet",
                      .print_help = print_help,
                      .options = {{"--data", &arguments.data},
                                  {"--epochs", &arguments.epochs},
                                  {"--limit", &arguments.limit},
                                  {"--plot", &arguments.plot}}},
                     &arguments);
  return arguments;
}
