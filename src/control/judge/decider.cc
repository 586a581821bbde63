#include "control/judge/decider.h"

namespace tutti::control {

Clock::time_point due_to_decide(int rank, const std::vector<RankFacts>& ranks,
                                Clock::time_point first_death) noexcept {
  int decider = 0;
  const auto lives = [&](int each) {
    const RankFacts& facts = ranks[static_cast<std::size_t>(each)];
    return facts.is_running && !facts.has_ended && !facts.is_lost;
  };
  while (decider != rank && !lives(decider)) ++decider;
  return first_death + (decider == rank ? kFreeze : kOvertake);
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
