// The subcommands of `tutti`, one file each: parse, call one function, print.
//
// A subcommand gets the words behind its name and returns the exit code. It throws tutti::Error;
// kInvalidArgument becomes the exit code for wrong usage.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tutti::cli {

inline constexpr int kUsageError = 2;

int run_command(std::span<const std::string> words);
int env_command(std::span<const std::string> words);
int backends_command(std::span<const std::string> words);

/// What stands in files of its own and is found here: plugins of backends, and torch.
std::vector<std::string> parts_beside();

}  // namespace tutti::cli
