// The command line of a training program.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <variant>
#include <vector>

/// What every training program is told.
struct TrainingArguments {
  std::size_t batch = 0;  ///< samples of a step, over all ranks
  double learning_rate = 0;
  std::size_t seed = 1;
  std::string device = "cpu";  ///< device.h
  std::string checkpoint;
  std::size_t checkpoint_every = 0;  ///< steps; 0: only when asked to end
  bool resume = false;

  std::string command;  ///< as it was typed, without --resume
};

/// A word out of several.
struct Choice {
  std::string* word;
  std::vector<std::string> of;
};

/// Where the value of an option goes. Numbers must be above 0.
using OptionTarget = std::variant<std::string*, std::size_t*, double*, Choice>;

struct CommandLine {
  const char* program;
  void (*print_help)();
  std::map<std::string, OptionTarget> options;  ///< besides those that fill TrainingArguments
};

/// Fills in what the options point at. Prints help, or what is wrong, and exits where there is
/// nothing to run. Started again after a failure by `tutti run --max-restarts`, it resumes as soon
/// as there is a checkpoint.
void parse_command_line(int argc, char** argv, CommandLine line, TrainingArguments* arguments);
