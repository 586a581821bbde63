// The judge of one wait that has become long: do the members disagree, has somebody left, who is
// missing, does anything move. The order of the questions is the order of blame.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/wait.h"
#include "control/judge/clock.h"
#include "control/judge/facts.h"
#include "control/judge/finding.h"

namespace tutti::control {

/// What one wait of one operation remembers between two looks.
struct WaitClock {
  Deadline arrive, stall;
  std::uint64_t progress_seen = 0;
  Clock::time_point began = {}, next_line = {};
  std::chrono::nanoseconds backoff{5'000'000};
  bool matched = false;     ///< messages: the peer is there; from now on `stall` counts
  bool more_comes = false;  ///< messages: who may have left still holds some for this rank
  bool in_flight = false;   ///< messages: who may have left has sent what has yet to be read here
  bool peer_left = false;   ///< seen once: look at the data again before saying so
  Clock::time_point due = Clock::time_point::max();  ///< since when somebody could be named

  /// The first look of the wait; a later one changes nothing.
  void begin(const Request& request, Clock::time_point now,
             std::chrono::nanoseconds first_line_after) noexcept;
  /// When to look again if nothing else is due.
  Clock::time_point back_off(Clock::time_point now) noexcept;
};

/// The time that the members have for entering an operation, which may wait several times.
struct ArriveClock {
  std::uint64_t seq = 0;
  Deadline left;
};

struct Look {
  Patience::Verdict verdict = Patience::Verdict::keep_waiting;
  Clock::time_point next = {};          ///< when to look again
  std::optional<Finding> finding = {};  ///< the group has failed
  std::vector<int> awaited = {};        ///< time for a line that says who is awaited
  std::vector<int> ask = {};            ///< members who may have gone on since their facts
};

/// Judges the wait of `request` for `awaited` (a rank of the group, or -1: all).
Look look(const Request& request, int awaited, const GroupFacts& facts, WaitClock& clock,
          ArriveClock& arrive, Clock::time_point now);

/// Nothing moves: names those that have not ended the operation, or `only` (-1: all of them).
Finding stalled_in(const Request& request, int only, const GroupFacts& facts);

}  // namespace tutti::control
