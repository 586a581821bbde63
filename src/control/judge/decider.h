// The judges of deaths: who enters the lost ranks into the log, and when; and how long a rank that
// fails waits for the cause of which its own error may be a consequence.
#pragma once

#include <chrono>
#include <vector>

#include "base/roster.h"
#include "control/judge/clock.h"
#include "tutti/error.h"

namespace tutti::control {

/// How long the decider waits for further deaths, and how long it may say nothing before the next
/// one speaks.
inline constexpr std::chrono::milliseconds kFreeze{20};
inline constexpr std::chrono::milliseconds kOvertake{250};

/// Of a rank of the host.
struct RankFacts {
  bool is_running = false;  ///< it has come, and not left in order
  bool has_ended = false;   ///< by its mark
  bool is_lost = false;     ///< by the log
};

/// `ranks`: by slot. When the one in slot `own` enters the losses of which the first was seen at
/// `first_death`: the lowest living rank after kFreeze, another one if that has not happened after
/// kOvertake.
Clock::time_point due_to_decide(SlotIndex own, const std::vector<RankFacts>& ranks,
                                Clock::time_point first_death) noexcept;

/// Whether a rank that has failed with an error of its own, `waited` ago, still waits for a cause:
/// longer after it has seen another rank go, and until the verdict if somebody has died.
bool awaits_cause(ErrorCode own, std::chrono::nanoseconds waited, bool somebody_died) noexcept;

}  // namespace tutti::control
