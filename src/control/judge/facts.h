// What is known of the members of a group: plain values, which the judges read and nothing else.
//
// A fact was true when it was read, and a later fact of the same member is never older. Two facts
// of one member may come from different moments, but in one order: the failure of a member that is
// seen to have gone was read after that. What a member on another host does may be older than the
// question (`asked`): what has happened stays so, but nothing follows from what has not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/roster.h"
#include "control/judge/clock.h"
#include "control/judge/description.h"
#include "tutti/error.h"
#include "tutti/request.h"

namespace tutti::control {

/// How many of its last collectives a member shows; collective seq is at seq % kHistory.
inline constexpr std::size_t kHistory = 4;

/// What a member does with a group.
enum class LineState : std::uint32_t {
  free,
  meeting,  ///< the owner has begun to make the group and awaits the other members there
  open,
  closing,  ///< it has said goodbye and awaits that of the others
  closed,   ///< all have said it, or the group has failed
  gave_up,  ///< some have not until the deadline
  gone,     ///< it has no such group any more
  gone_after_gave_up,
  unmade,  ///< nor ever had: the meeting failed
};
constexpr bool has_left(LineState state) noexcept { return state > LineState::open; }
/// The owner compares its goodbye with nobody's any more.
constexpr bool has_compared(LineState state) noexcept { return state >= LineState::closed; }
constexpr bool is_gone(LineState state) noexcept { return state >= LineState::gone; }
constexpr bool gave_up(LineState state) noexcept {
  return state == LineState::gave_up || state == LineState::gone_after_gave_up;
}
/// The state of a line whose group is destroyed.
constexpr LineState gone_after(LineState state) noexcept {
  if (state == LineState::meeting) return LineState::unmade;
  return gave_up(state) ? LineState::gone_after_gave_up : LineState::gone;
}

/// Why a member's group has failed, as that member tells it.
struct FailureFacts {
  ErrorCode code = ErrorCode::kInternal;
  std::vector<int> culprits = {};  ///< ranks of the group
  std::string text = {};           ///< "" if it is told elsewhere, or no longer
};

/// A member's line: what it does in the group.
struct LineFacts {
  LineState state = LineState::open;
  std::uint64_t entered = 0, completed = 0;  ///< seq of the latest collective begun, ended
  std::uint64_t queued = 0;  ///< of the latest that has been called and awaits its turn
  /// The lower half of the seq of the collective whose wait was last found to be long, and for whom
  /// it waits: a member, or -1: all.
  std::uint32_t waiting_in = 0;
  int waiting_for = -1;
  std::uint64_t goodbye_seq = 0, goodbye_chain = 0;
  std::uint64_t progress = 0;  ///< grows with the bytes moved
  std::array<std::optional<KnownCall>, kHistory> history = {};
  std::optional<FailureFacts> failure = {};
};

/// Another group that a member makes.
struct MeetingFacts {
  GroupId group = 0;
  GroupId asked_of = 0;  ///< the group that was asked for it
  std::vector<WorldRank> members;
  std::uint64_t looks = 0;  ///< begun since it meets there
  std::string words = {};   ///< the call and its line, where a host says it to others
};

struct MemberFacts {
  bool has_left_world = false;         ///< in order
  bool is_lost = false;                ///< by verdict
  std::optional<LineFacts> line = {};  ///< none: it has not made the group, or made room since
  /// When the question was put that the line answers; but for state, goodbye and failure, which
  /// come unasked. A member of this host, or one that has left the world, answers always.
  Clock::time_point asked = Clock::time_point::max();
  Clock::time_point heard = {};             ///< of a member elsewhere: when its line came
  std::vector<MeetingFacts> meetings = {};  ///< only where they were asked for
};

/// All members of one group, as one of them knows them.
struct GroupFacts {
  int rank = 0;  ///< own rank in the group
  std::vector<MemberFacts> members;

  int size() const noexcept { return static_cast<int>(members.size()); }
  const MemberFacts& of(int member) const noexcept {
    return members[static_cast<std::size_t>(member)];
  }
  const std::optional<LineFacts>& line_of(int member) const noexcept { return of(member).line; }
  /// What a member does in the group: nothing, if it has no line.
  const LineFacts& does(int member) const noexcept {
    static const LineFacts kNothing;
    return line_of(member) ? *line_of(member) : kNothing;
  }
  std::uint64_t entered(int member) const noexcept { return does(member).entered; }
  /// Whether it has left in order, the group or the world. Of one with a line that alone says so:
  /// what it did last was read after it, and the world before or after.
  bool has_gone(int member) const noexcept {
    return line_of(member) ? has_left(line_of(member)->state) : of(member).has_left_world;
  }
};

/// The collective `seq`, if a member still shows it; else null.
const KnownCall* shown_at(const LineFacts& line, std::uint64_t seq) noexcept;

}  // namespace tutti::control
