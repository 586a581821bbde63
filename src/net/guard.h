// The guard: between a process and its *keeper*, which starts other processes for it, so that none
// of these is left whoever dies or is stopped.
//
// Guard and keeper are subreapers with one thread each. The guard is tied to the process by a
// lifeline whose other end that alone holds open, the keeper to the guard by a signal of its death.
// Both may be copies of a program that is not ours and has threads: what is here calls nothing but
// the system and malloc, which the C library keeps usable in such a child.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

#include "net/fd.h"

namespace tutti::net {

/// The keeper asks to hear by it that the guard died (PR_SET_PDEATHSIG).
inline constexpr int kGuardDied = SIGUSR1;

/// A descriptor from which these signals are read, which must be blocked. Empty: errno says why.
Fd read_signals(std::initializer_list<int> numbers) noexcept;
void drain_signals(const Fd& signals) noexcept;

/// The standard descriptors become /dev/null: as long as somebody holds a pipe of the program open,
/// its other end sees no end.
void let_go_of_standard() noexcept;
/// The same, and all others but `needed` are closed.
void let_go_of_all_but(std::initializer_list<int> needed);

/// From now on this process goes on within a second after somebody has stopped it, though nobody be
/// left to continue it: by a timer that sends SIGCONT. This must be blocked, and read, for of one
/// that waits the timer sends no second. No child inherits it.
void never_stay_stopped() noexcept;

/// The processes that a keeper has started, each in a group of its own, where its guard sees them
/// as well: for where /proc shows nobody.
class Kept {
 public:
  /// Before the guard is forked, for at most so many.
  ///
  /// Errors  kSystem.
  explicit Kept(std::size_t most);
  ~Kept();
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  void add(pid_t pid) noexcept { pids_[count_++].store(pid); }
  std::vector<pid_t> all() const;

 private:
  std::span<std::atomic<pid_t>> pids_;
  std::size_t count_ = 0;
};

/// What the guard does from the fork of the keeper on: when the lifeline closes, `parent` is gone
/// or the keeper has ended, it kills everything below itself and exits. A keeper that somebody has
/// stopped goes on. It holds no other descriptor.
[[noreturn]] void be_guard(pid_t keeper, pid_t parent, int lifeline, const Kept& kept);

/// In the keeper: kills everything below it, and ends after its guard, which goes on if it is
/// stopped, and ends as well. A guard that does not within 10 s is held by a debugger.
[[noreturn]] void end_keeper(pid_t guard, const Kept& kept);

}  // namespace tutti::net
