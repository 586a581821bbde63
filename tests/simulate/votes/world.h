// One round: hosts that vote, the processes that speak for them, what befalls them, and what must
// hold.
//
// The machine (control/vote) is the product's own. Made up are the boards (values here), processes,
// time, connections, and what the machine is told of other hosts.
#pragma once

#include <map>
#include <string>

#include "simulate/votes/plan.h"

namespace tutti::simulate::votes {

struct Tally {
  std::uint64_t rounds = 0, steps = 0, frames = 0;
  std::map<std::string, std::uint64_t> faults;    ///< that have happened
  std::map<std::string, std::uint64_t> happened;  ///< what hosts did about it
};

/// Runs a plan. Empty: all held; else what was violated.
std::string run_round(const Plan& plan, Tally& tally);

}  // namespace tutti::simulate::votes
