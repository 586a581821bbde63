// What the relay of a host has to tell of its ranks, read off the board.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "control/board/board.h"
#include "control/hosts/report.h"

namespace tutti::control {

/// One thread of the relay's process.
class Reporter {
 public:
  Reporter(const Board& board, const Roster& roster);

  /// What is new since `mark_told`: states, failures, goodbyes, and who has left the world.
  const std::vector<Report>& news();
  void mark_told() noexcept { unsaid_.clear(); }
  /// All other hosts have heard of all that was marked so: says that on the board.
  void show_told() noexcept;
  /// The same for those who have heard nothing yet.
  std::vector<Report> all() const;
  Report answer(const Question& question) const;

 private:
  struct Told {
    LineState state = LineState::free;
    bool fails = false;
    bool operator==(const Told&) const = default;
  };
  struct Place {
    std::uint64_t news = 0;  ///< of the slot, when it was read last
    bool has_left = false, is_dead = false;
    std::map<GroupId, Told> lines = {};
  };
  Report report_of(SlotIndex slot, const Line& line, GroupId group) const;
  WaitFacts wait_of(SlotIndex slot) const;
  Report that_it_has_left(SlotIndex slot) const;
  void add_news(SlotIndex slot, Place& place);

  const Board& board_;
  const Roster& roster_;
  std::vector<Place> places_;   ///< by slot
  std::vector<Report> unsaid_;  ///< news that were found
};

}  // namespace tutti::control
