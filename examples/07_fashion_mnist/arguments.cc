#include "arguments.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

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
  --seed N           for weights, order and dropout (%llu)
  --limit N          use only the first N training images
  --checkpoint FILE  on Ctrl-C or SIGTERM, save everything here and end
  --checkpoint-every N   save there every N steps, too
  --resume           go on from the checkpoint; tutti run --max-restarts does so by itself
)";

void print_help() {
  const Arguments defaults;
  std::printf(kHelp, defaults.data.c_str(), defaults.epochs, defaults.batch, defaults.learning_rate,
              static_cast<unsigned long long>(defaults.seed));
}

[[noreturn]] void misused(const std::string& what) {
  std::fprintf(stderr, "fashion_mnist: %s; --help lists the options\n", what.c_str());
  std::exit(2);
}

double positive(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (*end == '\0' && number > 0 && number < 1e15) return number;
  misused(name + " wants a number above 0, not '" + value + "'");
}

std::size_t positive_whole(const std::string& name, const std::string& value) {
  const double number = positive(name, value);
  const auto whole = static_cast<std::size_t>(number);
  if (static_cast<double>(whole) == number) return whole;
  misused(name + " wants a whole number, not '" + value + "'");
}

}  // namespace

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  arguments.command = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      print_help();
      std::exit(0);
    }
    if (name == "--resume") {
      arguments.resume = true;
      continue;
    }
    if (i + 1 == argc) misused(name + " is unknown or wants a value");
    const std::string value = argv[++i];
    arguments.command += " " + name + " " + value;
    if (name == "--data") {
      arguments.data = value;
    } else if (name == "--epochs") {
      arguments.epochs = positive_whole(name, value);
    } else if (name == "--batch") {
      arguments.batch = positive_whole(name, value);
    } else if (name == "--lr") {
      arguments.learning_rate = positive(name, value);
    } else if (name == "--seed") {
      arguments.seed = positive_whole(name, value);
    } else if (name == "--limit") {
      arguments.limit = positive_whole(name, value);
    } else if (name == "--checkpoint-every") {
      arguments.checkpoint_every = positive_whole(name, value);
    } else if (name == "--checkpoint") {
      arguments.checkpoint = value;
    } else {
      misused("unknown option " + name);
    }
  }
  if (arguments.checkpoint.empty() && (arguments.resume || arguments.checkpoint_every != 0)) {
    misused("--resume and --checkpoint-every want --checkpoint FILE");
  }
  // Started again after a failure: where it was, if it had come to saving.
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (restarts != nullptr && std::atoi(restarts) > 0 && !arguments.checkpoint.empty()) {
    arguments.resume = arguments.resume || std::filesystem::exists(arguments.checkpoint);
  }
  return arguments;
}
