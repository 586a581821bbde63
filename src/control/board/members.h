// The members of one group that are on this host, as the board shows them.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "control/judge/facts.h"

namespace tutti::control {

/// What the owner of `slot` does in the group of `line`; culprits are ranks of the world here.
/// Nothing: the line is of another group by now.
std::optional<LineFacts> read_line(const Board& board, SlotIndex slot, const Line& line,
                                   GroupId group);
/// What the owner of `slot` makes beside `group`, or has failed to make.
std::vector<MeetingFacts> read_meetings(const Board& board, SlotIndex slot, GroupId group);

class BoardMembers {
 public:
  /// `world_ranks`: by rank in the group. `board` and `roster` must outlive this.
  BoardMembers(const Board& board, const Roster& roster, GroupId group,
               std::vector<WorldRank> world_ranks, int rank);

  MemberFacts facts_of(int member) const;
  std::vector<MeetingFacts> meetings_of(int member) const;
  /// The same of its line alone: the state, and whether that tells of a failure; a few loads.
  std::optional<LineState> state_of(int member) const noexcept;
  bool shows_failure(int member) const noexcept;
  /// Whether `member` (-1: any other here) entered its latest operation on this core.
  bool is_on_core(int core, int member) const noexcept;
  /// The call site of a member's operation; "" if it is not known.
  std::string site_of(int member, std::uint8_t site) const;

  const std::vector<WorldRank>& world_ranks() const noexcept { return world_ranks_; }
  int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  WorldRank world_rank_of(int member) const noexcept {
    return world_ranks_[static_cast<std::size_t>(member)];
  }
  /// -1: the rank of the world is no member.
  int member_of(WorldRank rank) const noexcept;
  /// Of ranks of the world those that are members, by their ranks in the group, ascending.
  std::vector<int> members_of(const std::vector<WorldRank>& ranks) const;
  SlotIndex slot_index_of(int member) const noexcept {
    return roster_.slot_of(world_rank_of(member));
  }
  /// See Board.
  bool has_died(int member) const noexcept { return board_.has_died(slot_index_of(member)); }
  /// Null: it is on another host.
  Doorbell* bell_of(int member) const noexcept { return bells_[static_cast<std::size_t>(member)]; }
  Slot& slot_of(int member) const noexcept { return board_.slot(slot_index_of(member)); }

 private:
  const Line* line_of(int member) const noexcept;
  std::optional<LineFacts> read_line(int member) const;

  const Board& board_;
  const Roster& roster_;
  const GroupId group_;
  const std::vector<WorldRank> world_ranks_;
  const int rank_;
  std::vector<Doorbell*> bells_;                         ///< by member
  mutable std::vector<std::atomic<const Line*>> lines_;  ///< by member, once found
};

}  // namespace tutti::control
