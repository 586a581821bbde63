#include "control/hosts/reporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "control/board/describe.h"
#include "control/board/members.h"
#include "control/board/waits.h"

namespace tutti::control {

namespace {

std::uint64_t stamp_now() noexcept {
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
}

/// With what other hosts cannot read.
std::optional<LineFacts> read_with_texts(const Board& board, SlotIndex slot, const Line& line,
                                         GroupId group) {
  std::optional<LineFacts> facts = read_line(board, slot, line, group);
  if (!facts) return facts;
  for (auto& call : facts->history)
    if (call) call = known_call(board.slot(slot), *call);
  return facts;
}

}  // namespace

Reporter::Reporter(const Board& board, const Roster& roster)
    : board_(board), roster_(roster), places_(static_cast<std::size_t>(board.slot_count())) {}

Report Reporter::report_of(SlotIndex slot, const Line& line, GroupId group) const {
  Report report{.rank = roster_.rank_in(slot), .stamp = stamp_now(), .group = group};
  report.line = read_with_texts(board_, slot, line, group);
  return report;
}

Report Reporter::that_it_has_left(SlotIndex slot) const {
  return {.rank = roster_.rank_in(slot), .stamp = stamp_now(), .has_left = true};
}

const std::vector<Report>& Reporter::news() {
  for (const SlotIndex slot : board_.slots()) {
    Place& place = places_[slot.index()];
    const std::uint64_t news = board_.news_of(slot);  // before all that it counts is read
    const bool leaves = !place.has_left && has_left(board_, slot);  // before its lines are read
    const bool has_died = !place.is_dead && board_.is_known_dead(slot);
    if (has_died)
      for (auto& [group, told] : place.lines) told = {};  // what it did last is told as well
    // It need not grow where a rank dies after its last goodbye.
    if (has_died || leaves || place.news != news) add_news(slot, place);
    if (leaves) unsaid_.push_back(that_it_has_left(slot));
    place.news = news;
    place.is_dead |= has_died;
    place.has_left |= leaves;
  }
  return unsaid_;
}

void Reporter::show_told() noexcept {
  if (!unsaid_.empty()) return;
  for (const SlotIndex slot : board_.slots()) board_.show_told(slot, places_[slot.index()].news);
}

/// All of them or, where it throws, none.
void Reporter::add_news(SlotIndex slot, Place& place) {
  std::vector<Report> reports;
  std::map<GroupId, Told> lines;
  for (const Line& line : Lines(board_, slot)) {
    const GroupId group = group_of(line);
    if (group == 0) continue;
    const Told now{.state = state_of(line), .fails = shows_failure(line)};
    const auto told = place.lines.find(group);
    lines.emplace(group, now);
    if (told == place.lines.end() || told->second != now)
      reports.push_back(report_of(slot, line, group));
  }
  for (const auto& [group, told] : place.lines) {
    if (lines.contains(group)) continue;
    reports.push_back(
        {.rank = roster_.rank_in(slot), .stamp = stamp_now(), .group = group});  // it is gone
  }
  unsaid_.reserve(unsaid_.size() + reports.size());
  std::move(reports.begin(), reports.end(), std::back_inserter(unsaid_));
  place.lines = std::move(lines);
}

std::vector<Report> Reporter::all() const {
  std::vector<Report> reports;
  for (const SlotIndex slot : board_.slots()) {
    const bool leaves = has_left(board_, slot);  // before its lines are read
    for (const Line& line : Lines(board_, slot)) {
      const GroupId group = group_of(line);
      if (group != 0) reports.push_back(report_of(slot, line, group));
    }
    if (leaves) reports.push_back(that_it_has_left(slot));
  }
  return reports;
}

WaitFacts Reporter::wait_of(SlotIndex slot) const {
  WaitFacts wait = read_wait(board_, slot);
  if (board_.is_known_dead(slot)) wait.is_running = false;
  if (wait.version == 0) wait.parts.clear();
  for (WaitPart& part : wait.parts) part.words = describe_wait(board_, slot, part);
  return wait;
}

/// That a rank has left is told by the news, behind all of its lines.
Report Reporter::answer(const Question& question) const {
  const SlotIndex slot = roster_.slot_of(question.rank);
  Report report{.rank = question.rank,
                .stamp = stamp_now(),
                .group = question.group,
                .asked = question.asked};
  if (question.group == 0) {
    report.wait = wait_of(slot);
    return report;
  }
  if (const Line* const line = board_.find_line(slot, question.group))
    report.line = read_with_texts(board_, slot, *line, question.group);
  report.meetings = read_meetings(board_, slot, question.group);
  for (MeetingFacts& meeting : report.meetings)
    meeting.words = describe_making(board_, slot, meeting.group);
  return report;
}

}  // namespace tutti::control
