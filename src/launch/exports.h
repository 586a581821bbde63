// mpirun's -x: variables for the ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/config.h"

namespace tutti::launch {

/// Ranks get the whole environment of the launcher, so NAME and a pattern, 'NCCL_*', change
/// nothing; NAME=VALUE sets. Returns lines for people: what is not set, and what looks like a
/// secret.
///
/// Errors  kInvalidArgument: no name; a variable that gets two values; one that `tutti run` sets
///         itself.
std::vector<std::string> export_variables(std::span<const std::string> words,
                                          Environment& environment);

}  // namespace tutti::launch
