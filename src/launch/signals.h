// The signals of launcher, keeper and ranks.
//
// Launcher and keeper block every signal they read from a descriptor; ranks get back the mask that
// the launcher was started with. Dispositions are never changed, so what was ignored (nohup, a
// background job of a script) stays ignored in the ranks.
#pragma once

#include <csignal>
#include <vector>

namespace tutti::launch {

/// Signals that are handed on to the ranks: INT TERM HUP QUIT USR1 USR2 CONT TSTP, less those that
/// were ignored when the launcher was started.
std::vector<int> forwarded_signals();

/// Whether the user asks for the end of the job by it.
constexpr bool ends_a_job(int number) noexcept {
  return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

/// Whether `number` is ignored by this process.
bool is_ignored(int number) noexcept;

/// Stops until SIGCONT, which is pending then. False: the kernel stops nobody by SIGTSTP here, for
/// no shell could continue this process. Both signals are blocked, and are again.
bool stop_as_any_program() noexcept;

/// Blocks all signals of the calling thread but those of a fault; returns the former mask. Call it
/// before any thread is made.
sigset_t block_signals();

}  // namespace tutti::launch
