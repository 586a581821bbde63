// One attempt of a job: its ranks from the first start to the last exit.
//
// The job *runs*; after the first failure it is *failing* (survivors have the failure grace to end
// well); then it is *ending* (SIGTERM sent, or a signal of the user handed on), and at last
// *killed*. In this version there is one host, and it is in this process; what is said to it and
// what it says are bytes all the same.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/of_rank.h"
#include "launch/console.h"
#include "launch/gathering.h"
#include "launch/job.h"
#include "launch/local_ranks.h"
#include "launch/messages.h"
#include "launch/post_mortem.h"
#include "net/frame.h"
#include "net/poller.h"
#include "store/server.h"

namespace tutti::launch {

/// What a host must know to get ready. `attempt`: how often the ranks have been started before.
Prepare prepare_order(const JobOptions& options, int attempt);

class Attempt {
 public:
  using Clock = Deadline::Clock;

  /// `timeout_at`: of the whole job, as the attempt before has left it; the first one begins to
  /// count when its ranks start.
  Attempt(const JobOptions& options, int number, Clock::time_point timeout_at, Console& console);
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Returns once nothing of it is left. Call it once, while the process has one thread; it has one
  /// again when this is gone.
  void run();

  Clock::time_point timeout_at() const noexcept { return timeout_at_; }
  /// How it has ended.
  JobReport report() const;
  const agent::Outcome& outcome() const noexcept { return outcome_; }

 private:
  /// One that takes orders and gives reports.
  struct Host {
    Host(const Inherited& inherited, net::Fd input) : ranks(inherited, std::move(input)) {}

    LocalRanks ranks;
    net::FrameDecoder reports{kMaxReportBytes};
    std::string name;
    bool is_done = false;
  };
  enum class Phase { running, failing, ending, killed };
  struct Rank {
    pid_t pid = -1;
    bool ended = false;
    int stopped_by = 0;  ///< 0: it is not stopped
    Clock::time_point stopped_line_at = Clock::time_point::max();
    std::vector<int> asked_by = {};  ///< signals by which we asked it to end
    /// Whether its end is our doing: it was asked to end and, if a signal killed it, the signal was
    /// ours.
    bool is_ours(int wait_status) const;
  };

  void start();
  void order(const Order& order);
  void order_signal(int rank, int number) { order(Signal{rank, number}); }
  void poll_once(Clock::time_point until);
  Clock::time_point next_event() const;
  void act_on_time(Clock::time_point now);

  void take_signal(int signal_number);
  void read_reports(Host& host);
  void take(Host& host, const Report& report);
  void on(Host&, const KeeperIs&) {}
  void on(Host&, const Started& started) { rank_of(started.rank).pid = started.pid; }
  void on(Host&, const Stopped& stopped);
  void on(Host&, const Continued& continued);
  void on(Host& host, const Prepared& prepared);
  void on(Host&, const Refused& refused) { throw Error(refused.code, refused.text); }
  void on(Host&, const Joined& joined);
  void on(Host&, const Met& met) { gathering_.met(met.rank); }
  void on(Host&, const Printed& printed);
  void on(Host&, const PrintedAll& printed) {
    console_.output().finish(printed.rank, printed.stream);
  }
  void on(Host&, const Complaint& complaint);
  void on(Host&, const Ended& ended);
  void on(Host&, const KeeperDied& died);
  void on(Host& host, const Done& done);

  Rank& rank_of(int rank) { return of_rank(ranks_, rank); }
  std::vector<int> who_is_only_shown(Stream stream) const;
  void steer_output();
  void watch_rendezvous(Clock::time_point now);
  void say_who_is_stopped(Clock::time_point now);
  void say_who_still_runs(Clock::time_point now);
  std::string running_text() const;

  void start_failing(Clock::time_point now);
  void ask_to_end(int signal_number, Clock::time_point now);
  void kill_all();
  bool all_ended() const;
  bool is_done() const;

  const JobOptions& options_;
  const int number_;
  Clock::time_point timeout_at_;
  Console& console_;
  std::optional<LogFiles> logs_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::optional<store::Server> store_;  // after the hosts: its thread asks their doors
  Gathering gathering_;
  agent::Outcome outcome_;
  agent::Ending ending_;
  Phase phase_ = Phase::running;
  bool is_held_ = false;            ///< what ranks print stays in their pipes, as ordered
  bool is_closed_[2] = {};          ///< by Stream: nobody reads, as ordered
  bool has_asked_for_end_ = false;  ///< of hosts whose ranks have ended
  std::string openmp_notice_;
  Clock::time_point started_{};
  Clock::time_point failing_until_ = Clock::time_point::max();
  Clock::time_point ending_until_ = Clock::time_point::max();
  Clock::time_point still_run_line_at_ = Clock::time_point::max();
};

}  // namespace tutti::launch
