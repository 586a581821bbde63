// Times as the judges count them: `now` is always given.
#pragma once

#include <chrono>

#include "tutti/types.h"

namespace tutti::control {

using Clock = Deadline::Clock;

/// The longest pause between two looks of a wait, and after a failure was found.
inline constexpr std::chrono::nanoseconds kLongestBackoff = std::chrono::milliseconds(100);

/// How long a judge waits for the answer of a member on another host before it goes by what it
/// knew, and says so: that host may be stopped. A link that is cut is found out before.
inline constexpr std::chrono::nanoseconds kAnswerComes = std::chrono::milliseconds(3500);

/// `now + duration` without overflow.
inline Clock::time_point after(Clock::time_point now, std::chrono::nanoseconds duration) noexcept {
  return Deadline::after(duration).end(now);
}

}  // namespace tutti::control
