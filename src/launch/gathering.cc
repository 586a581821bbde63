#include "launch/gathering.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "control/board/describe.h"

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kWaitingLine = 10s;
constexpr auto kOwnFindings = 300ms;  ///< what ranks that wait have to find for themselves

}  // namespace

void Gathering::joined(int rank, Clock::time_point now) {
  of_rank(ranks_, rank).has_joined = true;
  if (first_join_ != Clock::time_point{}) return;
  first_join_ = now;
  waiting_line_at_ = now + kWaitingLine;
}

void Gathering::met(int rank) { of_rank(ranks_, rank).has_met = true; }

void Gathering::ended(int rank, int wait_status) {
  Rank& state = of_rank(ranks_, rank);
  state.has_ended = true;
  state.ended_as = ended_count_++;
  state.wait_status = wait_status;
}

void Gathering::asked_to_end() {
  if (!missing_when_asked_) missing_when_asked_ = attendance().missing;
}

bool Gathering::has_met(int rank) const { return of_rank(ranks_, rank).has_met; }

Gathering::Attendance Gathering::attendance() const {
  Attendance found;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& state = ranks_[i];
    if (state.has_met) continue;
    std::vector<int>& where = state.has_ended    ? found.lost
                              : state.has_joined ? found.waiting
                                                 : found.missing;
    where.push_back(static_cast<int>(i));
  }
  return found;
}

std::vector<int> Gathering::awaited_by(int rank) const {
  const Rank& state = of_rank(ranks_, rank);
  if (!state.has_joined || state.has_met || lost_rank_ >= 0) return {};
  std::vector<int> awaited = missing_when_asked_.value_or(attendance().missing);
  std::erase_if(awaited, [this](int other) { return of_rank(ranks_, other).has_joined; });
  return awaited;
}

std::optional<std::string> Gathering::judge(Clock::time_point now) {
  if (first_join_ == Clock::time_point{} || lost_rank_ >= 0) return std::nullopt;
  const Attendance found = attendance();
  if (found.lost.empty() || found.waiting.empty()) {
    verdict_at_ = Clock::time_point::max();
    return std::nullopt;
  }
  // The first to end: others may have ended because of it.
  const int first = *std::min_element(found.lost.begin(), found.lost.end(), [&](int a, int b) {
    return of_rank(ranks_, a).ended_as < of_rank(ranks_, b).ended_as;
  });
  const Rank& lost = of_rank(ranks_, first);
  if (verdict_at_ == Clock::time_point::max()) {
    verdict_at_ = lost.wait_status == 0 ? now : now + kOwnFindings;
  }
  if (now < verdict_at_) return std::nullopt;
  verdict_at_ = Clock::time_point::max();
  lost_rank_ = first;
  return fmt::format("rank {} {} ({}); {} {} for it", first,
                     lost.has_joined ? "left init_process_group before the world was complete"
                                     : "ended without having joined in init_process_group",
                     control::describe_wait_status(lost.wait_status), ranks_text(found.waiting),
                     found.waiting.size() == 1 ? "waits" : "wait");
}

std::optional<std::string> Gathering::say_who_is_missing(Clock::time_point now) {
  if (now < waiting_line_at_) return std::nullopt;
  waiting_line_at_ = now + kWaitingLine;
  const Attendance found = attendance();
  if (found.waiting.empty() || found.missing.empty()) return std::nullopt;
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - first_join_);
  return fmt::format("tutti: waiting {} s: {} of {} ranks missing: {} (started, not in init)",
                     waited.count(), found.missing.size(), ranks_.size(),
                     format_ranks(found.missing));
}

Gathering::Clock::time_point Gathering::next_event() const {
  return std::min(waiting_line_at_, verdict_at_);
}

}  // namespace tutti::launch
