// The launcher's loop. One thread polls everything: signals, the keeper's notes, the ranks' pipes,
// the agent's door, the clock. The job *runs*; after the first failure it is *failing* (survivors
// have the failure grace to end well); then it is *ending* (SIGTERM sent, or a signal of the user
// handed on), and at last *killed*.
#include "launch/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "control/board/describe.h"
#include "launch/agent.h"
#include "launch/arguments.h"
#include "launch/keeper.h"
#include "launch/output.h"
#include "launch/output_ends.h"
#include "launch/post_mortem.h"
#include "launch/program.h"
#include "launch/signals.h"
#include "launch/stdin_pump.h"
#include "net/fd.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kWaitingLine = 10s;
constexpr auto kOwnFindings = 300ms;         ///< what ranks that wait have to find for themselves
constexpr auto kStillRunLine = 1s;           ///< after the request to end; then every kWaitingLine
constexpr auto kStoppedLine = 2s;            ///< a shorter stop is nobody's business
constexpr auto kKeeperPatience = 10s;        ///< for the kernel to give back a large memory
constexpr auto kKeeperKillPatience = 400ms;  ///< for a keeper that may be stopped itself
constexpr auto kReaderPatience = 400ms;      ///< when the job was asked to end
constexpr std::size_t kOutputWatch = 4, kFixedWatches = 6;
constexpr auto kLinger = 200ms;  ///< for helpers and their output when all ranks have ended

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::string find_for(const JobOptions& options) {
  const auto path = options.environment.find("PATH");
  return find_program(options.command.at(0),
                      path == options.environment.end() ? "/usr/bin:/bin" : path->second);
}

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        placement_(place_on_one_host(options.rank_count, net::own_host_name(), allowed_cores())),
        output_(options.rank_count, STDOUT_FILENO, STDERR_FILENO),
        ranks_(static_cast<std::size_t>(options.rank_count)) {}
  int run();

 private:
  enum class Phase { running, failing, ending, killed };
  struct Rank {
    pid_t pid = -1;
    bool ended = false;
    int ended_as = 0;    ///< how many had ended before
    int stopped_by = 0;  ///< 0: it is not stopped
    Clock::time_point stopped_line_at = Clock::time_point::max();
    std::vector<int> asked_by = {};  ///< signals by which we asked it to end
    /// Whether its end is our doing: it was asked to end and, if a signal killed it, the signal was
    /// ours.
    bool is_ours(int wait_status) const;
    int exec_error = 0;
    std::array<net::Fd, 2> pipes;  ///< by Stream; the launcher's ends
  };

  struct Attendance {
    std::vector<int> missing;  ///< run, and have not joined
    std::vector<int> lost;     ///< ended, and never were in a world
    std::vector<int> waiting;  ///< joined, and their world is not complete
  };

  void start();
  std::vector<RankCommand> commands(std::vector<net::Fd>& rank_ends);
  void order(Order::Kind kind, int rank = -1, int signal_number = 0) noexcept;
  void poll_once(Clock::time_point until);
  Clock::time_point next_event() const;
  void act_on_time(Clock::time_point now);

  void read_signals();
  void take_signal(int signal_number);
  void read_notes();
  void take_note(const Note& note);
  void rank_stopped(Rank& rank, int signal_number);
  void rank_ended(int rank, int wait_status);
  void keeper_is_gone();
  void await_guard();
  bool read_pipe(int rank, Stream stream);

  void read_news();
  Attendance attendance() const;
  void watch_rendezvous(Clock::time_point now);
  void say_who_is_missing(Clock::time_point now);
  void say_who_is_stopped(Clock::time_point now);
  void say_who_still_runs(Clock::time_point now);
  std::string running_text() const;

  void start_failing(Clock::time_point now);
  void ask_to_end(int signal_number, Clock::time_point now);
  void kill_all();
  bool all_ended() const;
  void finish();
  int report();
  bool write_rest();

  const JobOptions& options_;
  Placement placement_;
  Output output_;
  std::vector<Rank> ranks_;
  std::optional<Agent> agent_;
  Keeper keeper_;
  net::Fd signals_;
  StdinPump stdin_;
  Outcome outcome_;
  Ending ending_;
  Phase phase_ = Phase::running;
  bool keeper_lives_ = false;
  bool is_left_behind_ = false;  ///< something of the job lives on, and may print without end
  pid_t keeper_pid_ = -1;
  bool asked_to_end_ = false;  ///< by the user, also if the job had failed before
  int interrupts_ = 0;
  int ended_count_ = 0;
  int lost_rank_ = -1;  ///< without which the others wait in vain
  std::string openmp_notice_;
  Clock::time_point started_{}, first_join_{};
  Clock::time_point failing_until_ = Clock::time_point::max();
  Clock::time_point ending_until_ = Clock::time_point::max();
  Clock::time_point takeover_at_ = Clock::time_point::max();
  Clock::time_point still_run_line_at_ = Clock::time_point::max();
  Clock::time_point timeout_at_ = Clock::time_point::max();
  Clock::time_point waiting_line_at_ = Clock::time_point::max();
  Clock::time_point verdict_at_ =
      Clock::time_point::max();  ///< that a rank is lost before its world
};

