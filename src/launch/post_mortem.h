// The last screen of a failed job: who, where, how, what it was doing, what it said last.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/outcome.h"

namespace tutti::launch {

/// What is known of one rank at the end.
struct RankReport {
  int rank = 0;
  pid_t pid = 0;
  agent::RankExit exit;
  std::vector<std::string> last_lines;  ///< what it printed last
};

struct JobReport {
  std::string host;
  std::chrono::nanoseconds lasted{0};
  agent::Ending ending;
  int exit_code = 0;
  std::vector<RankReport> ranks = {};
  std::vector<std::string> restarts = {};  ///< the reason of each, in order
  int kept_down_by = 0;  ///< the signal without which the ranks would start again; 0: none
};

/// Lines without line ends; empty for a job that ended well.
std::vector<std::string> post_mortem(const JobReport& report, const agent::Outcome& outcome);

/// Why all ranks are started again, in a line: "rank 1 (pid 7): killed by SIGKILL after 2.3 s".
std::string reason_of(const JobReport& report, const agent::Outcome& outcome);

/// "2.3 s", "1 h 04 min".
std::string format_span(std::chrono::nanoseconds span);

}  // namespace tutti::launch
