// A host's part in the log of verdicts between hosts: one rank of it is its *relay*, which speaks
// with those of the others.
//
// The relay shows the others the host's vote and what its ranks wish, and enters what was chosen
// into the log on the board. The lowest rank that lives is the relay; the next one takes over when
// it dies, leaves, or has been silent for 250 ms. Two that take themselves for the relay do no
// harm: only one of them can write the vote, and nothing is said that was not written before.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/roster.h"
#include "control/board/board.h"
#include "control/board/log.h"
#include "control/hosts/other_hosts.h"
#include "control/hosts/vote_place.h"
#include "control/vote/vote.h"

namespace tutti::control {

/// Control thread only.
class Relay {
 public:
  /// `is_lost`: whether the log has declared a rank lost, as far as it was applied here;
  /// `apply_log` does so. All must outlive this.
  Relay(const Board& board, const Roster& roster, SlotOwner& own, OtherHosts& others,
        std::function<bool(WorldRank)> is_lost, std::function<void()> apply_log);

  /// Looks who is the relay, and if that is this rank, does its part.
  void tick(Clock::time_point now, Clock::time_point* next) noexcept;
  /// It is the relay no more; before this rank leaves, so that the next one need not wait.
  void leave() noexcept;

 private:
  bool is_due(Clock::time_point now);
  bool is_well(SlotIndex slot, Clock::time_point now);
  void take_over(Clock::time_point now);
  Clock::time_point take_part(Clock::time_point now);
  bool step(Clock::time_point now, int from, const VoteFrame* frame, Clock::time_point* next);
  std::optional<Entry> find_want(const std::vector<HostFacts>& facts) const;
  void add_losses(const std::vector<HostFacts>& facts, Entry& losses) const;
  void note_dead(Clock::time_point now, const std::vector<HostFacts>& facts,
                 Clock::time_point* next);
  bool has_ended_well(int host, WorldRank rank) const;
  std::string name_apart(int host) const;
  std::string out_of_reach(const std::vector<std::string>& hosts) const;
  std::vector<WorldRank> lost_here() const;
  void tell_own_ranks(bool is_held_up);
  std::optional<Entry> find_failure() const;
  bool goes_on_here(GroupId group) const;
  std::optional<Entry> find_last_word(const std::vector<HostFacts>& facts) const;
  void pass_entered();
  void enter_chosen();

  const Board& board_;
  const Roster& roster_;
  SlotOwner& own_;
  OtherHosts& others_;
  const std::function<bool(WorldRank)> is_lost_;
  const std::function<void()> apply_log_;
  BoardLog log_;
  VotePlace place_;

  /// The beat of each slot, since when it was the same.
  struct Seen {
    std::uint64_t beat = 0;
    Clock::time_point since = {};
  };
  std::vector<Seen> seen_;

  // While this rank is the relay.
  bool is_relay_ = false;
  HostVote vote_;
  VoteMemory memory_;
  std::uint64_t next_entry_ = 1;  ///< of the board's log
  std::set<GroupId> failed_;      ///< by entries of this relay
  std::vector<WorldRank> told_;   ///< lost, while it is held up
  /// Hosts where nobody is left: until when their goodbyes may be on the way to ranks of this one.
  std::map<int, Clock::time_point> heard_until_;
  Clock::time_point now_ = {};  ///< of the step
};

}  // namespace tutti::control
