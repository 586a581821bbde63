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

/// Before the next look at all that is under way, after one that has computed for so long. With
/// thousands of operations looking must not be all that is done. A stop is no computing: who was
/// stopped in a look must not be late again.
constexpr std::chrono::nanoseconds pause_after(std::chrono::nanoseconds look) noexcept {
  constexpr std::chrono::nanoseconds kMost = std::chrono::seconds(1);
  return look < kMost / 10 ? 10 * look : kMost;
}

/// `now + duration` without overflow.
inline Clock::time_point after(Clock::time_point now, std::chrono::nanoseconds duration) noexcept {
  return Deadline::after(duration).end(now);
}

}  // namespace tutti::control
