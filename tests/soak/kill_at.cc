// kill_at N PROGRAM...: runs the program and kills it (SIGKILL) as it begins its N-th system call
// after its first phase (kill_at.h), whichever of its threads makes it. With 0 it is not killed.
// Says "KILLED <now> <phase> <number of the system call>" or "COUNTED <calls until the phase end>"
// on stderr, and ends as the program did.
#include "soak/kill_at.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace {

using tutti::soak::kPhaseMark;
using tutti::soak::Phase;

long long now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

pid_t start(char** command) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  ::raise(SIGSTOP);
  ::execvp(command[0], command);
  ::_exit(127);
}

class Tracer {
 public:
  Tracer(pid_t child, long at) : child_(child), at_(at) {}

  /// Until the program has ended; its wait status.
  int run() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    ::ptrace(PTRACE_SETOPTIONS, child_, nullptr,
             PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    ::ptrace(PTRACE_SYSCALL, child_, nullptr, nullptr);
    for (;;) {
      const pid_t thread = ::waitpid(-1, &status, __WALL);
      if (thread < 0 && errno == EINTR) continue;
      if (thread < 0) return status;
      if (!WIFSTOPPED(status)) {
        if (thread == child_) return status;
        continue;
      }
      ::ptrace(PTRACE_SYSCALL, thread, nullptr, take_stop(thread, status));
    }
  }
  long counted() const { return counted_; }
  bool has_killed() const { return has_killed_; }

 private:
  /// The signal to go on with.
  unsigned long take_stop(pid_t thread, int status) {
    const int signal_number = WSTOPSIG(status);
    if (signal_number == (SIGTRAP | 0x80)) {
      look_at_call(thread);
      return 0;
    }
    const bool is_event = status >> 16 != 0 || signal_number == SIGTRAP;
    // A thread or program that begins stops once; nobody else stops a rank of this soak.
    return is_event || signal_number == SIGSTOP ? 0 : static_cast<unsigned long>(signal_number);
  }

  void look_at_call(pid_t thread) {
    __ptrace_syscall_info info{};
    ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
    if (info.entry.nr == SYS_prctl && info.entry.args[0] == kPhaseMark) {
      phase_ = static_cast<int>(info.entry.args[1]);
      return;
    }
    if (phase_ == 0 || phase_ >= static_cast<int>(Phase::end) || has_killed_) return;
    if (++counted_ != at_) return;
    has_killed_ = true;
    // Said before: whoever is told of the death must not be faster than we are.
    std::fprintf(stderr, "KILLED %lld %d %llu\n", now(), phase_,
                 static_cast<unsigned long long>(info.entry.nr));
    ::kill(child_, SIGKILL);
  }

  const pid_t child_;
  const long at_;
  long counted_ = 0;
  int phase_ = 0;
  bool has_killed_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: kill_at N PROGRAM...\n");
    return 2;
  }
  Tracer tracer(start(argv + 2), std::atol(argv[1]));
  const int status = tracer.run();
  if (!tracer.has_killed()) std::fprintf(stderr, "COUNTED %ld\n", tracer.counted());
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  ::signal(WTERMSIG(status), SIG_DFL);
  ::raise(WTERMSIG(status));
  return 128 + WTERMSIG(status);
}
