// One call of spawn: its ranks from their start until nothing of them is left, and why it failed.
//
// A thread of its own looks after it: it reads what becomes of ranks, judges who failed first
// (agent/outcome), asks the others to end, forces them after the grace, and at last has everything
// removed. Whoever joins only waits for that. A rank whose failure blames others is not called the
// first before these have had a moment to end.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agent/door.h"
#include "agent/outcome.h"
#include "net/poller.h"
#include "spawn/end_signals.h"
#include "spawn/ranks.h"
#include "store/server.h"
#include "tutti/spawn.h"

namespace tutti::spawning {

/// Why a job was ended that no rank had ended by a failure.
enum class EndedBy : std::uint8_t { nobody, program, timeout, late_start, signal, keeper_death };

/// What is known of one rank.
struct RankState {
  pid_t pid = 0;
  std::optional<int> wait_status;
  int not_started = 0;  ///< errno; 0: it was started
  bool is_asked = false;
  std::string doing;  ///< as it was asked to end: "is in ...", "was stopped ..."
};

struct JobOptions {
  int world_size = 1;
  Start start = Start::fork;
  std::chrono::nanoseconds grace{}, start_timeout{};
  std::string call_site;
  std::uint64_t callable = 0;  ///< the type of its function
  int times = 1;               ///< so often the call has been made
};

class Job {
 public:
  using Clock = Deadline::Clock;

  /// Starts the ranks. `function` is kept by those that are threads.
  ///
  /// Errors  kSystem.
  Job(const JobOptions& options, Function function);
  ~Job();

  /// What the job's thread does: returns when all is over.
  void run() noexcept;

  // By any thread.
  /// Whether all is over, waiting for it until then.
  bool wait(Deadline& deadline);
  /// The first reason counts.
  void end(EndedBy why, std::string text) noexcept;
  const JobOptions& options() const noexcept { return options_; }
  RankState state_of(int rank) const;
  /// When all is over; empty: all ended well.
  const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  void step();
  void take(const Event& event);
  void rank_ended(int rank, int wait_status);
  void keeper_died();
  std::vector<int> culprits_of(int rank) const;
  void act(Clock::time_point now);
  void begin_end(Clock::time_point now);
  std::string reason_to_end() const;
  void look_for_late(Clock::time_point now);
  void look_for_signal();
  void look_at_keeper();
  void conclude(const std::string& left);
  Clock::time_point next_event() const;
  int running_count() const noexcept;

  const JobOptions options_;
  agent::Door door_;
  std::shared_ptr<const Reports> reports_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<store::Server> server_;  // ends before the door
  std::optional<EndSignals> end_signals_;  ///< not of threads; until all is over
  net::Wakeup news_;
  mutable std::mutex mutex_;
  net::Condition changed_;
  std::vector<RankState> states_;       // mutex_
  EndedBy ended_by_ = EndedBy::nobody;  // mutex_
  std::string why_;                     // mutex_; in words
  bool is_over_ = false;                // mutex_
  std::optional<Error> failure_;        // written before is_over_
  // Of the job's thread.
  agent::Outcome outcome_;
  bool has_heard_signal_ = false, is_ending_ = false, is_finishing_ = false;
  bool is_forced_ = false, has_keeper_died_ = false;
  pid_t stopped_keeper_ = 0;
  Clock::time_point settled_at_ = Clock::time_point::max();
  Clock::time_point forced_at_ = Clock::time_point::max();
  Clock::time_point given_up_at_ = Clock::time_point::max();
  Clock::time_point late_at_ = Clock::time_point::max();
};

}  // namespace tutti::spawning
