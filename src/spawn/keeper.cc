#include "spawn/keeper.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <span>

#include "base/of_rank.h"
#include "net/end_order.h"
#include "net/guard.h"
#include "net/poller.h"
#include "net/system_error.h"
#include "net/unix_socket.h"

namespace tutti::spawning {
namespace {

/// What the spawning thread had, for its ranks.
struct Inherited {
  sigset_t mask = {};
  struct sigaction on_child = {};
  std::array<char, 16> name = {};
};

/// All signals blocked, in this thread and in what it forks.
class AllBlocked {
 public:
  explicit AllBlocked(Inherited& inherited) noexcept : inherited_(inherited) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &inherited.mask);
    ::sigaction(SIGCHLD, nullptr, &inherited.on_child);
    ::prctl(PR_GET_NAME, inherited.name.data());
  }
  ~AllBlocked() { pthread_sigmask(SIG_SETMASK, &inherited_.mask, nullptr); }
  AllBlocked(const AllBlocked&) = delete;
  AllBlocked& operator=(const AllBlocked&) = delete;

 private:
  const Inherited& inherited_;
};

class KeeperLoop {
 public:
  KeeperLoop(int world_size, const BecomeRank& become_rank, const Inherited& inherited,
             net::Kept& kept, pid_t guard, int channel)
      : become_rank_(become_rank),
        inherited_(inherited),
        pids_(static_cast<std::size_t>(world_size), -1),
        kept_(kept),
        guard_(guard),
        channel_(channel),
        signals_(net::read_signals({SIGCHLD, SIGCONT, net::kGuardDied})) {}
  [[noreturn]] void run();

 private:
  void start_all();
  [[noreturn]] void start_none(int error);
  [[noreturn]] void be_rank(int rank, pid_t keeper);
  void note(pid_t pid, int wait_status) noexcept;
  void reap(net::EndOrder& order);
  void signal_ranks(std::int32_t number) noexcept;
  void tell(const Note& note) noexcept {
    // When the spawner is gone the loop sees the end of the channel itself.
    net::send_packet(channel_, std::as_bytes(std::span(&note, 1)), true);
  }

  const BecomeRank& become_rank_;
  const Inherited& inherited_;
  std::vector<pid_t> pids_;  ///< -1: not started, or reaped
  net::Kept& kept_;
  const pid_t guard_;
  const int channel_;
  net::Fd signals_;
};

void KeeperLoop::be_rank(int rank, pid_t keeper) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(127);  // it died before the line above
  signals_.reset();
  ::close(channel_);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing > STDIN_FILENO) {
    ::dup2(nothing, STDIN_FILENO);
    ::close(nothing);
  }
  ::prctl(PR_SET_NAME, inherited_.name.data());
  ::sigaction(SIGCHLD, &inherited_.on_child, nullptr);
  pthread_sigmask(SIG_SETMASK, &inherited_.mask, nullptr);
  become_rank_(rank);
  ::_exit(127);
}

void KeeperLoop::start_all() {
  const pid_t keeper = ::getpid();
  for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) be_rank(rank, keeper);
    if (pid < 0) {
      tell({Note::Kind::not_forked, rank, errno});
      continue;
    }
    ::setpgid(pid, pid);  // whoever of the two comes first
    of_rank(pids_, rank) = pid;
    kept_.add(pid);
    tell({Note::Kind::started, rank, pid});
  }
}

void KeeperLoop::start_none(int error) {
  for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank)
    tell({Note::Kind::not_forked, rank, error});
  ::_exit(1);
}

void KeeperLoop::note(pid_t pid, int wait_status) noexcept {
  const auto found = std::find(pids_.begin(), pids_.end(), pid);
  if (found == pids_.end()) return;
  *found = -1;
  tell({Note::Kind::ended, static_cast<std::int32_t>(found - pids_.begin()), wait_status});
}

/// First ranks in the order in which they have ended, then what else there is to wait for.
void KeeperLoop::reap(net::EndOrder& order) {
  int wait_status = 0;
  for (const pid_t rank : order.ended())
    if (::waitpid(rank, &wait_status, WNOHANG) == rank) note(rank, wait_status);
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) note(pid, wait_status);
}

