#include "control/board/members.h"

#include <algorithm>
#include <utility>

#include "control/board/layout.h"

namespace tutti::control {

std::optional<LineFacts> read_line(const Board& board, SlotIndex slot, const Line& line,
                                   GroupId group) {
  LineFacts facts;
  facts.state = line.state.load(std::memory_order_acquire);
  facts.goodbye_seq = line.goodbye_seq.load(std::memory_order_acquire);
  facts.goodbye_chain = line.goodbye_chain.load(std::memory_order_acquire);
  facts.entered = line.entered.load(std::memory_order_acquire);
  facts.completed = line.completed.load(std::memory_order_acquire);
  facts.queued = line.queued.load(std::memory_order_acquire);
  const Awaited awaited = Awaited::unpack(line.waiting.load(std::memory_order_acquire));
  facts.waiting_in = awaited.seq;
  facts.waiting_for = awaited.member;
  facts.progress = line.progress.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < kHistory; ++i) facts.history[i] = line.history[i].read();
  // After the state: the owner tells of a failure before it goes.
  if (const std::uint32_t failure = line.failure.load(std::memory_order_acquire); failure != 0) {
    facts.failure = FailureFacts{.code = failure_code(failure)};
    const std::vector<WorldRank> culprits = read_set(line.ranks, board.world_size());
    for (const WorldRank rank : culprits) facts.failure->culprits.push_back(rank.value);
    facts.failure->text =
        read_failure_text(board, slot, group, facts.failure->code, culprits).value_or("");
  }
  // Its owner may have made room for another group meanwhile.
  if (line.group.load(std::memory_order_acquire) != group) return std::nullopt;
  return facts;
}

std::vector<MeetingFacts> read_meetings(const Board& board, SlotIndex slot, GroupId except) {
  std::vector<MeetingFacts> meetings;
  for (const Line& line : Lines(board, slot)) {
    const GroupId group = line.group.load(std::memory_order_acquire);
    if (group == 0 || group == except || line.entered.load() != 0) continue;
    if (line.state.load() != LineState::meeting) continue;
    MeetingFacts facts{.group = group,
                       .asked_of = line.asked_of.load(std::memory_order_relaxed),
                       .members = read_set(line.ranks, board.world_size()),
                       .looks = line.progress.load(std::memory_order_acquire)};
    // Of one that has failed the ranks may be the culprits.
    const bool stands = line.failure.load(std::memory_order_acquire) == 0;
    if (stands && line.group.load(std::memory_order_acquire) == group)
      meetings.push_back(std::move(facts));
  }
  return meetings;
}

BoardMembers::BoardMembers(const Board& board, const Roster& roster, GroupId group,
                           std::vector<WorldRank> world_ranks, int rank)
    : board_(board),
      roster_(roster),
      group_(group),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      lines_(world_ranks_.size()) {
  for (const WorldRank each : world_ranks_)
    bells_.push_back(roster.is_here(each) ? &board.bell(roster.slot_of(each)) : nullptr);
}

int BoardMembers::member_of(WorldRank rank) const noexcept {
  const auto place = std::find(world_ranks_.begin(), world_ranks_.end(), rank);
  return place == world_ranks_.end() ? -1 : static_cast<int>(place - world_ranks_.begin());
}

const Line* BoardMembers::line_of(int member) const noexcept {
  auto& known = lines_[static_cast<std::size_t>(member)];
  const Line* found = known.load(std::memory_order_relaxed);
  if (found != nullptr && found->group.load(std::memory_order_acquire) == group_) return found;
  found = board_.find_line(slot_index_of(member), group_);
  known.store(found, std::memory_order_relaxed);
  return found;
}

MemberFacts BoardMembers::facts_of(int member) const {
  MemberFacts facts;
  // In this order: a member that has left makes no group any more.
  facts.has_left_world = has_left(board_, slot_index_of(member));
  facts.line = read_line(member);
  return facts;
}

std::optional<LineFacts> BoardMembers::read_line(int member) const {
  const Line* const line = line_of(member);
  if (line == nullptr) return std::nullopt;
  auto facts = control::read_line(board_, slot_index_of(member), *line, group_);
  if (facts && facts->failure)
    facts->failure->culprits = members_of(tutti::world_ranks(facts->failure->culprits));
  return facts;
}

std::vector<int> BoardMembers::members_of(const std::vector<WorldRank>& ranks) const {
  std::vector<int> members;
  for (const WorldRank rank : ranks)
    if (const int member = member_of(rank); member >= 0) members.push_back(member);
  std::sort(members.begin(), members.end());
  return members;
}

std::vector<MeetingFacts> BoardMembers::meetings_of(int member) const {
  return read_meetings(board_, slot_index_of(member), group_);
}

bool BoardMembers::shows_failure(int member) const noexcept {
  const Line* const line = line_of(member);
  return line != nullptr && line->failure.load(std::memory_order_acquire) != 0;
}

std::optional<LineState> BoardMembers::state_of(int member) const noexcept {
  const Line* const line = line_of(member);
  if (line == nullptr) return std::nullopt;
  return line->state.load(std::memory_order_acquire);
}

bool BoardMembers::is_on_core(int core, int member) const noexcept {
  const auto is_there = [&](int each) {
    const Line* const line = line_of(each);
    return line != nullptr && line->core.load(std::memory_order_relaxed) == core + 1;
  };
  if (member >= 0) return is_there(member);
  for (int each = 0; each < size(); ++each)
    if (each != rank_ && roster_.is_here(world_rank_of(each)) && is_there(each)) return true;
  return false;
}

std::string BoardMembers::site_of(int member, std::uint8_t site) const {
  return read_site(slot_of(member), site);
}

}  // namespace tutti::control
