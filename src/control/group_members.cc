#include "control/group_members.h"

#include <algorithm>
#include <utility>

namespace tutti::control {

GroupMembers::GroupMembers(const Board& board, const Roster& roster, OtherHosts* others,
                           GroupId group, std::vector<WorldRank> world_ranks, int rank)
    : roster_(roster),
      others_(others),
      group_(group),
      rank_(rank),
      here_(board, roster, group, std::move(world_ranks), rank) {}

MemberFacts GroupMembers::facts_of(int member) const {
  if (is_here(member)) return here_.facts_of(member);
  MemberFacts facts = others_->facts_of(group_, world_rank_of(member));
  if (facts.line && facts.line->failure) {
    std::vector<int>& culprits = facts.line->failure->culprits;
    culprits = members_of(tutti::world_ranks(culprits));
  }
  return facts;
}

bool GroupMembers::all_are_here() const noexcept {
  return std::all_of(world_ranks().begin(), world_ranks().end(),
                     [this](WorldRank rank) { return roster_.is_here(rank); });
}

GroupFacts GroupMembers::read() const {
  GroupFacts facts{rank_, {}};
  facts.members.reserve(world_ranks().size());
  for (int member = 0; member < size(); ++member) facts.members.push_back(facts_of(member));
  return facts;
}

GroupFacts GroupMembers::read_meetings() const {
  GroupFacts facts = read();
  for (int member = 0; member < size(); ++member) {
    MemberFacts& absent = facts.members[static_cast<std::size_t>(member)];
    if (!absent.line && is_here(member)) absent.meetings = here_.meetings_of(member);
  }
  return facts;
}

bool GroupMembers::shows_failure() const noexcept {
  for (int member = 0; member < size(); ++member) {
    if (member == rank_) continue;
    const bool shows = is_here(member) ? here_.shows_failure(member)
                                       : others_->shows_failure(group_, world_rank_of(member));
    if (shows) return true;
  }
  return false;
}

std::optional<LineState> GroupMembers::state_of(int member) const noexcept {
  return is_here(member) ? here_.state_of(member)
                         : others_->state_of(group_, world_rank_of(member));
}

void GroupMembers::ask(const std::vector<int>& members) const noexcept {
  for (const int member : members)
    if (!is_here(member)) others_->ask(group_, world_rank_of(member));
}

void GroupMembers::notify(int member) const noexcept {
  if (Doorbell* const bell = here_.bell_of(member)) {
    ring(*bell);
  } else {
    others_->notify(world_rank_of(member));
  }
}

void GroupMembers::notify_all() const noexcept {
  for (int member = 0; member < size(); ++member)
    if (member != rank_) notify(member);
}

}  // namespace tutti::control