bool Job::Rank::is_ours(int wait_status) const {
  if (!WIFSIGNALED(wait_status)) return !asked_by.empty();
  return std::find(asked_by.begin(), asked_by.end(), WTERMSIG(wait_status)) != asked_by.end();
}

std::vector<RankCommand> Job::commands(std::vector<net::Fd>& rank_ends) {
  const std::string program = find_for(options_);
  const int cores = static_cast<int>(placement_.ranks[0].cores.size());
  ThreadDefaults defaults = thread_defaults(options_.environment, cores, placement_.host_ranks);
  if (options_.rank_count > 1) openmp_notice_ = defaults.notice;
  Environment variables = options_.environment;
  variables.merge(defaults.added);
  const int port = master_port(options_.environment);
  std::vector<RankCommand> commands;
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    RankCommand command{.path = program, .arguments = options_.command};
    for (const auto& [name, value] :
         rank_variables(variables, placement_, rank, agent_->address(), port)) {
      command.variables.push_back(fmt::format("{}={}", name, value));
    }
    rank_ends.push_back(rank == 0 ? stdin_.open(STDIN_FILENO)
                                  : net::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    command.stdin_fd = rank_ends.back().get();
    for (const Stream stream : {Stream::out, Stream::err}) {
      const int own = stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO;
      OutputEnds ends = open_output_ends(own, output_.prefix_columns(rank));
      of_rank(ranks_, rank).pipes[index(stream)] = std::move(ends.launcher_end);
      rank_ends.push_back(std::move(ends.rank_end));
      (stream == Stream::out ? command.stdout_fd : command.stderr_fd) = rank_ends.back().get();
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

void Job::start() {
  const std::vector<int> forwarded = forwarded_signals();
  RankSignals rank_signals{.ignores_children = is_ignored(SIGCHLD)};
  ::signal(SIGCHLD, SIG_DFL);  // or the guard could not be awaited
  rank_signals.mask = block_signals();
  sigset_t read_here;
  ::sigemptyset(&read_here);
  for (const int number : forwarded) ::sigaddset(&read_here, number);
  signals_ = net::Fd(::signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw net::system_error("cannot make a signalfd", errno);
  agent_.emplace(options_.rank_count);
  {
    std::vector<net::Fd> rank_ends;
    keeper_ = fork_keeper(commands(rank_ends), rank_signals);
  }
  keeper_lives_ = true;
  started_ = Clock::now();
  if (options_.timeout) timeout_at_ = started_ + *options_.timeout;
  agent_->serve();
  order(Order::Kind::start);
}

void Job::order(Order::Kind kind, int rank, int signal_number) noexcept {
  const Order order{kind, rank, signal_number};
  // A keeper that is gone is noticed by the end of its channel; one that is stopped must not stop
  // us when the channel is full.
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  while (::send(keeper_.channel.get(), &order, sizeof order, kFlags) < 0 && errno == EINTR) {
  }
}

bool Job::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
}

void Job::ask_to_end(int signal_number, Clock::time_point now) {
  for (Rank& rank : ranks_) rank.asked_by.push_back(signal_number);
  order(Order::Kind::signal, -1, signal_number);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {  // who is stopped hears nothing
    if (ranks_[rank].stopped_by != 0) order(Order::Kind::signal, static_cast<int>(rank), SIGCONT);
  }
  if (phase_ < Phase::ending) {
    ending_until_ = now + options_.grace;
    still_run_line_at_ = now + kStillRunLine;
  }
  phase_ = std::max(phase_, Phase::ending);
}

void Job::kill_all() {
  const Clock::time_point now = Clock::now();
  ask_to_end(SIGKILL, now);
  if (phase_ < Phase::killed) takeover_at_ = now + kKeeperKillPatience;
  phase_ = Phase::killed;
}

void Job::take_signal(int signal_number) {
  const Clock::time_point now = Clock::now();
  const bool again = signal_number == SIGINT && interrupts_++ > 0;
  if (again) {
    if (!all_ended()) output_.say("tutti: second SIGINT: killing all ranks");
    kill_all();
  } else if (signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
             signal_number == SIGQUIT) {
    asked_to_end_ = true;
    if (!outcome_.failed() && ending_.signal_number == 0) ending_.signal_number = signal_number;
    if (!all_ended()) {
      output_.say(fmt::format("tutti: {}: asking {} to end; SIGKILL follows after --grace {}{}",
                              describe_signal(signal_number), running_text(),
                              format_span(options_.grace),
                              signal_number == SIGINT ? ", or at once by a second Ctrl-C" : ""));
    }
    ask_to_end(signal_number, now);
  } else {
    order(Order::Kind::signal, -1, signal_number);
    if (signal_number == SIGTSTP) ::kill(::getpid(), SIGSTOP);
  }
}

void Job::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    take_signal(static_cast<int>(info.ssi_signo));
  }
}

void Job::read_notes() {
  for (;;) {
    Note note;
    const ssize_t got = ::recv(keeper_.channel.get(), &note, sizeof note, MSG_DONTWAIT);
    if (got == static_cast<ssize_t>(sizeof note)) {
      take_note(note);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      keeper_is_gone();
      return;
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void Job::take_note(const Note& note) {
  if (note.kind == Note::Kind::keeper) {
    keeper_pid_ = note.value;
    return;
  }
  Rank& rank = ranks_.at(static_cast<std::size_t>(note.rank));
  switch (note.kind) {
    case Note::Kind::started:
      rank.pid = note.value;
      agent_->rank_started(note.rank, note.value);
      break;
    case Note::Kind::exec_failed:
      rank.exec_error = note.value;
      break;
    case Note::Kind::stopped:
      rank_stopped(rank, note.value);
      break;
    case Note::Kind::continued:
      rank.stopped_by = 0;
      rank.stopped_line_at = Clock::time_point::max();
      break;
    case Note::Kind::exited:
      rank_ended(note.rank, note.value);
      break;
    case Note::Kind::keeper:
      break;
  }
}

void Job::rank_stopped(Rank& rank, int signal_number) {
  rank.stopped_by = signal_number;
  if (phase_ < Phase::ending) {
    rank.stopped_line_at = Clock::now() + kStoppedLine;
  } else {  // as it was asked to end, which it would never hear
    order(Order::Kind::signal, static_cast<int>(&rank - ranks_.data()), SIGCONT);
  }
}

void Job::rank_ended(int rank, int wait_status) {
  Rank& state = of_rank(ranks_, rank);
  if (state.ended) return;
  state.ended = true;
  state.ended_as = ended_count_++;
  if (state.exec_error != 0) {
    output_.say(fmt::format("tutti: rank {}: cannot execute {}: {}{}", rank, options_.command[0],
                            std::strerror(state.exec_error),
                            state.exec_error == ENOEXEC
                                ? "; does a script begin with #! and its interpreter?"
                            : state.exec_error == EAGAIN ? net::process_limits()
                                                         : ""));
  }
  agent_->rank_exited(rank, wait_status);
  std::vector<int> culprits = agent_->blamed_by(rank);
  // Without a world it could write on no board that it had been told of a failed rendezvous.
  if (lost_rank_ >= 0 && culprits.empty() && !agent_->is_in_world(rank)) culprits = {lost_rank_};
  outcome_.add({.rank = rank,
                .wait_status = wait_status,
                .ours = state.is_ours(wait_status),
                .culprits = std::move(culprits),
                .disagreement = agent_->disagreement_of(rank),
                .failure = agent_->failure_of(rank),
                .doing = agent_->doing_of(rank),
                .untold = agent_->untold_by(rank)});
}

void Job::keeper_is_gone() {
  // Its ranks have got SIGKILL from the kernel; what they left behind is the guard's child now.
  keeper_lives_ = false;
  if (takeover_at_ == Clock::time_point::max() || Clock::now() < takeover_at_) {
    ending_.keeper_died = true;
    output_.say(fmt::format("tutti: the keeper (pid {}) died; killing what is left of the job",
                            keeper_pid_));
  }
  await_guard();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    rank_ended(static_cast<int>(rank), W_EXITCODE(0, SIGKILL));
  }
}

/// Until it has ended, and with it everything below it.
void Job::await_guard() {
  keeper_.lifeline.reset();
  ::kill(keeper_.guard, SIGCONT);  // ours and not reaped; it may have been stopped
  const Clock::time_point patience = Clock::now() + kKeeperPatience;
  while (::waitpid(keeper_.guard, nullptr, WNOHANG) == 0) {
    if (Clock::now() >= patience) {
      output_.say(fmt::format("tutti: the guard (pid {}) does not end; processes may be left",
                              keeper_.guard));
      is_left_behind_ = true;
      return;
    }
    poll_once(Clock::now() + 1ms);
  }
}

/// False when there was nothing to read now.
bool Job::read_pipe(int rank, Stream stream) {
  net::Fd& pipe = of_rank(ranks_, rank).pipes[index(stream)];
  char buffer[32 * 1024];
  const ssize_t got = ::read(pipe.get(), buffer, sizeof buffer);
  if (got > 0) {
    output_.feed(rank, stream, {buffer, static_cast<std::size_t>(got)});
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    output_.finish(rank, stream);
    pipe.reset();
  } else {
    return errno == EINTR;
  }
  return true;
}

void Job::read_news() {
  agent_->news().drain();
  if (first_join_ != Clock::time_point{}) return;
  first_join_ = Clock::now();
  waiting_line_at_ = first_join_ + kWaitingLine;
  if (!openmp_notice_.empty() && has_openmp(agent_->first_joined())) output_.say(openmp_notice_);
}

Job::Attendance Job::attendance() const {
  Attendance found;
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    if (agent_->is_in_world(rank)) continue;
    if (of_rank(ranks_, rank).ended) {
      found.lost.push_back(rank);
    } else {
      (agent_->has_joined(rank) ? found.waiting : found.missing).push_back(rank);
    }
  }
  return found;
}

/// A rank that ended outside a world can never complete the world of those who wait in init.
void Job::watch_rendezvous(Clock::time_point now) {
  if (first_join_ == Clock::time_point{} || lost_rank_ >= 0 || phase_ >= Phase::ending) return;
  const Attendance found = attendance();
  if (found.lost.empty() || found.waiting.empty()) {
    verdict_at_ = Clock::time_point::max();
    return;
  }
  // The first to end: others may have ended because of it.
  const int first = *std::min_element(found.lost.begin(), found.lost.end(), [&](int a, int b) {
    return of_rank(ranks_, a).ended_as < of_rank(ranks_, b).ended_as;
  });
  // One that failed may have failed because of a death that those who wait are about to find, too,
  // and that we learn of last if the dead program was the child of a wrapper.
  const int wait_status = outcome_.exit_of(first)->wait_status;
  if (verdict_at_ == Clock::time_point::max()) {
    verdict_at_ = wait_status == 0 ? now : now + kOwnFindings;
  }
  if (now < verdict_at_) return;
  verdict_at_ = Clock::time_point::max();
  lost_rank_ = first;
  const std::string how = control::describe_wait_status(wait_status);
  const std::string reason = fmt::format(
      "rank {} {} ({}); {} {} for it", lost_rank_,
      agent_->has_joined(lost_rank_) ? "left init_process_group before the world was complete"
                                     : "ended without having joined in init_process_group",
      how, ranks_text(found.waiting), found.waiting.size() == 1 ? "waits" : "wait");
  output_.say("tutti: " + reason);
  agent_->fail(reason, lost_rank_);
  ending_.rendezvous_failed = true;
  start_failing(now);
}

void Job::say_who_is_missing(Clock::time_point now) {
  if (now < waiting_line_at_) return;
  waiting_line_at_ = now + kWaitingLine;
  const Attendance found = attendance();
  if (found.waiting.empty() || found.missing.empty()) return;
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - first_join_);
  output_.say(fmt::format("tutti: waiting {} s: {} of {} ranks missing: {} (started, not in init)",
                          waited.count(), found.missing.size(), options_.rank_count,
                          format_ranks(found.missing)));
}

void Job::say_who_is_stopped(Clock::time_point now) {
  for (Rank& rank : ranks_) {
    if (rank.ended || now < rank.stopped_line_at) continue;
    rank.stopped_line_at = Clock::time_point::max();
    output_.say(fmt::format("tutti: rank {} (pid {}) is stopped by {}; kill -CONT {} lets it go on",
                            &rank - ranks_.data(), rank.pid, describe_signal(rank.stopped_by),
                            rank.pid));
  }
}

/// "ranks 0-2", "rank 1 (stopped)", "ranks 0-2 (of which 1 stopped)".
std::string Job::running_text() const {
  std::vector<int> running, stopped;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].ended) continue;
    running.push_back(static_cast<int>(rank));
    if (ranks_[rank].stopped_by != 0) stopped.push_back(static_cast<int>(rank));
  }
  if (stopped.empty()) return ranks_text(running);
  return stopped == running
             ? ranks_text(running) + " (stopped)"
             : fmt::format("{} (of which {} stopped)", ranks_text(running), format_ranks(stopped));
}

