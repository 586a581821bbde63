// What scripts with one fault end in when nothing but the plan decides it: real ranks must be told
// the same (real/).
#pragma once

#include <nlohmann/json.hpp>

#include "simulate/round.h"

namespace tutti::simulate {

/// Makes a script that real ranks can run of a drawn plan: times that real cores keep to, and a
/// death or a stop at the step of the plan in which it was found. Then as `expect`. "left out" also
/// where there is not one fault, or none that does anything.
nlohmann::json expect_drawn(Plan plan);

/// Simulates the plan in several interleavings, with ranks a little late here and there.
///
/// Answers with "seed" and "script", and with one of
///   "violation": what one of the simulations has violated; "script" is that one,
///   "left out": why its end depends on the moment,
///   "told": by rank what all simulations have told it (told.h). Calls that end in several ways are
///   left out; "calls left out" says how many.
nlohmann::json expect(const Plan& plan);

/// Looks in many more interleavings for one in which all are told what real ranks were: `told`, by
/// rank, of their groups, and of `unlike`, a list of [rank, "step 5"], the calls. Answers with
/// "explained": that interleaving as a script, or with "unexplained": how many there were.
nlohmann::json explain(const Plan& plan, const nlohmann::json& told, const nlohmann::json& unlike);

}  // namespace tutti::simulate
