// One round: a world of ranks that follow one plan, the faults that befall them, and what must
// hold.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "simulate/kernel.h"

namespace tutti::simulate {

enum class FaultKind : std::uint8_t {
  none,
  die,       ///< the process, at a step
  stop,      ///< the same, and goes on later
  late,      ///< a rank comes late to a step of the plan
  disagree,  ///< a rank calls another operation
  skip,      ///< a rank leaves one out
  abort,     ///< a rank aborts the group of the step
  quit,      ///< a rank ends there, in order
  error,     ///< a rank cannot make the group of the step
};
inline constexpr std::size_t kFaultKinds = 9;
const char* name_of(FaultKind kind) noexcept;

struct Fault {
  FaultKind kind = FaultKind::none;
  int who = 0;           ///< process of die and stop, else rank
  std::uint64_t at = 0;  ///< step of the process of die and stop, else step of the plan
  std::chrono::nanoseconds lasts{0};
};

enum class StepKind : std::uint8_t { collective, message, make, close };

struct PlanStep {
  StepKind kind = StepKind::collective;
  int group = 0;
  int from = 0, to = 0;   ///< of a message: ranks of the group
  int root = -1;          ///< of a collective that waits for this rank of the group only
  bool buffered = false;  ///< of a message: its sender does not wait
};

struct PlannedGroup {
  std::vector<int> world_ranks;
  int parent = -1;
};

/// What a seed stands for.
struct Plan {
  std::uint64_t seed = 0;
  double put_aside = 0.1, hiccup = 0;
  std::vector<int> process_of;  ///< by rank
  std::vector<PlannedGroup> groups;
  std::vector<PlanStep> steps;
  std::vector<bool> goes_on;  ///< by rank: after a failure, with other groups
  std::vector<bool> keeps;    ///< by rank: groups that are closed, until its end
  bool data_tells = false;    ///< a rank sees in the data that another one calls something else
  std::chrono::milliseconds timeout{200};
  std::vector<Fault> faults;

  int ranks() const noexcept { return static_cast<int>(process_of.size()); }
};

/// `ranks`: 0 for a number out of the usual ones.
Plan make_plan(std::uint64_t seed, int ranks);

struct Tally {
  std::uint64_t rounds = 0, steps = 0, calls = 0;
  std::map<std::string, std::uint64_t> answers;   ///< "die -> kPeerLost": first verdicts by fault
  std::map<std::string, std::uint64_t> outcomes;  ///< "collective kTimeout": what calls ended with
};

/// Runs a plan. Empty: all held; else what was violated.
std::string run_round(const Plan& plan, Tally& tally);

/// Leaves out of a plan that violates something what is not needed for it.
Plan shrink(Plan plan);

}  // namespace tutti::simulate
