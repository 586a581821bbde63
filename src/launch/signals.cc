#include "launch/signals.h"

#include <unistd.h>

#include "net/process_info.h"
#include "net/process_tree.h"

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

bool is_in_orphaned_group() {
  const pid_t group = ::getpgrp(), session = ::getsid(0);
  for (const pid_t pid : net::numbers_in("/proc")) {
    const auto member = net::stat_of(pid);
    if (!member || member->group != group || member->state == 'Z') continue;
    const auto parent = net::stat_of(member->parent);
    if (parent && parent->session == session && parent->group != group) return false;
  }
  return true;
}

void stop_as_any_program() noexcept {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
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
