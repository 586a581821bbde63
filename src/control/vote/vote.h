// How hosts agree on the entries of their world's log of verdicts: a pure state machine, one for
// each host. No thread, clock, socket or board: values go in, values and frames come out.
//
// *Hosts* vote, not processes. A host's vote lies on its board and outlives its *relay*, the
// process that speaks for the host at the moment. Every frame shows the sender's vote as it was
// written; nothing is sent that was not written before. So a frame never tells what is not so, one
// that comes late tells what was so, and there is nothing else to keep: the next relay reads the
// vote and goes on.
//
// One entry is chosen by Paxos. The lowest host left by the entry before proposes without asking,
// in round 0; every other ballot first asks a quorum and then proposes what the highest ballot
// accepted in it has proposed. A host promises and accepts nothing below what it has promised, and
// votes for no entry that it knows to be chosen.
//
// A *quorum* of a ballot is a set S of hosts, its proposer among them, that have all voted in it:
//   kind 1: more than half of all hosts left by the entry before, the dead counted in; or
//   kind 2: fewer, but each one in S had *cut off* all the others left by the entry before, when it
//           voted and had promised nothing higher.
// A host cuts another one off for good. It takes no frame from it any more, and what it sends to it
// is not taken either, since a frame shows whom its sender has cut off. It does so when the other
// one is dead or has left, when it learns that the other one has cut it off, and when it parts: it
// has reached no quorum for 2.5 s. Why it cuts off is a matter of what is said, not of safety.
//
// Claim: two hosts, of which neither has cut off the other, know no different entries k.
//
// (1) Let S be a quorum of kind 2 in ballot b. Whoever of S votes in a ballot c > b has voted in b
// before, so by then it hears S only. The proposer of c is therefore in S; it voted in b before it
// asked in c; so all votes in c that it takes come from S. Ballots above b are within S or without.
//
// (2) Let v be chosen in b by S, and P be asked in c > b and meet S. Then c proposes v. By
// induction over c: a host in both has voted in b before it promised c, so P shows an accepted
// ballot; the highest is b, or some d between, asked of Q. If Q meets S, d proposed v. If not, two
// majorities would meet, so one of the two is of kind 2. If Q is, d was accepted within Q only; its
// acceptor in P makes c a ballot within Q by (1), but P meets S. If S is, c is within S by (1), and
// so its acceptor of d, whose proposer is not in S: (1) says that nobody in S votes in such a
// ballot.
//
// (3) Let x know v, chosen in b by S, and y know w, chosen in c > b after c had asked P. If P meets
// S, v = w by (2). If not, one of them is of kind 2. If P is: c was proposed to P only, so whoever
// knows w from c is in P and has cut off all others. Unless x has been cut off by y it is in P, and
// the first in P to hear v from outside heard it before it promised c; but then it would not have
// promised. If S is: whoever knows v from b is in S, and if y is, the first in S to hear w from
// outside heard it before it voted in b; but then it would not have voted.
//
// Only hosts left by the entry before learn entry k: one that is left out stops at the entry that
// says so. (Else it could carry what one side has chosen to the other.) Those hosts are the same
// for all that can hear each other, by the claim for k - 1; (3) holds for any two of which one
// takes a frame that the other has sent.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "control/judge/clock.h"
#include "control/judge/verdict.h"
#include "control/vote/host_set.h"

