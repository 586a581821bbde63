// The keeper of spawned processes: between the spawner and its ranks, so that no process is left.
// And the guard, between spawner and keeper, whose only task is the keeper.
//
// Both are as those of `tutti run` (launch/keeper.h): subreapers with one thread each, tied to the
// spawner by sockets that it alone holds open. But this pair is forked from a program that is not
// ours and may have threads. So it calls nothing but the system and malloc (which the C library
// keeps usable in such a child), never the log or another lock, and lets go of all descriptors of
// the program. The spawner itself becomes no subreaper, and has one child, the guard.
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
  net::Fd lifeline;  ///< closing it makes the guard kill everything and end

  /// Every process group of a rank that has not ended.
  void signal_ranks(int signal_number) const noexcept;
  /// Kill everything, and end.
  void end() const noexcept;
};

/// Becomes the rank in a process of its own, and never returns.
using BecomeRank = std::function<void(int rank)>;

/// Forks guard and keeper, which starts the ranks at once. `keeper_pid` is written before.
///
/// Errors  kSystem.
Keeper fork_keeper(int world_size, std::atomic<pid_t>& keeper_pid, const BecomeRank& become_rank);

}  // namespace tutti::spawning
