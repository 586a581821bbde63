// Times and counts in words for people.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/types.h"

namespace tutti::control {

std::string seconds(std::chrono::nanoseconds duration);  ///< "0.05 s"
std::string budget_text(const Deadline& deadline);       ///< the same, of the time it was given
std::string times_text(std::uint64_t count, std::string_view what);  ///< "1 op", "2 ops"

}  // namespace tutti::control
