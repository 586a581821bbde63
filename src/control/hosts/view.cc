#include "control/hosts/view.h"

#include <algorithm>

namespace tutti::control {

namespace {

constexpr std::int64_t kBetweenQuestions =
    std::chrono::duration_cast<Clock::duration>(std::chrono::milliseconds(1)).count();

}  // namespace

void View::take(Report report) {
  const std::lock_guard lock(mutex_);
  if (report.has_left) left_.insert(report.rank);
  if (report.wait) return take_wait(std::move(report));  // of no group
  if (report.group == 0) return;
  const auto [place, is_new] = lines_.try_emplace({report.rank, report.group});
  Line& known = place->second;
  known.asked = std::max(known.asked, report.asked);
  if (known.waiting <= known.asked) known.waiting = 0;
  if (report.stamp > known.stamp) {
    known.facts = std::move(report.line);
    known.stamp = report.stamp;
    known.heard = Clock::now();
  }
  // What it makes elsewhere is told with whatever was asked: unasked it is not known for sure.
  Meetings& meets = meetings_[report.rank];
  if (report.asked != 0 && report.stamp > meets.stamp)
    meets = {std::move(report.meetings), report.stamp};
  // Of a group that is gone there and that nobody asks for nothing is kept.
  if (!known.facts && report.asked == 0 && known.waiting == 0) lines_.erase(place);
}

void View::take_wait(Report report) {
  Wait& known = waits_[report.rank];
  if (report.stamp <= known.stamp) return;
  known.stamp = report.stamp;
  // Not longer than it has lasted: an answer may be long under way. The same for the same wait.
  const bool is_same = report.wait->since == known.since_there;
  const auto since = is_same ? known.facts.since : Clock::now() - report.wait_age;
  known.since_there = report.wait->since;
  known.facts = *std::move(report.wait);
  known.facts.since = since;
}

WaitFacts View::wait_of(WorldRank rank) const {
  const std::lock_guard lock(mutex_);
  const auto wait = waits_.find(rank);
  return wait != waits_.end() ? wait->second.facts : WaitFacts{};
}

MemberFacts View::facts_of(GroupId group, WorldRank rank) const {
  const std::lock_guard lock(mutex_);
  // Whoever has left does nothing more, and perhaps nobody is there to answer: its last lines came
  // before that it has left.
  const bool has_left = left_.contains(rank);
  MemberFacts facts{.has_left_world = has_left,
                    .asked = has_left ? Clock::time_point::max() : Clock::time_point{}};
  if (const auto line = lines_.find({rank, group}); line != lines_.end()) {
    facts.line = line->second.facts;
    facts.heard = line->second.heard;
    if (!has_left) facts.asked = Clock::time_point(Clock::duration(line->second.asked));
  }
  if (const auto meets = meetings_.find(rank); meets != meetings_.end() && !has_left)
    facts.meetings = meets->second.facts;
  return facts;
}

const LineFacts* View::find(GroupId group, WorldRank rank) const {
  const auto line = lines_.find({rank, group});
  return line != lines_.end() && line->second.facts ? &*line->second.facts : nullptr;
}

std::optional<LineState> View::state_of(GroupId group, WorldRank rank) const noexcept {
  const std::lock_guard lock(mutex_);
  const LineFacts* const line = find(group, rank);
  return line != nullptr ? std::optional(line->state) : std::nullopt;
}

bool View::shows_failure(GroupId group, WorldRank rank) const noexcept {
  const std::lock_guard lock(mutex_);
  const LineFacts* const line = find(group, rank);
  return line != nullptr && line->failure;
}

bool View::has_left(WorldRank rank) const noexcept {
  const std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

std::vector<GroupId> View::said_goodbye_to(WorldRank rank) const {
  std::vector<GroupId> groups;
  const std::lock_guard lock(mutex_);
  for (auto line = lines_.lower_bound({rank, 0}); line != lines_.end(); ++line) {
    if (line->first.first != rank) break;
    const auto& facts = line->second.facts;
    if (!facts) continue;
    if (!control::has_left(facts->state)) return {};
    groups.push_back(line->first.second);
  }
  return groups;
}

std::map<GroupId, FailureFacts> View::failures_of(WorldRank rank) const {
  std::map<GroupId, FailureFacts> failures;
  const std::lock_guard lock(mutex_);
  for (auto line = lines_.lower_bound({rank, 0}); line != lines_.end(); ++line) {
    if (line->first.first != rank) break;
    const auto& facts = line->second.facts;
    if (facts && facts->failure) failures.emplace(line->first.second, *facts->failure);
  }
  return failures;
}

bool View::add_question(const Question& question) {
  const std::lock_guard lock(mutex_);
  Line& line = lines_[{question.rank, question.group}];
  if (line.put != 0 && question.asked < line.put + kBetweenQuestions) return false;
  line.put = line.waiting = question.asked;
  return true;
}

std::vector<Question> View::open_questions(const std::vector<WorldRank>& of) const {
  const std::lock_guard lock(mutex_);
  std::vector<Question> open;
  for (const auto& [key, line] : lines_) {
    const auto& [rank, group] = key;
    if (line.waiting == 0 || std::find(of.begin(), of.end(), rank) == of.end()) continue;
    open.push_back({.rank = rank, .group = group, .asked = line.waiting});
  }
  return open;
}

}  // namespace tutti::control
