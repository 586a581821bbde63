// The judge of a group that is being made, whose members do not all come.
//
// Two members that ask the same group for different ones, each of which holds both, would wait for
// each other for ever: a group makes one group at a time. They find each other's line by the group
// that was asked and its members. The first to find it sees who has come to which, and names all
// sides but the largest; its verdict fails all groups that await somebody who has come.
//
// One that is slow may still stand in a meeting that a failure has ended for everybody else. So a
// member has asked for another group only if it goes on waiting there after it has looked at what
// has happened: it counts its looks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "control/judge/clock.h"
#include "control/judge/facts.h"
#include "control/judge/finding.h"

namespace tutti::control {

/// What one meeting remembers between two looks.
struct MeetingClock {
  Deadline deadline = {};
  Clock::time_point began = {}, next_line = {};
  Clock::time_point due = Clock::time_point::max();  ///< the deadline, once it has passed
  struct Seen {
    GroupId group = 0;
    std::uint64_t looks = 0;
  };
  std::map<int, Seen> seen = {};  ///< by member: its other meeting, when that was first found
};

/// Which group is being made, and how its parent fares.
struct MeetingQuestion {
  GroupId group = 0;
  GroupId asked_of = 0;                     ///< 0: a world
  std::vector<WorldRank> world_ranks = {};  ///< by rank of the group
  std::vector<int> left_parent = {};        ///< members that have said goodbye to it, ascending
  bool parent_failed = false;
};

struct MeetingLook {
  Clock::time_point next = {};
  std::optional<Finding> finding = {};
  bool ends_with_parent = false;
  bool is_disputed = false;       ///< a member makes another group that awaits this rank, too
  std::vector<int> awaited = {};  ///< time for a line that says who is awaited
  std::vector<int> ask = {};      ///< members whose facts may be older than the question
};

/// `left_parent` is read before the facts: who has said goodbye has come before, or never will.
/// The facts are read before `parent_failed`: a member that left because the parent failed is no
/// cause.
MeetingLook look_at_meeting(const MeetingQuestion& question, const GroupFacts& facts,
                            MeetingClock& clock, Clock::time_point now);

}  // namespace tutti::control
