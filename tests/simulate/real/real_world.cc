#include "simulate/real/real_world.h"

#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <system_error>
#include <thread>

namespace tutti::simulate {

using namespace std::chrono_literals;

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::system_error(errno, std::generic_category(), what);
}

/// A timer of the kernel lets the process go on: again and again, since a first signal might come
/// before the process has stopped.
void stop_for(std::chrono::nanoseconds lasts) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  timer_t timer = {};
  require(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  itimerspec when = {};
  when.it_value = {.tv_sec = lasts / 1s, .tv_nsec = lasts % 1s / 1ns};
  when.it_interval = {.tv_sec = 0, .tv_nsec = 10'000'000};
  require(::timer_settime(timer, 0, &when, nullptr) == 0, "timer_settime");
  const auto until = Clock::now() + lasts;
  ::kill(::getpid(), SIGSTOP);
  // The signal may go to another thread first, which then stops this one.
  while (Clock::now() < until) std::this_thread::sleep_for(100us);
  ::timer_delete(timer);
}

/// From now on the system reserves no memory for any thread of this process.
void refuse_memory() {
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program = {.len = filter.size(), .filter = filter.data()};
  require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
  require(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0,
          "refusing fallocate");
}

}  // namespace

void RealWorld::pause(std::chrono::nanoseconds lasts) { std::this_thread::sleep_for(lasts); }

std::function<void()> RealWorld::start_thread(std::function<void()> body) {
  auto thread = std::make_shared<std::thread>(std::move(body));
  return [thread] { thread->join(); };
}

ProcessGroup RealWorld::make_world(int rank) {
  InitOptions init = init_;
  init.rank = rank;
  init.world_size = plan_.ranks();
  const std::string timeout = fmt::format("{}ms", plan_.timeout.count());
  init.settings = {{"timeout", timeout},
                   {"stall_timeout", timeout},
                   {"close_timeout", timeout},
                   {"deadlock", plan_.warns ? "warn" : "fail"},
                   {"deadlock_after", fmt::format("{}us", plan_.timeout / 4 / 1us)}};
  return init_process_group(init);
}

void RealWorld::befall(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::stop:
      return stop_for(fault.lasts);
    case FaultKind::freeze:
      signal_others_of_host(SIGSTOP, fault);
      stop_for(fault.lasts);
      return signal_others_of_host(SIGCONT, fault);
    case FaultKind::cut:
      return hosts_->cut(plan_, fault);
    case FaultKind::error:
      return refuse_memory();
    case FaultKind::die:
    case FaultKind::lose:
      if (fault.lasts == 0ns) return die(fault);
      std::thread([this, fault] {
        std::this_thread::sleep_for(fault.lasts);
        die(fault);
      }).detach();
      return;
    case FaultKind::none:
    case FaultKind::late:
    case FaultKind::disagree:
    case FaultKind::skip:
    case FaultKind::abort:
    case FaultKind::quit:
    case FaultKind::slow:
    case FaultKind::swap:
      return;  // the program's own
  }
}

void RealWorld::die(const Fault& fault) const {
  if (fault.kind == FaultKind::lose) signal_others_of_host(SIGKILL, fault);
  ::kill(::getpid(), SIGKILL);
}

/// The other processes of the script on the host of the rank that the fault befalls.
void RealWorld::signal_others_of_host(int number, const Fault& fault) const {
  for (const int process : plan_.processes_of(plan_.host_of(fault.who))) {
    const pid_t pid = pids_[static_cast<std::size_t>(process)].load();
    if (pid > 0 && pid != ::getpid()) ::kill(pid, number);
  }
}

void use_cores_of(const Plan& plan) {
  cpu_set_t cores;
  require(::sched_getaffinity(0, sizeof(cores), &cores) == 0, "sched_getaffinity");
  int left = plan.cores;
  // Those of different plans are not all the same ones.
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    const auto core = static_cast<std::size_t>(i + static_cast<int>(plan.seed % 64)) % CPU_SETSIZE;
    if (CPU_ISSET(core, &cores) && left-- <= 0) CPU_CLR(core, &cores);
  }
  require(::sched_setaffinity(0, sizeof(cores), &cores) == 0, "sched_setaffinity");
}

}  // namespace tutti::simulate