void Job::say_who_still_runs(Clock::time_point now) {
  if (phase_ != Phase::ending || now < still_run_line_at_ || all_ended()) return;
  still_run_line_at_ = now + kWaitingLine;
  const auto left = std::max(Clock::duration::zero(), ending_until_ - now);
  const std::string text = running_text();
  output_.say(fmt::format("tutti: {} still run{}; SIGKILL in {}, or at once by {} Ctrl-C", text,
                          text.starts_with("rank ") ? "s" : "", format_span(left),
                          interrupts_ > 0 ? "a second" : "two"));
}

void Job::start_failing(Clock::time_point now) {
  if (phase_ != Phase::running) return;
  phase_ = Phase::failing;
  failing_until_ = now + options_.failure_grace;
}

void Job::act_on_time(Clock::time_point now) {
  if (outcome_.failed()) start_failing(now);
  watch_rendezvous(now);
  say_who_is_missing(now);
  say_who_is_stopped(now);
  output_.say_repeats(now);
  if (phase_ < Phase::ending && now >= timeout_at_) {
    ending_.timed_out = true;
    output_.say(fmt::format("tutti: --timeout {} is over; ending all ranks",
                            format_span(*options_.timeout)));
    ask_to_end(SIGTERM, now);
  }
  if (phase_ == Phase::failing && now >= failing_until_) {
    output_.say(fmt::format("tutti: survivors still run {} after the failure; ending them",
                            format_span(options_.failure_grace)));
    ask_to_end(SIGTERM, now);
  }
  if (phase_ == Phase::ending && now >= ending_until_) {
    output_.say(fmt::format("tutti: ranks still run after --grace {}; killing them",
                            format_span(options_.grace)));
    kill_all();
  }
  say_who_still_runs(now);
  // The keeper does not do it: it is stopped, or busy. The guard kills it as well.
  if (now >= takeover_at_ && keeper_lives_) keeper_.lifeline.reset();
}