void KeeperLoop::signal_ranks(std::int32_t number) noexcept {
  // The numbers are ours until we reap the ranks.
  for (const pid_t pid : pids_) {
    if (pid > 0) ::kill(-pid, number);
  }
}

void KeeperLoop::run() {
  if (!signals_) start_none(errno);
  net::never_stay_stopped();
  ::prctl(PR_SET_NAME, "tutti-keeper");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, net::kGuardDied);
  if (::getppid() != guard_) ::_exit(1);  // it died before the line above; nothing is below yet
  ::setpgid(0, 0);                        // Ctrl-C reaches the spawner alone
  start_all();
  net::let_go_of_all_but({channel_, signals_.get()});
  net::EndOrder order;
  for (const pid_t pid : pids_)
    if (pid > 0) order.watch(pid);
  for (;;) {
    net::Watch watches[] = {{.fd = channel_, .want_read = true},
                            {.fd = signals_.get(), .want_read = true}};
    Deadline never;
    net::poll_any(watches, never);
    net::drain_signals(signals_);
    if (::getppid() != guard_) net::end_keeper(guard_, kept_);
    reap(order);
    std::int32_t number = 0;
    const ssize_t got = ::recv(channel_, &number, sizeof number, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got != sizeof number) net::end_keeper(guard_, kept_);
    signal_ranks(number);
  }
}

/// In the guard, which must not return into the program.
[[noreturn]] void be_guard_of_keeper(int world_size, std::atomic<pid_t>& keeper_pid,
                                     const BecomeRank& become_rank, const Inherited& inherited,
                                     net::Kept& kept, pid_t spawner, int channel,
                                     int lifeline) noexcept {
  net::never_stay_stopped();
  ::prctl(PR_SET_NAME, "tutti-guard");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::setpgid(0, 0);
  ::signal(SIGCHLD, SIG_DFL);
  const pid_t guard = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) ::_exit(1);
  if (pid == 0) {
    ::close(lifeline);
    keeper_pid.store(::getpid());
    KeeperLoop(world_size, become_rank, inherited, kept, guard, channel).run();
  }
  net::be_guard(pid, spawner, lifeline, kept);
}

}  // namespace

void Keeper::end() noexcept {
  ::shutdown(lifeline.get(), SHUT_RDWR);  // a copy of the spawner may hold it open
  lifeline.reset();
}

void Keeper::wake() const noexcept {
  siginfo_t info;  // the program may have reaped it
  const bool is_ours = ::waitid(P_PID, id_t(guard), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  if (is_ours) ::kill(guard, SIGCONT);
}

void Keeper::signal_ranks(int signal_number) const noexcept {
  wake();
  const std::int32_t number = signal_number;
  net::send_packet(channel.get(), std::as_bytes(std::span(&number, 1)), false);
}

Keeper fork_keeper(int world_size, std::atomic<pid_t>& keeper_pid, const BecomeRank& become_rank) {
  int life[2], ends[2];
  const auto own_end = [](const auto& make, int* pair) {
    return net::Fd::open_private([&] { return make(pair) == 0 ? pair[0] : -1; });
  };
  Keeper keeper;
  keeper.channel = own_end(
      [](int* pair) { return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair); },
      ends);
  if (!keeper.channel) throw net::system_error("cannot make a pair of sockets", errno);
  const net::Fd keepers_end(ends[1]);
  keeper.lifeline = own_end(
      [](int* pair) { return ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair); }, life);
  if (!keeper.lifeline) throw net::system_error("cannot make a pair of sockets", errno);
  const net::Fd guards_end(life[1]);
  const pid_t spawner = ::getpid();
  net::Kept kept(static_cast<std::size_t>(world_size));
  Inherited inherited;
  const AllBlocked blocked(inherited);
  keeper.guard = ::fork();
  if (keeper.guard < 0) throw net::no_thread_error("cannot fork", errno);
  if (keeper.guard == 0) {
    be_guard_of_keeper(world_size, keeper_pid, become_rank, inherited, kept, spawner,
                       keepers_end.get(), guards_end.get());
  }
  return keeper;
}

}  // namespace tutti::spawning
