// The keeper: a tiny process between launcher and ranks, whose only task is that no process is
// left. And the guard (net/guard.h): a still smaller one between launcher and keeper, whose only
// task is the keeper.
//
// Both are forked while the launcher has one thread, and never have a second one, so that the
// keeper may fork ranks at any time. Both are subreapers: whatever a rank leaves behind becomes the
// keeper's child, or the guard's once the keeper has died. Whichever of launcher, guard and keeper
// dies, one that is left kills everything below itself: the keeper is tied to the launcher by a
// pair of sockets and to the guard by a signal of its death, the guard to the launcher by a pipe;
// ranks get SIGKILL from the kernel when the keeper dies (PDEATHSIG). One that is stopped goes on:
// the keeper by its guard, the guard by the launcher or at its end, and each by a timer of its own.
//
// The launcher, too, is a subreaper, for what guard and keeper leave that die at once: unless its
// process was a parent before it became `tutti run` (sh -c "x & exec tutti run ..."), for then not
// all that stands below it is of the job; or it cannot see by /proc what that is. Without /proc
// keeper and guard kill what they know: ranks, and their process groups.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "net/fd.h"

namespace tutti::launch {

/// What the keeper must know to start one rank.
struct RankCommand {
  int rank = 0;
  std::string path;                    ///< for execve
  std::string folder = {};             ///< where it starts; empty: here
  std::vector<int> threads = {};       ///< of the hardware, to which it is bound; none: it is not
  std::vector<std::string> arguments;  ///< arguments[0] is the name shown
  std::vector<std::string> variables = {};  ///< "NAME=value"
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;
};

/// What ranks get of the launcher's own state.
struct Inherited {
  sigset_t mask = {};
  rlimit open_files = {};         ///< RLIMIT_NOFILE
  bool ignores_children = false;  ///< SIGCHLD was ignored
};

struct Keeper {
  pid_t guard = -1;  ///< the launcher's child; it ends last
  net::Fd channel;   ///< SOCK_SEQPACKET to the keeper; end of file: it is gone
  net::Fd lifeline;  ///< closing it makes the guard kill everything and exit
};

/// Forks the guard, and it the keeper; the first note says whether there is one. The keeper starts
/// the ranks at the order Start, forwards each Signal, tells in notes what becomes of them, and at
/// End, or when the channel closes, kills what is left and exits.
///
/// Errors  kSystem: no process, pipe, socket or memory for the guard.
Keeper fork_keeper(const std::vector<RankCommand>& ranks, const Inherited& inherited);

}  // namespace tutti::launch
