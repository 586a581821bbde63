// Which rank runs where, and what its environment says.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "launch/binding.h"

namespace tutti::launch {

/// One rank's place.
struct Place {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  Binding binding;   ///< what it may use
  std::string gpus;  ///< CUDA_VISIBLE_DEVICES for it; empty: what is inherited
};

/// The ranks of one host.
struct Placement {
  std::vector<Place> ranks;  ///< by local rank
  int world_size = 0;
  int host_index = 0, host_count = 1;
};

/// `ranks`: those that the host called `host` gets, ascending, each with its binding.
Placement place_on_host(const std::vector<int>& ranks, const std::string& host,
                        const std::vector<Binding>& bindings);

/// What `tutti run` adds to the environment of every rank unless it is set there already.
struct ThreadDefaults {
  Environment added;   ///< OMP_NUM_THREADS, OMP_WAIT_POLICY
  std::string notice;  ///< one line for people; empty when nothing was added
};
/// For a rank that shares so many cores with so many ranks, itself included.
ThreadDefaults thread_defaults(const Environment& inherited, int cores, int sharers);

/// MASTER_PORT where it was set for this job, and not by an outer torchrun, whose own store is
/// there; else 0.
/// Errors    kInvalidArgument: it is no port.
int master_port(const Environment& inherited);

/// What ranks of a host are told.
struct JobFacts {
  std::string agent;           ///< TUTTI_AGENT: where they meet
  std::string master_address;  ///< for programs that insist on one
  int master_port = 0;
  std::string run_id;
  std::string role;  ///< of all ranks: ROLE_NAME
  int restart_count = 0, max_restarts = 0;
  std::string error_file = {};  ///< of the rank; empty: there is none
};

/// The environment of one rank: `inherited` plus torchrun's variables plus TUTTI_AGENT.
Environment rank_variables(const Environment& inherited, const Placement& placement, int local_rank,
                           const JobFacts& job);

}  // namespace tutti::launch
