// What one rank knows of the ranks on other hosts: the latest that was reported of each.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "control/hosts/report.h"

namespace tutti::control {

/// Any thread.
class View {
 public:
  /// Of two reports of a rank and a group the one that was read later counts, whichever came first.
  void take(Report report);

  /// As OtherHosts says it.
  MemberFacts facts_of(GroupId group, WorldRank rank) const;
  std::optional<LineState> state_of(GroupId group, WorldRank rank) const noexcept;
  bool shows_failure(GroupId group, WorldRank rank) const noexcept;
  bool has_left(WorldRank rank) const noexcept;
  std::vector<GroupId> said_goodbye_to(WorldRank rank) const;
  std::map<GroupId, FailureFacts> failures_of(WorldRank rank) const;
  WaitFacts wait_of(WorldRank rank) const;

  /// A question is open until a report answers it. Whether this one is to be put now: none of the
  /// same rank and group was within the last millisecond.
  bool add_question(const Question& question);
  /// The open ones about any of these ranks.
  std::vector<Question> open_questions(const std::vector<WorldRank>& of) const;

 private:
  struct Line {
    std::optional<LineFacts> facts = {};
    std::uint64_t stamp = 0;
    Clock::time_point heard = {};
    std::int64_t asked = 0;    ///< of the latest answer
    std::int64_t waiting = 0;  ///< of the latest question, while it is open
    std::int64_t put = 0;      ///< when the latest question was put
  };
  struct Meetings {
    std::vector<MeetingFacts> facts = {};
    std::uint64_t stamp = 0;
  };
  struct Wait {
    WaitFacts facts = {.is_running = true};
    std::uint64_t stamp = 0;
    Clock::time_point since_there = {};  ///< by the clock of its host: the same for the same wait
  };
  using Key = std::pair<WorldRank, GroupId>;
  void take_wait(Report report);                               // mutex_
  const LineFacts* find(GroupId group, WorldRank rank) const;  // mutex_

  mutable std::mutex mutex_;
  std::map<Key, Line> lines_;               // mutex_
  std::map<WorldRank, Meetings> meetings_;  // mutex_
  std::map<WorldRank, Wait> waits_;         // mutex_
  std::set<WorldRank> left_;                // mutex_
};

}  // namespace tutti::control
