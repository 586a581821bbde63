// The members of one group as the board shows them: a source of facts.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "control/judge/source.h"

namespace tutti::control {

class BoardMembers final : public FactSource {
 public:
  /// `world_ranks`: by rank in the group. `board` and `roster` must outlive this.
  BoardMembers(const Board& board, const Roster& roster, GroupId group,
               std::vector<WorldRank> world_ranks, int rank);

  GroupFacts read() const override;
  GroupFacts read_meetings() const override;
  bool shows_failure() const noexcept override;
  std::optional<LineState> state_of(int member) const noexcept override;

  /// Whether `member` (-1: any other) entered its latest operation on this core.
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
  SlotIndex slot_index_of(int member) const noexcept {
    return roster_.slot_of(world_rank_of(member));
  }
  const Slot& slot_of(int member) const noexcept { return board_.slot(slot_index_of(member)); }

 private:
  const Line* line_of(int member) const noexcept;
  MemberFacts member(int member) const;
  std::optional<LineFacts> read_line(int member) const;
  std::vector<MeetingFacts> meetings_of(int member) const;

  const Board& board_;
  const Roster& roster_;
  const GroupId group_;
  const std::vector<WorldRank> world_ranks_;
  const int rank_;
  mutable std::vector<std::atomic<const Line*>> lines_;  ///< by member, once found
};

}  // namespace tutti::control
