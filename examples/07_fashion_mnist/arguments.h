// The command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct Arguments {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::size_t epochs = 5;
  std::size_t batch = 128;  ///< images of a step, over all ranks
  double learning_rate = 0.002;
  std::uint64_t seed = 1;
  std::size_t limit = 0;  ///< use only so many training images; 0: all
  std::string checkpoint;
  std::size_t checkpoint_every = 0;  ///< steps; 0: only when asked to end
  bool resume = false;

  std::string command;  ///< as it was typed, without --resume
};

/// Prints help, or what is wrong, and exits where there is nothing to run.
Arguments parse_arguments(int argc, char** argv);
