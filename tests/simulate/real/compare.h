// One script run by real ranks, and how what they were told differs from what simulated ones were.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "simulate/real/hosts.h"
#include "simulate/round.h"

namespace tutti::simulate {

enum class RanksAs : std::uint8_t {
  processes,  ///< as the plan shares them out
  threads,    ///< all of one process
};

struct Run {
  nlohmann::json told;                   ///< by rank, in the form of expect.h
  std::vector<std::string> differences;  ///< from what was expected; and what the programs found
  nlohmann::json unlike = nlohmann::json::array();  ///< the calls among them: [rank, "step 5"]
  bool is_explainable = true;                       ///< they are all of what ranks were told
  int calls = 0;                                    ///< that were compared
};

/// Runs the script of an expectation (expect.h). All processes that it starts have ended when it
/// returns. The caller has one thread. `hosts`: of a script with several; the caller is on the
/// first one.
Run run_real(const nlohmann::json& expectation, RanksAs as, const Hosts* hosts);

}  // namespace tutti::simulate
