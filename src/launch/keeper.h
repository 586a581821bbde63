// The keeper: a tiny process between launcher and ranks, whose only task is that no process is
// left.
//
// It is forked from the launcher while that has one thread, and never has a second one, so that it
// may fork ranks at any time. It is a subreaper: whatever its ranks leave behind becomes its child.
// A pair of sockets ties it to the launcher. If the launcher dies the keeper kills everything below
// itself; if the keeper dies its ranks get SIGKILL from the kernel (PDEATHSIG), and what they leave
// behind becomes the launcher's child, which is a subreaper as well.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "net/fd.h"

namespace tutti::launch {

/// What the keeper must know to start one rank.
struct RankCommand {
  std::string path;                         ///< for execve
  std::vector<std::string> arguments;       ///< arguments[0] is the name shown
  std::vector<std::string> variables = {};  ///< "NAME=value"
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;
};

/// Launcher to keeper.
struct Order {
  enum class Kind : std::uint32_t { start, signal, end };
  Kind kind = Kind::start;
  std::int32_t rank = -1;  ///< signal: one rank, or all (-1)
  std::int32_t signal_number = 0;
};

/// Keeper to launcher. `exec_failed` comes from the child itself, before its exit.
struct Note {
  enum class Kind : std::uint32_t { started, exec_failed, exited };
  Kind kind = Kind::started;
  std::int32_t rank = 0;
  std::int32_t value = 0;  ///< pid, errno, wait status
};

struct Keeper {
  pid_t pid = -1;
  net::Fd channel;  ///< SOCK_SEQPACKET; end of file: the keeper is gone
};

/// Forks the keeper. It starts the ranks when the order `start` comes, forwards signals, notes
/// exits, and on `end`, or when the channel closes, kills what is left and exits.
/// `rank_mask` is the signal mask ranks get.
Keeper fork_keeper(const std::vector<RankCommand>& ranks, const sigset_t& rank_mask);

/// Kills all descendants of this process and reaps them until none is left. `reaped` is called for
/// each; it may be empty.
void kill_everything_below(const std::function<void(pid_t, int wait_status)>& reaped = {});

}  // namespace tutti::launch
