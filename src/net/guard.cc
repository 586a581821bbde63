#include "net/guard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <limits>

#include "net/poller.h"
#include "net/process_tree.h"
#include "net/system_error.h"

namespace tutti::net {
namespace {

/// A copy of the parent may hold its end of the lifeline open.
constexpr std::chrono::seconds kLooksForParent{1};
constexpr time_t kStaysStopped = 1;  ///< in seconds, at most
constexpr std::chrono::milliseconds kWakesGuard{10};
constexpr std::chrono::seconds kGuardEnds{10};  ///< one in a debugger ends later, by itself

/// Nobody is meant to stop it: what becomes of the ranks would not be told.
bool has_ended(pid_t keeper) noexcept {
  int status = 0;
  const pid_t pid = ::waitpid(keeper, &status, WNOHANG | WUNTRACED);
  const bool is_stopped = pid == keeper && WIFSTOPPED(status);
  if (is_stopped) ::kill(keeper, SIGCONT);
  return pid != 0 && !is_stopped;
}

[[noreturn]] void end_everything(const std::vector<pid_t>& known) {
  kill_everything_below(known);
  ::_exit(0);
}

/// Needs no descriptor itself. False: the kernel cannot, before Linux 5.9, or a sandbox refuses.
bool close_between(std::vector<int> needed) {
  constexpr int kNone = std::numeric_limits<int>::max();
  needed.push_back(kNone);
  std::sort(needed.begin(), needed.end());
  long first = STDERR_FILENO + 1;
  for (const int fd : needed) {
    if (fd > first && ::syscall(SYS_close_range, first, fd - 1L, 0) != 0) return false;
    first = std::max(first, fd + 1L);
  }
  return true;
}

void close_those_that_proc_shows(std::initializer_list<int> needed) {
  for (const int fd : numbers_in("/proc/self/fd")) {
    if (fd > STDERR_FILENO && std::find(needed.begin(), needed.end(), fd) == needed.end()) {
      ::close(fd);
    }
  }
}

}  // namespace

Fd read_signals(std::initializer_list<int> numbers) noexcept {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) ::sigaddset(&set, number);
  return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

void drain_signals(const Fd& signals) noexcept {
  signalfd_siginfo info;
  while (::read(signals.get(), &info, sizeof info) > 0) {
  }
}

void let_go_of_standard() noexcept {
  const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (nothing) ::dup2(nothing.get(), fd);
  }
}

void let_go_of_all_but(std::initializer_list<int> needed) {
  // The table may be full, and /dev/null needs a place in it.
  if (!close_between(needed)) close_those_that_proc_shows(needed);
  let_go_of_standard();
}

void never_stay_stopped() noexcept {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  timer_t timer = {};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return;  // others wake it, as a rule
  const itimerspec each = {.it_interval = {kStaysStopped, 0}, .it_value = {kStaysStopped, 0}};
  ::timer_settime(timer, 0, &each, nullptr);
}

Kept::Kept(std::size_t most) {
  most = std::max<std::size_t>(most, 1);  // no memory is of no size
  using Pid = std::atomic<pid_t>;
  void* const memory = ::mmap(nullptr, most * sizeof(Pid), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error("cannot map memory for the keeper", errno);
  pids_ = {static_cast<Pid*>(memory), most};
}

Kept::~Kept() { ::munmap(pids_.data(), pids_.size_bytes()); }

std::vector<pid_t> Kept::all() const {
  std::vector<pid_t> all;
  for (const std::atomic<pid_t>& pid : pids_) {
    if (pid.load() > 0) all.push_back(pid.load());
  }
  return all;
}

void be_guard(pid_t keeper, pid_t parent, int lifeline, const Kept& kept) {
  const Fd signals = read_signals({SIGCHLD, SIGCONT});
  let_go_of_all_but({lifeline, signals.get()});
  for (;;) {
    Watch watches[] = {{.fd = lifeline, .want_read = true},
                       {.fd = signals.get(), .want_read = true}};
    Deadline soon = Deadline::after(kLooksForParent);
    poll_any(watches, soon);
    drain_signals(signals);
    if (watches[0].readable || ::getppid() != parent || has_ended(keeper)) {
      std::vector<pid_t> known = kept.all();
      known.push_back(keeper);
      end_everything(known);
    }
  }
}

void end_keeper(pid_t guard, const Kept& kept) {
  kill_everything_below(kept.all());
  Deadline end = Deadline::after(kGuardEnds);
  while (::getppid() == guard) {
    ::kill(guard, SIGCONT);
    if (pause(kWakesGuard, end) == PollResult::expired) break;
  }
  ::_exit(0);
}

}  // namespace tutti::net
