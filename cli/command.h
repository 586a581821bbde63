// The subcommands of `tutti`, one file each: parse, call one function, print.
//
// A subcommand gets the words behind its name and returns the exit code. It throws tutti::Error;
// kInvalidArgument becomes the exit code for wrong usage.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "manual.h"

namespace tutti::cli {

inline constexpr int kUsageError = 2;

struct Command {
  const char* name;
  Manual (*manual)();
  int (*run)(std::span<const std::string> words);
};
std::span<const Command> commands();
/// Of `tutti` itself: its subcommands are its words.
Manual manual_of_tutti();

Manual run_manual();
int run_command(std::span<const std::string> words);
Manual env_manual();
int env_command(std::span<const std::string> words);
Manual backends_manual();
int backends_command(std::span<const std::string> words);
Manual completion_manual();
int completion_command(std::span<const std::string> words);
Manual man_manual();
int man_command(std::span<const std::string> words);

/// To standard output. Throws Error(kSystem): it is lost.
void print(const std::string& text);
/// The subcommand of that name. Throws Error(kInvalidArgument), with a guess.
const Command& command_named(const std::string& word);

/// What stands in files of its own and is found here: plugins of backends, and torch.
std::vector<std::string> parts_beside();

}  // namespace tutti::cli
