// The keeper of spawned processes: between the spawner and its ranks, so that no process is left.
// And the guard (net/guard.h), between spawner and keeper, whose only task is the keeper.
//
// Both are as those of `tutti run` (launch/keeper.h), tied to the spawner by sockets that it alone
// holds open. But this pair is forked from a program that is not ours and may have threads: it
// never calls the log, or takes another lock, and lets go of all descriptors of the program. The
// spawner itself becomes no subreaper, and has one child, the guard: guard and keeper killed in the
// same moment leave what ranks have started, though not the ranks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "net/fd.h"

namespace tutti::spawning {

/// What the keeper tells the spawner, a packet each.
struct Note {
  enum class Kind : std::int32_t {
    started,     ///< value: the pid
    ended,       ///< value: as waitpid gives it
    not_forked,  ///< value: errno
  };
  Kind kind = Kind::started;
  std::int32_t rank = 0;
  std::int32_t value = 0;
};

struct Keeper {
  pid_t guard = -1;  ///< the spawner's child; it ends last
  net::Fd channel;   ///< notes come here; end of file: the keeper is gone
  net::Fd lifeline;  ///< to the guard, which ends everything at its end

  /// Every process group of a rank that has not ended.
  void signal_ranks(int signal_number) const noexcept;
  /// The guard kills everything, and ends.
  void end() noexcept;
  /// A guard that is stopped goes on, and lets a keeper that is stopped go on.
  void wake() const noexcept;
};

/// Becomes the rank in a process of its own, and never returns.
using BecomeRank = std::function<void(int rank)>;

/// Forks guard and keeper, which starts the ranks at once. `keeper_pid` is written before.
///
/// Errors  kSystem.
Keeper fork_keeper(int world_size, std::atomic<pid_t>& keeper_pid, const BecomeRank& become_rank);

}  // namespace tutti::spawning
