// One job from its first fork to its exit code: the launcher's loop.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/binding.h"
#include "launch/log_files.h"
#include "launch/output.h"
#include "launch/placement.h"

namespace tutti::launch {

struct JobOptions {
  int rank_count = 1;
  std::vector<std::string> command;                  ///< program and its arguments
  Environment environment;                           ///< the launcher's environment
  std::string folder;                                ///< where ranks start; empty: here
  std::string master_address;                        ///< MASTER_ADDR; empty: 127.0.0.1
  std::optional<int> master_port;                    ///< MASTER_PORT; none, or 0: a free choice
  std::chrono::milliseconds grace{30'000};           ///< from the request to end until SIGKILL
  std::chrono::milliseconds failure_grace{5'000};    ///< what survivors of a failure have
  std::optional<std::chrono::milliseconds> timeout;  ///< of all attempts together
  int max_restarts = 0;          ///< how often all ranks are started again after a failure
  std::string run_id;            ///< TORCHELASTIC_RUN_ID
  std::string role = "default";  ///< ROLE_NAME
  BindTo bind_to = BindTo::none;
  MapBy map_by = MapBy::slot;
  int gpus_per_rank = 0;          ///< each rank sees so many of the GPUs, its own; 0: all see all
  bool reports_bindings = false;  ///< says where each rank is
  OutputStyle style;
  LogPlan logs;
};

/// What --dry-run prints: rank -> host -> cores, what is added to the environment, the command.
/// Throws like run_job where the program cannot be started.
std::string describe_job(const JobOptions& options);

/// Runs a job on this host and returns its exit code. Call it while the process has one thread; it
/// leaves the process with all signals blocked.
///
/// Errors  kInvalidArgument: the program cannot be started. kSystem: limits.
int run_job(const JobOptions& options);

}  // namespace tutti::launch
