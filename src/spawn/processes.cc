// Ranks as processes, by fork or by exec.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "base/of_rank.h"
#include "net/poller.h"
#include "spawn/child.h"
#include "spawn/keeper.h"
#include "spawn/ranks.h"

namespace tutti::spawning {
namespace {

using namespace std::chrono_literals;

/// For the kernel to give back a large memory.
constexpr auto kGoes = 10s;
constexpr auto kLooksAgain = 1ms;

class Processes : public Ranks {
 public:
  Processes(Keeper keeper, const std::atomic<pid_t>& keeper_pid) noexcept
      : keeper_(std::move(keeper)), keeper_pid_(keeper_pid) {}
  ~Processes() override;
  std::array<int, 2> fds() const noexcept override {
    return {keeper_.channel.get(), has_guard_ended_ ? -1 : keeper_.lifeline.get()};
  }
  std::vector<Event> read() override;
  void ask(const std::string& reason) override {
    static_cast<void>(reason);
    keeper_.signal_ranks(SIGTERM);
    keeper_.signal_ranks(SIGCONT);  // one that is stopped is to hear it
  }
  /// By the guard: a keeper that does not answer goes with its ranks.
  void force() override {
    keeper_.end();
    if (has_guard_ended_) signal_keeper(SIGKILL);
  }
  bool finish() override;
  std::string leave_behind() override {
    keeper_.end();
    is_awaited_ = false;
    return fmt::format("processes below the guard, pid {}", keeper_.guard);
  }

 private:
  void signal_keeper(int signal_number) const noexcept;
  bool has_guard_just_ended();
  std::vector<Event> read_notes();

  Keeper keeper_;
  const std::atomic<pid_t>& keeper_pid_;
  bool has_guard_ended_ = false;
  bool is_awaited_ = true;  ///< the guard
};

/// Of ranks that nobody has looked after, since the job could not be made, nothing stays, either.
Processes::~Processes() {
  Deadline deadline = Deadline::after(kGoes);
  while (is_awaited_ && !finish() &&
         net::pause(kLooksAgain, deadline) != net::PollResult::expired) {
  }
}

/// The guard may have ended before there was one: 0 would be all of this program's group.
void Processes::signal_keeper(int signal_number) const noexcept {
  const pid_t keeper = keeper_pid_.load();
  if (keeper_.channel && keeper > 0) ::kill(keeper, signal_number);
}

bool Processes::has_guard_just_ended() {
  net::Watch watch{.fd = has_guard_ended_ ? -1 : keeper_.lifeline.get(), .want_read = true};
  Deadline now = Deadline::after(0ms);
  net::poll_any({&watch, 1}, now);
  return watch.readable;
}

std::vector<Event> Processes::read() {
  const bool is_guard_gone = has_guard_just_ended();
  if (is_guard_gone) {
    has_guard_ended_ = true;
    signal_keeper(SIGCONT);
  }
  std::vector<Event> events = read_notes();  // ranks may have ended before it
  if (is_guard_gone) events.push_back({Event::Kind::guard_gone});
  return events;
}

std::vector<Event> Processes::read_notes() {
  std::vector<Event> events;
  while (keeper_.channel) {
    Note note;
    const ssize_t got = ::recv(keeper_.channel.get(), &note, sizeof note, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return events;
    if (got != sizeof note) {
      keeper_.channel.reset();
      events.push_back({Event::Kind::keeper_gone});
      return events;
    }
    switch (note.kind) {
      case Note::Kind::started:
        events.push_back({Event::Kind::started, note.rank, note.value});
        break;
      case Note::Kind::ended:
        events.push_back({Event::Kind::ended, note.rank, note.value});
        break;
      case Note::Kind::not_forked:
        events.push_back({Event::Kind::not_started, note.rank, note.value});
        break;
    }
  }
  return events;
}

/// The program may have reaped the guard, or ignore its children.
bool Processes::finish() {
  keeper_.end();
  if (!is_awaited_) return true;
  keeper_.wake();
  const pid_t pid = ::waitpid(keeper_.guard, nullptr, WNOHANG);
  is_awaited_ = pid == 0 || (pid < 0 && errno != ECHILD);
  return !is_awaited_;
}

std::vector<Environment> environments(const RanksOptions& options) {
  const Environment inherited = read_environment();
  std::vector<Environment> by_rank;
  for (int rank = 0; rank < options.world_size; ++rank) {
    by_rank.push_back(rank_variables(inherited, rank, options.world_size, options.agent));
  }
  return by_rank;
}

Keeper fork_copies(const RanksOptions& options) {
  const std::vector<Environment> variables = environments(options);
  return fork_keeper(options.world_size, options.reports->call().keeper, [&](int rank) {
    be_forked_rank(options.function, rank, of_rank(variables, rank), options.reports->of(rank));
  });
}

Keeper execute(const RanksOptions& options) {
  const std::vector<std::string> arguments = Command::of_this_program();
  std::vector<Command> commands;
  int rank = 0;
  for (Environment& variables : environments(options)) {
    variables["TUTTI_SPAWN"] = fmt::format("{}:{}", options.reports->fd(), rank++);
    commands.emplace_back(arguments, variables);
  }
  return fork_keeper(options.world_size, options.reports->call().keeper, [&](int self) {
    ::fcntl(options.reports->fd(), F_SETFD, 0);  // it goes on to the program
    Report& report = options.reports->of(self);
    report.code = of_rank(commands, self).execute();
    report.stage.store(Stage::not_executed);
  });
}

}  // namespace

std::unique_ptr<Ranks> start_processes(const RanksOptions& options, Start start) {
  const std::atomic<pid_t>& keeper_pid = options.reports->call().keeper;
  if (start == Start::exec) return std::make_unique<Processes>(execute(options), keeper_pid);
  flush_output();  // or each copy would print what is in the buffers
  return std::make_unique<Processes>(fork_copies(options), keeper_pid);
}

}  // namespace tutti::spawning