namespace tutti::control {

/// How long a proposer may be silent before the next one asks; and how much later each further one.
inline constexpr std::chrono::milliseconds kVoteOvertake{250}, kVoteStagger{20};
/// How long a host that reaches no quorum waits before it parts from those that it cannot reach.
inline constexpr std::chrono::milliseconds kPart{2500};
/// After that time without an entry a host tells its own ranks what it has seen itself.
inline constexpr std::chrono::seconds kHeldUp{1};
/// How many entries a host keeps for those that are behind.
inline constexpr std::size_t kKeptEntries = 256;

/// A try to have an entry chosen. Each host has its own ones, each used for one value.
struct Ballot {
  std::uint64_t round = 0;
  int host = -1;  ///< its proposer; -1: no ballot, below all others
  auto operator<=>(const Ballot&) const = default;
  bool is_none() const noexcept { return host < 0; }
};

/// An entry of the log between hosts.
struct Entry {
  Verdict verdict;
  HostSet out;  ///< hosts that are left out from the next entry on: lost, dead, or gone in order
  bool operator==(const Entry&) const = default;
};

/// What a host has decided for itself: all that others need to know of it.
struct Vote {
  std::uint64_t number = 0;  ///< of the last entry that it knows; it votes for the next one
  Ballot promised, accepted;
  Entry value;      ///< of `accepted`
  HostSet cut_off;  ///< for good
  HostSet gone;     ///< of those: dead, or left in order, as a fact
  bool operator==(const Vote&) const = default;
};

/// What lies on a host's board. Only the relay whose term it is may write it.
struct HostVote {
  std::uint64_t term = 0;  ///< a process becomes the relay by raising it, by compare-and-swap
  Vote vote;
  HostSet hosts;                            ///< left by entry `vote.number`
  std::vector<Entry> entries = {};          ///< the last ones, up to `vote.number`
  std::vector<WorldRank> lost_before = {};  ///< lost by entries before those
  bool operator==(const HostVote&) const = default;
};
/// At the beginning of a world of so many hosts.
HostVote first_vote(int host_count);
/// Entry `number` (from 1 on), if it is still kept.
const Entry* entry_of(const HostVote& host, std::uint64_t number) noexcept;
/// Keeps the oldest entry no more. Who lacks it is told who is lost, and reads off members what has
/// failed.
void forget_oldest(HostVote& host);
/// Whether `next` may be written in the place of `there`: nobody else has become the relay since.
/// Looking and writing must be one step: a relay may be stopped between them for any time.
bool may_replace(const HostVote& there, const HostVote& next) noexcept;

/// What one relay says to another one.
struct VoteFrame {
  std::uint64_t term = 0;
  Vote vote;
  std::optional<Entry> want = {};   ///< what the sender's ranks would have as entry vote.number + 1
  std::vector<Entry> entries = {};  ///< that the receiver lacks, up to vote.number
  HostSet hosts = {};               ///< left by entry vote.number
  std::vector<WorldRank> lost_before = {};  ///< lost by entries before `entries`
  bool operator==(const VoteFrame&) const = default;
};

/// What a relay knows of another host beside its frames.
struct HostFacts {
  enum class State : std::uint8_t {
    reachable,  ///< stopped or slow ones too
    doubtful,   ///< reached as well, but it has acknowledged nothing for 1 s
    cut,        ///< has acknowledged nothing for 2 s
    dead,       ///< its board or its own listener says so: a fact
    left,       ///< all its ranks have left in order: a fact
  };
  State state = State::reachable;
  Clock::time_point heard = {};  ///< cut: when it last acknowledged something
  std::uint64_t connection = 0;  ///< changes with each new one; 0: none
};
/// Nobody is left there who could vote.
inline bool is_over(HostFacts::State state) noexcept {
  return state == HostFacts::State::dead || state == HostFacts::State::left;
}

/// What a relay remembers; it dies with it. A new relay begins with an empty one.
struct VoteMemory {
  struct Peer {
    std::uint64_t term = 0;          ///< the highest heard of
    std::optional<Vote> seen = {};   ///< the vote shown last
    std::optional<Entry> want = {};  ///< beside it
    std::uint64_t connection = 0;    ///< on which it was told:
    std::optional<Vote> told = {};   ///< the own vote
    std::optional<Entry> told_want = {};
    std::uint64_t told_number = 0;  ///< the own entries, up to this one
  };
  std::vector<Peer> peers = {};
  Clock::time_point active = {};  ///< when a proposer last showed something new
  std::uint64_t number = 0;       ///< of the last entry, when these were set:
  std::optional<Clock::time_point> wanted_since;
  HostSet cut_off = {};                         ///< and whom it had cut off, when these were:
  std::optional<Clock::time_point> open_since;  ///< it could have something chosen
  int tries = 0;                                ///< own ballots
};

struct VoteInput {
  int self = 0;  ///< own host
  Clock::time_point now;
  const std::vector<HostFacts>& facts;  ///< of all hosts
  /// What this host's ranks would enter next, now that all its entries have been applied.
  const std::optional<Entry>& want;
  int from = -1;                     ///< the host that `frame` comes from, by its connection
  const VoteFrame* frame = nullptr;  ///< null: only the time or the facts have changed
  std::size_t kept = kKeptEntries;
};

/// To be done in this order: write the vote, then send.
struct VoteStep {
  std::vector<std::pair<int, VoteFrame>> frames;
  Clock::time_point next =
      Clock::time_point::max();  ///< call again then, if nothing happens before
  bool entered = false;  ///< there are new entries: apply them, ask for a want, and call again
  bool missed = false;  ///< and some before them were slept through: `lost_before` says who is lost
  bool held_up =
      false;  ///< no entry for kHeldUp: tell the own ranks which deaths were seen by mark
};

/// One step of the relay of `input.self`. Changes `host`, which is to be written with may_replace,
/// and `memory`. If the write fails, another relay has taken over and both are to be dropped,
/// unsent.
VoteStep step_vote(HostVote& host, VoteMemory& memory, const VoteInput& input);

}  // namespace tutti::control
