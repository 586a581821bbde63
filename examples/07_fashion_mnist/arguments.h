// The command line.
#pragma once

#include <cstddef>
#include <string>

#include "common/command_line.h"

struct Arguments : TrainingArguments {
  Arguments() {
    batch = 128;
    learning_rate = 0.002;
  }

  std::string data = "/usr/share/datasets/fashion-mnist";
  std::size_t epochs = 5;
  std::string compress;   ///< gradients travel as "bf16" or "f16"; empty: as they are
  std::size_t limit = 0;  ///< use only so many training images; 0: all
};

/// Prints help, or what is wrong, and exits where there is nothing to run.
Arguments parse_arguments(int argc, char** argv);