Clock::time_point Job::next_event() const {
  Clock::time_point next = std::min(waiting_line_at_, output_.repeats_due());
  for (const Rank& rank : ranks_) {
    if (!rank.ended) next = std::min(next, rank.stopped_line_at);
  }
  if (phase_ == Phase::ending) next = std::min(next, still_run_line_at_);
  if (phase_ == Phase::killed && keeper_.lifeline) next = std::min(next, takeover_at_);
  if (phase_ < Phase::ending) next = std::min({next, timeout_at_, verdict_at_});
  if (phase_ == Phase::failing) next = std::min(next, failing_until_);
  if (phase_ == Phase::ending) next = std::min(next, ending_until_);
  return next;
}

/// One wait for everything, at most until `until`.
void Job::poll_once(Clock::time_point until) {
  std::vector<net::Watch> watches(kFixedWatches + 2 * ranks_.size());
  watches[0] = {.fd = signals_.get(), .want_read = true};
  watches[1] = {.fd = keeper_lives_ ? keeper_.channel.get() : -1, .want_read = true};
  watches[2] = {.fd = agent_->news().fd(), .want_read = true};
  watches[3] = stdin_.watch();
  for (const Stream stream : {Stream::out, Stream::err}) {
    watches[kOutputWatch + index(stream)] = {.fd = output_.awaited(stream), .want_write = true};
  }
  for (std::size_t i = 0; i < 2 * ranks_.size() && !output_.is_long(); ++i) {
    watches[kFixedWatches + i] = {.fd = ranks_[i / 2].pipes[i % 2].get(), .want_read = true};
  }
  Deadline deadline = until == Clock::time_point::max() ? Deadline{} : Deadline::at(until);
  net::poll_any(watches, deadline);
  for (const Stream stream : {Stream::out, Stream::err}) {
    if (watches[kOutputWatch + index(stream)].writable) output_.write_some(stream);
  }
  for (std::size_t i = 0; i < 2 * ranks_.size(); ++i) {
    const Stream stream = i % 2 == 0 ? Stream::out : Stream::err;
    if (watches[kFixedWatches + i].readable) read_pipe(static_cast<int>(i / 2), stream);
    // Nobody reads what the job prints: its ranks learn it the usual way, by SIGPIPE.
    if (output_.is_closed(stream)) ranks_[i / 2].pipes[i % 2].reset();
  }
  // First: the others may stop us or poll themselves, and what was readable is not any more then.
  if (watches[3].readable || watches[3].writable) stdin_.pump(watches[3]);
  if (watches[0].readable) read_signals();
  if (watches[1].readable) read_notes();
  if (watches[2].readable) read_news();
}

