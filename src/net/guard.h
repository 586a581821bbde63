// The guard: between a process and its *keeper*, which starts other processes for it, so that none
// of these is left whoever dies or is stopped.
//
// Guard and keeper are subreapers with one thread each. The guard is tied to the process by a
// lifeline whose other end that alone holds open, the keeper to the guard by a signal of its death.
// Both may be copies of a program that is not ours and has threads: what is here calls nothing but
// the system and malloc, which the C library keeps usable in such a child.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <initializer_list>

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

/// What the guard does from the fork of the keeper on: when the lifeline closes, `parent` is gone
/// or the keeper has ended, it kills everything below itself and exits. A keeper that somebody has
/// stopped goes on. It holds no other descriptor.
[[noreturn]] void be_guard(pid_t keeper, pid_t parent, int lifeline);

/// In the keeper: kills everything below it and exits. A guard that is stopped goes on, and ends.
[[noreturn]] void end_keeper(pid_t guard);

}  // namespace tutti::net
