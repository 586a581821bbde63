// Which ranks of a job have come to their world, and whether those who wait for it wait in vain.
//
// A rank *joins* when it comes to the store in init, and is *met* once its world is complete. One
// that ends before it is met is *lost*: nobody who waits can ever meet it. No clock, no process:
// the job tells what happens, and when.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tutti/types.h"

namespace tutti::launch {

class Gathering {
 public:
  using Clock = Deadline::Clock;

  explicit Gathering(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  void joined(int rank, Clock::time_point now);
  void met(int rank);
  void ended(int rank, int wait_status);

  /// All ranks are asked to end now: in which order they do says nothing.
  void asked_to_end();

  bool has_met(int rank) const;
  /// Of one that has joined, and whose world is not complete: who runs, or ran when all were asked
  /// to end, and has not joined. Nobody once lost_rank() is known: that is why it ends.
  std::vector<int> awaited_by(int rank) const;
  /// The lost rank for which others wait; -1: none, or not yet said.
  int lost_rank() const noexcept { return lost_rank_; }

  /// Once: that others wait in vain for lost_rank(), for people and as their error. One that failed
  /// may have failed because of a death that those who wait are about to find, too, and that is
  /// learnt of last if the dead program was the child of a wrapper: it gets a moment.
  std::optional<std::string> judge(Clock::time_point now);
  /// Every 10 s in which some wait for others that run: "tutti: waiting 12 s: ...".
  std::optional<std::string> say_who_is_missing(Clock::time_point now);
  Clock::time_point next_event() const;

 private:
  struct Rank {
    bool has_joined = false, has_met = false, has_ended = false;
    int ended_as = 0;  ///< how many had ended before
    int wait_status = 0;
  };
  struct Attendance {
    std::vector<int> missing;  ///< run, and have not joined
    std::vector<int> lost;
    std::vector<int> waiting;  ///< joined, and their world is not complete
  };
  Attendance attendance() const;

  std::vector<Rank> ranks_;
  std::optional<std::vector<int>> missing_when_asked_;
  int ended_count_ = 0;
  int lost_rank_ = -1;
  Clock::time_point first_join_{};
  Clock::time_point waiting_line_at_ = Clock::time_point::max();
  Clock::time_point verdict_at_ = Clock::time_point::max();
};

}  // namespace tutti::launch
