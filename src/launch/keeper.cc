#include "launch/keeper.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <set>
#include <span>
#include <string_view>
#include <variant>

#include "base/rank_list.h"
#include "launch/messages.h"
#include "net/end_order.h"
#include "net/frame.h"
#include "net/guard.h"
#include "net/poller.h"
#include "net/process_tree.h"
#include "net/system_error.h"
#include "net/unix_socket.h"

namespace tutti::launch {
namespace {

/// Where it is not possible any more, since a mask has become smaller, the rank says so and runs
/// all the same.
void bind_to(const std::vector<int>& threads, int rank) {
  if (threads.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int thread : threads) {
    if (thread < CPU_SETSIZE) CPU_SET(thread, &set);
  }
  if (::sched_setaffinity(0, sizeof set, &set) == 0) return;
  std::fprintf(stderr, "tutti: rank %d: cannot be bound to cores %s: %s\n", rank,
               format_ranks(threads).c_str(), std::strerror(errno));
}

/// Of an open descriptor. What the user has handed down has no CLOEXEC, and all of ours have.
bool is_ours(int fd) noexcept {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) != 0;
}

/// The launcher's other descriptors (its ends of the pipes among them) are not the keeper's: ranks
/// must see the end of a pipe when the launcher closes it.
void close_the_launchers(const std::vector<RankCommand>& commands, int channel) {
  std::set<int> needed = {channel};
  for (const RankCommand& command : commands) {
    needed.insert({command.stdin_fd, command.stdout_fd, command.stderr_fd});
  }
  for (const int fd : net::numbers_in("/proc/self/fd")) {
    if (is_ours(fd) && !needed.contains(fd)) ::close(fd);
  }
}

/// Once the ranks have them.
void let_go_of_the_users() {
  net::let_go_of_standard();
  for (const int fd : net::numbers_in("/proc/self/fd")) {
    if (fd > STDERR_FILENO && !is_ours(fd)) ::close(fd);
  }
}

void tell_launcher(int channel, const Note& note) {
  const std::string packet = encode(note);
  // When the launcher is gone the end of the channel says so.
  net::send_packet(channel, std::as_bytes(std::span(packet)), true);
}

class KeeperLoop {
 public:
  KeeperLoop(const std::vector<RankCommand>& ranks, const Inherited& inherited, net::Kept& kept,
             pid_t guard, int channel)
      : ranks_(ranks),
        inherited_(inherited),
        pids_(ranks.size(), -1),
        kept_(kept),
        guard_(guard),
        channel_(channel) {}
  [[noreturn]] void run();

 private:
  void obey(std::string_view packet);
  void start_all();
  pid_t start(std::size_t rank);
  [[noreturn]] void become_rank(std::size_t rank, pid_t keeper);
  void signal_rank(std::size_t rank, int signal_number);
  void reap();
  void note(pid_t pid, int wait_status);
  void tell(const Note& note) { tell_launcher(channel_, note); }

  const std::vector<RankCommand>& ranks_;
  const Inherited inherited_;
  std::vector<pid_t> pids_;  ///< -1: not started, or reaped
  net::Kept& kept_;
  net::EndOrder order_;
  pid_t guard_;
  int channel_;
};

void KeeperLoop::become_rank(std::size_t rank, pid_t keeper) {
  const RankCommand& command = ranks_[rank];
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(127);  // it died before the line above
  // All three sources are above 2 (fork_keeper sees to it), so no dup2 overwrites another.
  ::dup2(command.stdin_fd, STDIN_FILENO);
  ::dup2(command.stdout_fd, STDOUT_FILENO);
  ::dup2(command.stderr_fd, STDERR_FILENO);
  bind_to(command.threads, command.rank);
  std::vector<char*> arguments, variables;
  for (const std::string& word : command.arguments) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  for (const std::string& word : command.variables) {
    variables.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  if (inherited_.ignores_children) ::signal(SIGCHLD, SIG_IGN);
  ::setrlimit(RLIMIT_NOFILE, &inherited_.open_files);
  ::sigprocmask(SIG_SETMASK, &inherited_.mask, nullptr);
  if (command.folder.empty() || ::chdir(command.folder.c_str()) == 0) {
    ::execve(command.path.c_str(), arguments.data(), variables.data());
  }
  tell(ExecFailed{command.rank, errno});
  ::_exit(127);
}

pid_t KeeperLoop::start(std::size_t rank) {
  const pid_t keeper = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become_rank(rank, keeper);
  if (pid > 0) ::setpgid(pid, pid);  // whoever of the two comes first
  return pid;
}

void KeeperLoop::start_all() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    pids_[rank] = start(rank);
    const RankCommand& command = ranks_[rank];
    if (pids_[rank] > 0) {
      kept_.add(pids_[rank]);
      order_.watch(pids_[rank]);
      tell(Started{command.rank, pids_[rank]});
    } else {
      tell(ExecFailed{command.rank, errno, false});
      tell(Exited{command.rank, W_EXITCODE(127, 0)});
    }
    for (const int fd : {command.stdin_fd, command.stdout_fd, command.stderr_fd}) ::close(fd);
  }
  let_go_of_the_users();
}

void KeeperLoop::signal_rank(std::size_t rank, int signal_number) {
  // Its process group, so that a program below a shell script hears it too. The number is ours
  // until we reap the rank.
  if (pids_[rank] > 0) ::kill(-pids_[rank], signal_number);
}