/// Helpers of ranks that have ended may still print; then nothing below us may stay.
void Job::finish() {
  const auto is_open = [](const Rank& rank) { return rank.pipes[0] || rank.pipes[1]; };
  const Clock::time_point linger_until = Clock::now() + kLinger;
  while (keeper_lives_ && std::any_of(ranks_.begin(), ranks_.end(), is_open) &&
         Clock::now() < linger_until) {
    poll_once(linger_until);
  }
  if (keeper_lives_) {
    order(Order::Kind::end);
    keeper_lives_ = false;
    await_guard();
  }
  const Clock::time_point drained_by =
      is_left_behind_ ? Clock::now() + kLinger : Clock::time_point::max();
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      while (of_rank(ranks_, rank).pipes[index(stream)] && Clock::now() < drained_by) {
        if (!read_pipe(rank, stream)) break;
      }
      output_.finish(rank, stream);
    }
  }
}

int Job::report() {
  JobReport report{.host = placement_.ranks[0].host,
                   .lasted = Clock::now() - started_,
                   .ending = ending_,
                   .exit_code = outcome_.exit_code(ending_)};
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    const RankExit* exit = outcome_.exit_of(rank);
    report.ranks.push_back({.rank = rank,
                            .pid = of_rank(ranks_, rank).pid,
                            .exit = exit != nullptr ? *exit : RankExit{.rank = rank},
                            .last_lines = output_.last_lines(rank)});
  }
  output_.say_repeats(Clock::time_point::max());
  for (const std::string& line : post_mortem(report, outcome_)) output_.say(line);
  const bool all_written = write_rest();
  if (report.exit_code != 0 || all_written) return report.exit_code;
  return ending_.signal_number != 0 ? 128 + ending_.signal_number : kTimedOutCode;
}

