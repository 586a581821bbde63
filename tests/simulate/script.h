// Plans as files: what the simulator writes when a promise is violated, and replays.
#pragma once

#include <string>

#include "simulate/round.h"

namespace tutti::simulate {

std::string to_script(const Plan& plan);
/// Throws std::runtime_error: what is wrong with the text, and where.
Plan from_script(const std::string& text);

}  // namespace tutti::simulate
