// Why a spawn failed, as an Error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/outcome.h"
#include "spawn/job.h"
#include "tutti/error.h"

namespace tutti::spawning {

/// How a job ended. Borrowed.
struct Ended {
  const JobOptions& options;
  const Reports& reports;
  const std::vector<RankState>& states;
  const agent::Outcome& outcome;
  EndedBy by = EndedBy::nobody;
  const std::string& why;  ///< in words, where it was ended
  bool has_keeper_died = false;
  pid_t stopped_keeper = 0;  ///< it was found stopped as the ranks were to end; 0: it was not
  const std::string& left;   ///< what could not be removed; empty: nothing
};

/// Empty: all ended well.
std::optional<Error> failure_of(const Ended& ended);

/// "killed by SIGKILL", "threw: out of range": how that rank ended, after "rank 3 (pid 4711) ".
std::string fate_of(const Ended& ended, int rank);

}  // namespace tutti::spawning
