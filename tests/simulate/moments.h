// Moments that chance hardly ever meets, made on purpose.
#pragma once

#include "simulate/random.h"
#include "simulate/round.h"

namespace tutti::simulate {

/// Steps and faults of a plan that has none yet. False: its ranks or hosts are too few for the
/// moment that was drawn, and nothing has been added.
bool add_moment(Plan& plan, Random& random);

}  // namespace tutti::simulate
