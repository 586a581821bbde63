#include <fmt/format.h>

#include <algorithm>

#include "control/vote/vote.h"
#include "simulate/program.h"

namespace tutti::simulate {

using namespace std::chrono_literals;
using control::Verdict;

std::chrono::nanoseconds Happened::pauses() const {
  std::chrono::nanoseconds sum = around.hiccups() + paused;
  for (const Fault& fault : plan.faults)
    if (fault.kind == FaultKind::stop || fault.kind == FaultKind::late ||
        fault.kind == FaultKind::slow || fault.kind == FaultKind::cut ||
        fault.kind == FaultKind::freeze)
      sum += fault.lasts;
  for (const PlanStep& step : plan.steps)
    if (step.kind == StepKind::message) sum += plan.patience;
  return sum;
}

bool Happened::has_fault(FaultKind kind) const {
  return std::any_of(plan.faults.begin(), plan.faults.end(),
                     [kind](const Fault& fault) { return fault.kind == kind; });
}

void Happened::check_prompt(Clock::time_point since, Clock::time_point ended,
                            const std::string& what) {
  // A wait whose bell is not rung looks again after 5 ms.
  constexpr auto kPrompt = 4ms;
  const bool is_quiet = plan.faults.empty() && plan.hiccup == 0 && plan.hosts() == 1;
  if (is_quiet && ended - since > kPrompt)
    violated(fmt::format("{} ended {} us after everybody had come: nobody was woken", what,
                         (ended - since) / 1us));
}

bool Happened::may_be_held_up() const {
  return plan.hosts() > 1 &&
         std::any_of(plan.faults.begin(), plan.faults.end(), [](const Fault& fault) {
           const bool stops = fault.kind == FaultKind::freeze || fault.kind == FaultKind::stop ||
                              fault.kind == FaultKind::cut;
           return stops && fault.lasts > control::kHeldUp - 100ms;
         });
}

std::chrono::nanoseconds Happened::soon() const { return plan.hosts() == 1 ? 100ms : 1000ms; }

void Happened::check_reason(GroupId group, int rank, const Error& error) {
  const auto& log_there = logs[plan.host_of(rank)];
  const auto entry = std::find_if(log_there.begin(), log_there.end(),
                                  [group](const auto& each) { return each.first.fails(group); });
  constexpr std::size_t kWhole = 1000;  // longer ones are cut on the board
  if (entry == log_there.end() || entry->first.code != error.code()) return;
  if (may_be_held_up()) return;
  if (error.code() == ErrorCode::kPeerLost) return;  // each says what it has seen the lost ones do
  const std::string_view words = error.what();
  const bool has_slept =
      words.find(" has failed (") != std::string_view::npos && log_there.size() > 8;
  if (words.find(entry->first.text.substr(0, kWhole)) == std::string_view::npos && !has_slept)
    violated(fmt::format("rank {} was told '{}', and the log says '{}'", rank, words,
                         entry->first.text));
}

void Happened::check_untold(GroupId group, int rank) {
  const std::vector<int>& ranks = groups[group].world_ranks;
  for (const auto& [verdict, when] : log) {
    const bool is_old = when + soon() + pauses() < around.now();
    const bool is_lost =
        verdict.is_loss() &&
        std::any_of(verdict.culprits.begin(), verdict.culprits.end(), [&](WorldRank lost) {
          return std::find(ranks.begin(), ranks.end(), lost.value) != ranks.end() &&
                 !leaving.contains(lost.value);
        });
    if (is_old && (verdict.fails(group) || is_lost))
      violated(fmt::format("rank {} was never told that group {} has failed", rank, group));
  }
}

}  // namespace tutti::simulate
