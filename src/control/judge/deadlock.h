// The judge of deadlocks: ranks whose programs wait for each other, so that none ever goes on.
//
// A rank's program *waits* if its only thread that calls the world does. A wait has *parts*, of
// which one suffices (wait_any has several); a part awaits the programs of all or of any of some
// ranks. A rank is *stuck* if all whom it could go on with are stuck too. A *knot* is a set of
// stuck ranks that await nobody outside of it: a circle, or what a receive from any rank makes of
// one. The stuck ranks around it wait for the knot.
//
// What somebody sends may be on its way to a rank that sleeps, or is stopped. So a knot counts only
// if each of its ranks has looked at everything that came *after* the knot was seen, and still
// waits as before: then nobody in it has sent anything since.
//
// Between hosts it may also be on its way over a network. A rank counts no look while one of
// another host has yet to read what it sent, or while what it knows of those whom it awaits was
// asked for before its last look. Once all ranks of a knot have looked, everything was read; so
// they must then look once more.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/judge/clock.h"
#include "control/judge/facts.h"

namespace tutti::control {

/// A knot must have lasted through so many looks of each of its ranks: the first one may have begun
/// before the knot was seen, and so may the visit of the progress thread that the second relies on.
inline constexpr std::uint64_t kLooksOfAKnot = 3;

struct WaitPart {
  GroupId group = 0;
  bool makes_group = false;             ///< it awaits members of a group that is made
  bool one_suffices = false;            ///< of `awaited`
  Shown what = {};                      ///< the operation; its ranks are those of the group
  std::vector<WorldRank> awaited = {};  ///< ascending
  /// When the oldest of the answers was asked for by which they are awaited. The owner's.
  Clock::time_point as_of = Clock::time_point::max();
  /// Of a rank on another host, whose board tells more than `what`; else "".
  std::string words = {};
  bool operator==(const WaitPart& other) const noexcept;
};

/// What a rank of the world shows of its program.
struct WaitFacts {
  bool is_running = true;            ///< it has come, and neither left nor ended
  bool is_elsewhere = false;         ///< on another host than who looks
  bool has_several_threads = false;  ///< that have called this world
  /// Grows when anything changes; 0: it does not wait, or that cannot be read.
  std::uint64_t version = 0;
  /// Grows when it has looked at all that has come, and nothing has changed.
  std::uint64_t looks = 0;
  Clock::time_point since = {};
  /// If it waits: at least one, and each awaits somebody; only ranks of which there are facts.
  std::vector<WaitPart> parts = {};
};

struct Knot {
  struct Link {
    WorldRank rank{0};
    std::vector<WorldRank> awaited;  ///< of the knot
  };
  /// Each awaits the next and the last the first, if they are a circle; else ascending. The first
  /// is the lowest.
  std::vector<Link> links;

  bool is_circle() const noexcept;
  std::vector<WorldRank> ranks() const;  ///< ascending
};

/// All knots among ranks of the world; of two circles with a rank in common one.
std::vector<Knot> find_knots(const std::vector<WaitFacts>& facts);

/// The groups in which the ranks of a knot wait, each once: one of every rank first, so that the
/// first ones tell all of them.
std::vector<GroupId> groups_of(const Knot& knot, const std::vector<WaitFacts>& facts);

/// What is remembered between two looks for knots.
struct DeadlockClock {
  struct Seen {
    WorldRank rank{0};
    std::uint64_t version = 0, looks = 0;
    Clock::time_point since = {};
  };
  std::vector<Seen> seen = {};  ///< the knot, as it was seen first, or had arrived
  bool has_arrived = false;     ///< all of it that went from host to host
  std::vector<Seen> told = {};  ///< the one that was found last
};

/// The knot whose lowest rank is `rank`, once it has lasted for `lasting` and been confirmed; each
/// once.
std::optional<Knot> look_for_deadlock(WorldRank rank, const std::vector<WaitFacts>& facts,
                                      DeadlockClock& clock, Clock::time_point now,
                                      std::chrono::nanoseconds lasting);
/// Whether the ranks of the knot that was seen still wait as they did.
bool still_stands(const DeadlockClock& clock, const std::vector<WaitFacts>& facts);

struct AwaitedMembers {
  std::vector<int> members = {};
  std::vector<int> known_by = {};  ///< from whose facts that follows
};
/// The members without whose program the collective `seq` of this rank cannot end: those that have
/// not called it. `needs_all`: it needs all members, else those that it was seen to wait for, and
/// whom they wait for in turn. Nobody: its data are on their way, or that cannot be said.
AwaitedMembers awaited_in(const GroupFacts& facts, std::uint64_t seq, bool needs_all);
/// Whether the result of a collective needs all members, for whichever rank.
bool needs_all(Op op) noexcept;
/// The same for `rank`.
bool needs_all(const Request& request, int rank) noexcept;
/// Those from whom a message to this rank may still come: all that have not left, or this rank if
/// it is alone.
std::vector<int> possible_senders(const GroupFacts& facts);

}  // namespace tutti::control
