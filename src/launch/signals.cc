#include "launch/signals.h"

namespace tutti::launch {

std::vector<int> forwarded_signals() {
  std::vector<int> numbers;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP}) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) numbers.push_back(number);
  }
  return numbers;
}

bool ends_process(int signal_number) noexcept {
  return signal_number != SIGCONT && signal_number != SIGTSTP;
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
