// The command line.
#pragma once

#include <cstddef>
#include <string>

#include "common/command_line.h"

struct Arguments : TrainingArguments {
  Arguments() {
    batch = 64;
    learning_rate = 0.001;
  }

  std::string data = "/usr/share/datasets/fashion-mnist";
  std::size_t epochs = 2;
  std::size_t limit = 0;  ///< use only so many training images; 0: all
  std::string plot;
};

/// Prints help, or what is wrong, and exits where there is nothing to run.
Arguments parse_arguments(int argc, char** argv);
