// Why a job ended, from the exits of its ranks.
//
// An exit is *abnormal* unless it is exit(0). It is *ours* when we had asked the rank to die. A
// rank is a *victim* when the status board says that it failed because of other ranks; it often
// exits before its culprit does, whose memory the kernel is still giving back. The *root cause* is
// the first abnormal exit that is neither ours nor a victim's.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tutti::launch {

struct RankExit {
  int rank = 0;
  int wait_status = 0;             ///< as waitpid gives it
  bool ours = false;               ///< we had signalled it
  std::vector<int> culprits = {};  ///< whom it blamed on the board; empty: nobody
  std::string disagreement = {};   ///< what the board says the ranks disagreed about
  std::string doing = {};          ///< at its end, from the board; empty: it was never in a world
};

bool is_abnormal(int wait_status) noexcept;
/// The code a shell shows: the exit code, or 128 + signal.
int code_of(int wait_status) noexcept;
/// "SIGINT".
std::string describe_signal(int signal_number);

/// Why we ended the job ourselves.
struct Ending {
  bool timed_out = false;
  bool rendezvous_failed = false;
  bool keeper_died = false;
  int signal_number = 0;  ///< forwarded to the ranks before any of them failed
};

class Outcome {
 public:
  void add(RankExit exit);
  bool failed() const noexcept { return failed_; }
  /// Empty while the culprit of the victims so far has not ended yet.
  std::optional<int> root_cause() const;
  /// What `tutti run` returns once all have ended.
  int exit_code(const Ending& ending) const;
  /// Null: it has not ended.
  const RankExit* exit_of(int rank) const noexcept;

 private:
  const RankExit* root_exit() const;

  std::vector<RankExit> exits_;
  bool failed_ = false;
};

}  // namespace tutti::launch
