#include "launch/signals.h"

namespace tutti::launch {

bool is_ignored(int number) noexcept {
  struct sigaction action = {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

std::vector<int> forwarded_signals() {
  std::vector<int> numbers;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP}) {
    // Who ignores SIGCONT goes on all the same.
    if (number == SIGCONT || !is_ignored(number)) numbers.push_back(number);
  }
  return numbers;
}

bool stop_as_any_program() noexcept {
  sigset_t stop, pending;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);  // drops each SIGCONT that is pending, and is one with a further Ctrl-Z
  ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGCONT) == 1;
}

sigset_t block_signals() {
  sigset_t blocked, former;
  ::sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    ::sigdelset(&blocked, fault);
  }
  ::pthread_sigmask(SIG_SETMASK, &blocked, &former);
  return former;
}

}  // namespace tutti::launch
