// What the relay of a host says of its ranks, and how a rank of another host asks for it: pure
// values and their bytes, little-endian, bounded, and checked field by field.
//
// A report is *stamped* with the clock of the host that it comes from, which all relays of that
// host share: of two reports the one with the later stamp was read later, whichever came first.
// Nothing else is done with a stamp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/judge/deadlock.h"
#include "control/judge/facts.h"

namespace tutti::control {

/// One rank and one group. The culprits of a failure are ranks of the world here.
struct Report {
  WorldRank rank{0};
  std::uint64_t stamp = 0;
  bool has_left = false;  ///< the world, in order
  GroupId group = 0;      ///< 0: nothing is said of a group
  std::optional<LineFacts> line = {};
  std::vector<MeetingFacts> meetings = {};  ///< `failed`: see encode
  /// What its program waits for, if that was asked: group 0. `since`: by the clock of its host.
  std::optional<WaitFacts> wait = {};
  Clock::duration wait_age = {};  ///< when that was encoded
  /// When it was asked for, by the clock of who asked; 0: it comes unasked.
  std::int64_t asked = 0;
};

struct Question {
  WorldRank rank{0};
  GroupId group = 0;       ///< 0: what its program waits for
  std::int64_t asked = 0;  ///< by the own clock
};

/// `now`: of the host that reports. A time of one host says nothing on another, so it goes as an
/// age.
std::string encode(const Report& report, Clock::time_point now);
std::string encode(const Question& question);

/// None: this is nothing of a world of that size. Takes memory in proportion to `bytes`. The times
/// of meetings are never later than they were; of a report that comes unasked they are long past.
std::optional<Report> decode_report(std::string_view bytes, int world_size);
std::optional<Question> decode_question(std::string_view bytes, int world_size);

}  // namespace tutti::control
