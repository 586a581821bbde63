// One round: a world of ranks that follow one plan, the faults that befall them, and what must
// hold.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "simulate/kernel.h"
#include "simulate/told.h"
#include "tutti/types.h"

namespace tutti::simulate {

enum class FaultKind : std::uint8_t {
  none,
  die,       ///< the process, at a step
  stop,      ///< the same, and goes on later
  late,      ///< a rank comes late to a step of the plan, or to its end: one more than all
  disagree,  ///< a rank calls another operation
  skip,      ///< a rank leaves one out
  abort,     ///< a rank aborts the group of the step
  quit,      ///< a rank ends there, in order
  error,     ///< a process gets no more shared memory
  slow,      ///< a rank's callback of Work::then takes its time
  swap,      ///< a rank calls a step and the next one in the opposite order
  cut,       ///< nothing gets from one host to another, or either way
  lose,      ///< all processes of a host die
  freeze,    ///< all processes of a host stop, and go on later
};
inline constexpr std::size_t kFaultKinds = 14;
const char* name_of(FaultKind kind) noexcept;

struct Fault {
  FaultKind kind = FaultKind::none;
  int who = 0;  ///< process of die and stop, host of cut, lose and freeze, else rank
  /// Step of the process of die and stop, or of the first one of the host to lose or freeze; us of
  /// cut; else step of the plan.
  std::uint64_t at = 0;
  std::chrono::nanoseconds lasts{0};
  int other = 0;         ///< host, of cut; -1: all others
  bool one_way = false;  ///< the same
  /// Of processes and hosts: `who` is a rank, whose they are, and `at` a step of the plan, to which
  /// that comes, or two more than all: after its last goodbye. It dies `lasts` later.
  bool is_pinned = false;
  std::uint64_t steps = 0;  ///< of a process that is pinned: and dies or stops so many of its later
};
/// Of a process or host, and not of one rank.
bool is_of_process(FaultKind kind) noexcept;
bool is_of_host(FaultKind kind) noexcept;
/// Whether it befalls a rank as that comes to a step of the plan.
bool is_at_step(const Fault& fault) noexcept;

enum class StepKind : std::uint8_t { collective, message, make, close };

/// How a rank makes a call: it waits in it, or later for its Work; or another thread of it waits.
enum class How : std::uint8_t { waits, work, callback, thread, cancels };
inline constexpr std::size_t kHows = 5;

/// What of a message is in a step: where its ends are two steps, the sender goes on meanwhile.
enum class Half : std::uint8_t { both, send, receive };
inline constexpr std::size_t kHalves = 3;

struct PlanStep {
  StepKind kind = StepKind::collective;
  int group = 0;
  Op op = Op::barrier;      ///< of a collective
  int root = -1;            ///< the same, if it has one: a rank of the group
  int from = 0, to = 0;     ///< of a message: ranks of the group
  int tag = 0;              ///< the same
  bool buffered = false;    ///< the same
  Half half = Half::both;   ///< the same
  bool any = false;         ///< the same: its receiver takes it from any rank
  int count = 0;            ///< floats; of an all_gather or all_to_all: to and from each rank
  bool uneven = false;      ///< of one in parts: some ranks' are up to 2 floats longer
  How how = How::waits;     ///< of a collective, and of the sender of a message
  How how_to = How::waits;  ///< of its receiver
  std::chrono::microseconds cancel_after{0};
};

struct PlannedGroup {
  std::vector<int> world_ranks;
  int parent = -1;
};

/// What a seed stands for.
struct Plan {
  std::uint64_t seed = 0;
  std::uint64_t interleaving = 0;  ///< a seed for the order of steps; 0: the plan's
  double put_aside = 0.1, hiccup = 0;
  std::vector<int> process_of;         ///< by rank
  std::vector<int> hosts_of;           ///< by process; none: there is one host
  std::chrono::microseconds delay{1};  ///< the longest between hosts
  std::vector<PlannedGroup> groups;
  std::vector<PlanStep> steps;
  std::vector<bool> goes_on;  ///< by rank: after a failure, with other groups
  std::vector<bool> keeps;    ///< by rank: groups that are closed, until its end
  bool warns = false;         ///< of deadlocks, which end nothing then
  int cores = 1;              ///< of the machine: the engine and the waits are tuned by it
  std::chrono::milliseconds timeout{200};
  std::chrono::milliseconds patience{0};  ///< for messages; 0: as for everything
  std::vector<Fault> faults;

  int ranks() const noexcept { return static_cast<int>(process_of.size()); }
  int hosts() const noexcept { return hosts_of.empty() ? 1 : hosts_of.back() + 1; }
  int host_of(int rank) const noexcept {
    const auto process = static_cast<std::size_t>(process_of[static_cast<std::size_t>(rank)]);
    return hosts_of.empty() ? 0 : hosts_of[process];
  }
  std::vector<int> processes_of(int host) const;
  int size_of(int group) const noexcept {
    return static_cast<int>(groups[static_cast<std::size_t>(group)].world_ranks.size());
  }
};

/// Of a message: whether a member of its group is in this step.
constexpr bool is_end(const PlanStep& message, int member) noexcept {
  return (member == message.from && message.half != Half::receive) ||
         (member == message.to && message.half != Half::send);
}
/// Of a collective.
bool has_root(Op op) noexcept;
bool has_parts(Op op) noexcept;
/// Whether its ranks may all be threads of one process: no fault befalls a process.
bool is_of_threads(const Plan& plan);

/// `ranks`, `hosts`: 0 for a number out of the usual ones.
Plan make_plan(std::uint64_t seed, int ranks, int hosts);

struct Tally {
  std::uint64_t rounds = 0, steps = 0, calls = 0;
  std::map<std::string, std::uint64_t> answers;  ///< "die -> kPeerLost": first verdicts by fault
  /// "die -> kPeerLost", "send": of rounds with one fault, and what was under way.
  std::map<std::string, std::map<std::string, std::uint64_t>> alone;
  std::map<std::string, std::vector<std::uint64_t>> seeds;  ///< "die -> kPeerLost, send": some
  std::map<std::string, std::uint64_t> outcomes;  ///< "collective kTimeout": what calls ended with
};

/// Runs a plan. Empty: all held; else what was violated. `told` gets what each rank was told, and
/// may be null.
std::string run_round(const Plan& plan, Tally& tally, std::vector<Told>* told = nullptr);

/// Leaves out of a plan that violates something what is not needed for it.
Plan shrink(Plan plan);

}  // namespace tutti::simulate