/// A reader may take its time until the job is asked to end; then little. False: what was printed
/// could not be written all.
bool Job::write_rest() {
  bool all_written = true;
  Clock::time_point until = Clock::time_point::max();
  while (!output_.is_written()) {
    const Clock::time_point now = Clock::now();
    const bool timed_out = now >= timeout_at_;
    if (asked_to_end_ || timed_out) until = std::min(until, now + kReaderPatience);
    if (interrupts_ > 1) until = std::min(until, now + kReaderPatience / 4);
    if (now >= until) {
      // What is said of stdout may still find its reader on stderr.
      output_.drop_awaited(output_.awaited(Stream::out) >= 0 ? Stream::out : Stream::err);
      all_written = false;
      until = now + kReaderPatience / 4;
    } else {
      poll_once(timed_out ? until : std::min(until, timeout_at_));
    }
  }
  return all_written;
}

int Job::run() {
  start();
  while (!all_ended()) {
    poll_once(next_event());
    act_on_time(Clock::now());
  }
  finish();
  return report();
}

}  // namespace

std::string describe_job(const JobOptions& options) {
  const Placement placement =
      place_on_one_host(options.rank_count, net::own_host_name(), allowed_cores());
  const std::string program = find_for(options);
  const auto& cores = placement.ranks[0].cores;
  const ThreadDefaults defaults =
      thread_defaults(options.environment, static_cast<int>(cores.size()), placement.host_ranks);
  std::string text;
  for (const Place& place : placement.ranks) {
    text += fmt::format("rank {} -> host {} -> cores {} (shared by {} rank{})\n", place.rank,
                        place.host, format_ranks(place.cores), placement.host_ranks,
                        placement.host_ranks == 1 ? "" : "s");
  }
  for (const auto& [name, value] : defaults.added) text += fmt::format("{}={}\n", name, value);
  std::vector<std::string> command = options.command;
  command[0] = program;
  return text + shell_words(command) + "\n";
}

int run_job(const JobOptions& options) {
  net::hold_standard_descriptors();
  return Job(options).run();
}

}  // namespace tutti::launch
