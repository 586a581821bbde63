#include "control/judge/decider.h"

#include <algorithm>

namespace tutti::control {

Clock::time_point due_to_decide(SlotIndex own, const std::vector<RankFacts>& ranks,
                                Clock::time_point first_death) noexcept {
  const auto lives = [](const RankFacts& facts) {
    return facts.is_running && !facts.has_ended && !facts.is_lost;
  };
  const auto before_own = ranks.begin() + own.value;
  const bool is_decider = std::none_of(ranks.begin(), before_own, lives);
  return first_death + (is_decider ? kFreeze : kOvertake);
}

bool awaits_cause(ErrorCode own, std::chrono::nanoseconds waited, bool somebody_died) noexcept {
  // The verdict takes 40 ms; longer if the decider is stopped or the machine is busy.
  constexpr std::chrono::seconds kVerdict{3};
  constexpr std::chrono::milliseconds kAfterALoss{1500}, kMayFollow{500};
  const bool may_follow =
      own == ErrorCode::kSystem || own == ErrorCode::kTimeout || own == ErrorCode::kAborted;
  const std::chrono::milliseconds budget = own == ErrorCode::kPeerLost ? kAfterALoss
                                           : may_follow                ? kMayFollow
                                                        : std::chrono::milliseconds(0);
  return waited < budget || (waited < kVerdict && somebody_died);
}

}  // namespace tutti::control
