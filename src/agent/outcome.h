// Why a job ended, from the exits of its ranks.
//
// An exit is *abnormal* unless it is exit(0). It is *ours* when we had asked the rank to die. A
// rank is a *victim* when the first of its failures on the status board blames other ranks, and
// not itself; it often exits before its culprit does, whose memory the kernel is still giving
// back. The *root cause* is the first abnormal exit that is neither ours nor a victim's; if there
// are several, one whose last words are not that another rank was lost. If there is none, it is
// the rank that a victim blames; if that is a victim too, the rank that this one blames.
//
// A rank may also end with 0 and leave a failure *untold*: its group failed and its program never
// heard of it. That is a failure of the job, and the root cause if no exit is abnormal. A failure
// that every program was told of is the programs' own matter: their exit codes count.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/error.h"

namespace tutti::agent {

/// A failure of which its rank's program was not told.
struct UntoldFailure {
  ErrorCode code = ErrorCode::kInternal;
  std::vector<int> culprits = {};  ///< empty where not known
  std::string text = {};
  bool is_told = false;  ///< it was, but somebody whom the failure concerns had left
};

struct RankExit {
  int rank = 0;
  int wait_status = 0;             ///< as waitpid gives it
  bool ours = false;               ///< we had signalled it
  std::vector<int> culprits = {};  ///< whom its first failure blames; empty: nobody
  std::string disagreement = {};   ///< what the board says the ranks disagreed about
  std::string failure = {};        ///< why its first group failed, from the board; empty: none did
  std::string doing = {};          ///< at its end, from the board; empty: it was never in a world
  std::string error = {};          ///< what its program has said in its error file
  /// Of one of its groups, which its program has not been told of.
  std::optional<UntoldFailure> untold = {};
};

bool is_abnormal(int wait_status) noexcept;
/// The code a shell shows: the exit code, or 128 + signal.
int code_of(int wait_status) noexcept;
/// "SIGINT".
std::string describe_signal(int signal_number);

inline constexpr int kTimedOutCode = 124;  ///< as of timeout(1)

/// Why we ended the job ourselves.
struct Ending {
  bool timed_out = false;
  bool rendezvous_failed = false;
  bool keeper_died = false;  ///< or its guard, before any rank failed or was asked to end
  int signal_number = 0;     ///< forwarded to the ranks before any of them failed
};

class Outcome {
 public:
  void add(RankExit exit);
  bool failed() const noexcept { return failed_; }
  /// Empty while the culprit of the victims so far has not ended yet, and when no rank is to blame.
  std::optional<int> root_cause() const;
  /// What the ranks disagreed about, or what was left untold, if that is why the job failed.
  std::string why() const;
  /// What `tutti run` returns once all have ended.
  int exit_code(const Ending& ending) const;
  /// Null: it has not ended.
  const RankExit* exit_of(int rank) const noexcept;

 private:
  const RankExit* root_exit() const;
  /// Whom a victim blames, in the end; null: it has not ended.
  const RankExit* blamed_by(const RankExit& victim) const;
  /// The first failure that was left untold; null: none.
  const RankExit* untold_exit() const noexcept;

  std::vector<RankExit> exits_;
  bool failed_ = false;
};

}  // namespace tutti::agent
