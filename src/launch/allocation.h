// How many ranks the batch system has set this host aside for.
#pragma once

#include <optional>
#include <string>

#include "base/config.h"

namespace tutti::launch {

struct Allocation {
  int ranks = 1;
  std::string source;  ///< "SLURM_NTASKS=4 of Slurm's job 7"
};

/// Empty: this process is in no allocation, or a rank of another launcher in it. A step of one task
/// is one, too.
///
/// Errors  kInvalidArgument: the allocation has several nodes; this process is one of several of a
///         step; a number that is none, or more than a host holds. Each with what will do.
std::optional<Allocation> find_allocation(const Environment& variables);

/// For who gives the number of ranks: the sentence that says so when srun has started this command
/// several times, of which each is a job. In the first of them alone; else empty.
std::string explain_several_starts(const Environment& variables);

}  // namespace tutti::launch
