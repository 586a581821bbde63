// Whether a verdict was true: what it says of its culprits against what they have done.
#pragma once

#include <string>

#include "simulate/program.h"

namespace tutti::simulate {

/// `since`: when its judge may have read the first of its facts. Empty: it was true.
std::string why_untrue(const Happened& happened, const control::Verdict& verdict,
                       Clock::time_point since);

/// At the end: of those that have closed a group well, all have called the same in it.
std::string why_unequal(const Happened::Group& group);

/// At the end: two ranks have waited for each other's messages until their time was over, and
/// nobody has seen the circle.
std::string why_unseen(const Happened& happened);

}  // namespace tutti::simulate
