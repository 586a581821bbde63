// The members of one group, wherever they are: a source of facts out of the board of this host and
// out of what is known of others.
#pragma once

#include <optional>
#include <vector>

#include "base/roster.h"
#include "control/board/members.h"
#include "control/hosts/other_hosts.h"
#include "control/judge/source.h"

namespace tutti::control {

class GroupMembers final : public FactSource {
 public:
  /// `others`: null where there is one host.
  GroupMembers(const Board& board, const Roster& roster, OtherHosts* others, GroupId group,
               std::vector<WorldRank> world_ranks, int rank);

  GroupFacts read() const override;
  GroupFacts read_meetings() const override;
  bool shows_failure() const noexcept override;
  std::optional<LineState> state_of(int member) const noexcept override;
  MemberFacts facts_of(int member) const;
  /// Those of `members` that are on other hosts are asked what they do.
  void ask(const std::vector<int>& members) const noexcept;
  /// This rank has changed what `member`, or any other one, may await.
  void notify(int member) const noexcept;
  void notify_all() const noexcept;

  const std::vector<WorldRank>& world_ranks() const noexcept { return here_.world_ranks(); }
  int size() const noexcept { return here_.size(); }
  WorldRank world_rank_of(int member) const noexcept { return here_.world_rank_of(member); }
  int member_of(WorldRank rank) const noexcept { return here_.member_of(rank); }
  std::vector<int> members_of(const std::vector<WorldRank>& ranks) const {
    return here_.members_of(ranks);
  }
  bool is_here(int member) const noexcept { return roster_.is_here(world_rank_of(member)); }
  bool all_are_here() const noexcept;
  /// Of those that are here.
  const BoardMembers& here() const noexcept { return here_; }

 private:
  const Roster& roster_;
  OtherHosts* const others_;
  const GroupId group_;
  const int rank_;
  const BoardMembers here_;
};

}  // namespace tutti::control
