#include "arguments.h"

#include <cstdio>

namespace {

constexpr const char* kHelp =
    R"(Trains a small convolutional network on Fashion-MNIST, on all ranks of a job.

  tutti run -n 4 ./fashion_mnist                               4 processes
  tutti run -n 4 ./fashion_mnist --checkpoint run.pt           Ctrl-C saves
  tutti run -n 4 ./fashion_mnist --checkpoint run.pt --resume  and this goes on

  --data DIR         folder with the four IDX files (%s)
  --epochs N         passes over the training images (%zu)
  --batch N          images per step, over all ranks (%zu)
  --lr X             learning rate at the start; it falls to 0 linearly (%g)
  --seed N           for weights, order and dropout (%zu)
  --device NAME      cpu (default), or cuda: the ranks of a host take its devices in turn
  --compress TYPE    send gradients as bf16 or f16: half the bytes, for ranks on several hosts
  --limit N          use only the first N training images
  --checkpoint FILE  on Ctrl-C or SIGTERM, save everything here and end
  --checkpoint-every N   save there every N steps, too
  --resume           go on from the checkpoint; tutti run --max-restarts does so by itself
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
                     {.program = "fashion_mnist",
                      .print_help = print_help,
                      .options = {{"--data", &arguments.data},
                                  {"--epochs", &arguments.epochs},
                                  {"--compress", Choice{&arguments.compress, {"bf16", "f16"}}},
                                  {"--limit", &arguments.limit}}},
                     &arguments);
  return arguments;
}
