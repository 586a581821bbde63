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
    if (!is_ignored(number)) numbers.push_back(number);
  }
  return numbers;
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