void KeeperLoop::obey(std::string_view packet) {
  net::FrameDecoder decoder(kMaxNoteBytes);
  decoder.feed(std::as_bytes(std::span(packet)));
  net::Frame frame;
  if (decoder.next(&frame) != net::FrameDecoder::Next::frame) return;
  const auto order = decode_order(frame.type, frame.body);
  if (!order) return;
  if (std::holds_alternative<Start>(*order)) start_all();
  if (std::holds_alternative<End>(*order)) net::end_keeper(guard_, kept_);
  const auto* const signal = std::get_if<Signal>(&*order);
  for (std::size_t rank = 0; signal != nullptr && rank < pids_.size(); ++rank) {
    const bool is_meant = signal->rank < 0 || signal->rank == ranks_[rank].rank;
    if (is_meant) signal_rank(rank, signal->number);
  }
}

void KeeperLoop::note(pid_t pid, int wait_status) {
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    if (pids_[rank] != pid) continue;
    const int number = ranks_[rank].rank;
    if (WIFSTOPPED(wait_status)) {
      tell(Stopped{number, WSTOPSIG(wait_status)});
    } else if (WIFCONTINUED(wait_status)) {
      tell(Continued{number});
    } else {
      pids_[rank] = -1;
      tell(Exited{number, wait_status});
    }
  }
}

/// First ranks in the order in which they have ended, then what else there is to wait for.
void KeeperLoop::reap() {
  int wait_status = 0;
  for (const pid_t rank : order_.ended())
    if (::waitpid(rank, &wait_status, WNOHANG) == rank) note(rank, wait_status);
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG | WUNTRACED | WCONTINUED)) > 0)
    note(pid, wait_status);
}

void KeeperLoop::run() {
  const net::Fd signals = net::read_signals({SIGCHLD, SIGCONT, net::kGuardDied});
  if (!signals) throw net::system_error("cannot make a signalfd", errno);
  tell(KeeperIs{::getpid()});
  for (;;) {
    net::Watch watches[] = {{.fd = channel_, .want_read = true},
                            {.fd = signals.get(), .want_read = true}};
    Deadline never;
    net::poll_any(watches, never);
    net::drain_signals(signals);
    if (::getppid() != guard_) net::end_keeper(guard_, kept_);
    reap();
    char packet[net::kFrameHeaderBytes + kMaxNoteBytes];
    const ssize_t got = ::recv(channel_, packet, sizeof packet, MSG_DONTWAIT);
    if (got > 0) {
      obey({packet, static_cast<std::size_t>(got)});
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      net::end_keeper(guard_, kept_);
    }
  }
}

void move_above_standard(int& fd) {
  if (fd > STDERR_FILENO) return;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (moved < 0) throw net::system_error("cannot duplicate a descriptor", errno);
  fd = moved;
}

[[noreturn]] void be_keeper(const std::vector<RankCommand>& ranks, const Inherited& inherited,
                            net::Kept& kept, pid_t guard, int channel) {
  net::never_stay_stopped();
  ::prctl(PR_SET_NAME, "tutti-keeper");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, net::kGuardDied);
  if (::getppid() != guard) ::_exit(1);  // it died before the line above; nothing is below yet
  ::setpgid(0, 0);                       // Ctrl-C reaches the launcher alone, which hands it on
  std::vector<RankCommand> commands = ranks;
  for (RankCommand& command : commands) {
    for (int* fd : {&command.stdin_fd, &command.stdout_fd, &command.stderr_fd}) {
      move_above_standard(*fd);
    }
  }
  close_the_launchers(commands, channel);
  KeeperLoop(commands, inherited, kept, guard, channel).run();
}

}  // namespace

Keeper fork_keeper(const std::vector<RankCommand>& ranks, const Inherited& inherited) {
  int ends[2], life[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw net::system_error("cannot make a pair of sockets for the keeper", errno);
  }
  Keeper keeper;
  keeper.channel = net::Fd(ends[0]);
  const net::Fd keepers_end(ends[1]);
  if (::pipe2(life, O_CLOEXEC) != 0) throw net::system_error("cannot make a pipe", errno);
  const net::Fd guards_end(life[0]);
  keeper.lifeline = net::Fd(life[1]);
  net::Kept kept(ranks.size());
  const pid_t launcher = ::getpid();
  keeper.guard = ::fork();
  if (keeper.guard < 0)
    throw net::no_thread_error("cannot make the process that guards the ranks", errno);
  if (keeper.guard > 0) return keeper;
  net::never_stay_stopped();
  ::prctl(PR_SET_NAME, "tutti-guard");
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);  // should it be stopped when the launcher ends
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::setpgid(0, 0);
  ::signal(SIGCHLD, SIG_DFL);
  keeper.channel.reset();
  keeper.lifeline.reset();
  const pid_t guard = ::getpid();
  try {
    const pid_t pid = ::fork();
    if (pid < 0) {
      tell_launcher(keepers_end.get(), NoKeeper{errno});
      ::_exit(1);
    }
    if (pid == 0) be_keeper(ranks, inherited, kept, guard, keepers_end.get());
    net::be_guard(pid, launcher, guards_end.get(), kept);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti: keeper: %s\n", error.what());
    net::kill_everything_below();
    ::_exit(1);
  }
}

}  // namespace tutti::launch
