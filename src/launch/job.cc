// The job: what is decided about the ranks of all its hosts, in one thread that polls everything:
// signals, what hosts tell, the terminal, the clock. The job *runs*; after the first failure it is
// *failing* (survivors have the failure grace to end well); then it is *ending* (SIGTERM sent, or a
// signal of the user handed on), and at last *killed*.
//
// In this version there is one host, and it is in this process; what is said to it and what it says
// are bytes all the same.
#include "launch/job.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <numeric>
#include <utility>
#include <variant>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "launch/arguments.h"
#include "launch/gathering.h"
#include "launch/local_ranks.h"
#include "launch/messages.h"
#include "launch/output.h"
#include "launch/post_mortem.h"
#include "launch/signals.h"
#include "launch/stdin_pump.h"
#include "net/fd.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/system_error.h"
#include "store/server.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kStillRunLine = 1s;  ///< after the request to end; then every kAgainLine
constexpr auto kAgainLine = 10s;
constexpr auto kStoppedLine = 2s;        ///< a shorter stop is nobody's business
constexpr auto kReaderPatience = 400ms;  ///< when the job was asked to end
constexpr std::size_t kOutputWatch = 2, kFixedWatches = 4;
constexpr Stream kStreams[] = {Stream::out, Stream::err};

Prepare prepare_order(const JobOptions& options) {
  Prepare order{
      .command = options.command,
      .environment = options.environment,
      .ranks = std::vector<int>(static_cast<std::size_t>(options.rank_count)),
      .prefix_columns = {},
      .world_size = options.rank_count,
      .folder = options.folder,
      .master_address = options.master_address.empty() ? "127.0.0.1" : options.master_address,
      .master_port = options.master_port.value_or(0)};
  if (order.master_port == 0) order.master_port = master_port(options.environment);
  std::iota(order.ranks.begin(), order.ranks.end(), 0);
  order.prefix_columns.resize(order.ranks.size());
  return order;
}

/// One that takes orders and gives reports.
struct Host {
  Host(const RankSignals& signals, net::Fd input) : ranks(signals, std::move(input)) {}

  LocalRanks ranks;
  net::FrameDecoder reports{kMaxReportBytes};
  std::string name;
  bool is_done = false;
};

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        output_(options.rank_count, STDOUT_FILENO, STDERR_FILENO, options.style),
        logs_(options.logs, 0),
        ranks_(static_cast<std::size_t>(options.rank_count)),
        gathering_(options.rank_count) {}
  int run();

 private:
  enum class Phase { running, failing, ending, killed };
  struct Rank {
    pid_t pid = -1;
    bool ended = false;
    int stopped_by = 0;  ///< 0: it is not stopped
    Clock::time_point stopped_line_at = Clock::time_point::max();
    std::vector<int> asked_by = {};  ///< signals by which we asked it to end
    /// Whether its end is our doing: it was asked to end and, if a signal killed it, the signal was
    /// ours.
    bool is_ours(int wait_status) const;
  };

  void start();
  void order(const Order& order);
  void order_signal(int rank, int number) { order(Signal{rank, number}); }
  void poll_once(Clock::time_point until);
  Clock::time_point next_event() const;
  void act_on_time(Clock::time_point now);

  void read_signals();
  void take_signal(int signal_number);
  void read_reports(Host& host);
  void take(Host& host, const Report& report);
  void on(Host&, const KeeperIs&) {}
  void on(Host&, const Started& started) { rank_of(started.rank).pid = started.pid; }
  void on(Host&, const Stopped& stopped);
  void on(Host&, const Continued& continued);
  void on(Host& host, const Prepared& prepared);
  void on(Host&, const Refused& refused) { throw Error(refused.code, refused.text); }
  void on(Host&, const Joined& joined);
  void on(Host&, const Met& met) { gathering_.met(met.rank); }
  void on(Host&, const Printed& printed);
  void on(Host&, const PrintedAll& printed) { output_.finish(printed.rank, printed.stream); }
  void on(Host&, const Complaint& complaint);
  void on(Host&, const Ended& ended);
  void on(Host&, const KeeperDied& died);
  void on(Host& host, const Done& done);

  Rank& rank_of(int rank) { return of_rank(ranks_, rank); }
  void steer_output();
  void watch_rendezvous(Clock::time_point now);
  void say_who_is_stopped(Clock::time_point now);
  void say_who_still_runs(Clock::time_point now);
  std::string running_text() const;

  void start_failing(Clock::time_point now);
  void ask_to_end(int signal_number, Clock::time_point now);
  void kill_all() { ask_to_end(SIGKILL, Clock::now()); }
  bool all_ended() const;
  bool is_done() const;
  int report();
  bool write_rest();

  const JobOptions& options_;
  Output output_;
  LogFiles logs_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::optional<store::Server> store_;  // after the hosts: its thread asks their doors
  net::Fd signals_;
  StdinPump stdin_;
  Gathering gathering_;
  Outcome outcome_;
  Ending ending_;
  Phase phase_ = Phase::running;
  bool is_held_ = false;            ///< what ranks print stays in their pipes, as ordered
  bool is_closed_[2] = {};          ///< by Stream: nobody reads, as ordered
  bool has_asked_for_end_ = false;  ///< of hosts whose ranks have ended
  bool asked_to_end_ = false;       ///< by the user, also if the job had failed before
  int interrupts_ = 0;
  std::string openmp_notice_;
  Clock::time_point started_{};
  Clock::time_point failing_until_ = Clock::time_point::max();
  Clock::time_point ending_until_ = Clock::time_point::max();
  Clock::time_point still_run_line_at_ = Clock::time_point::max();
  Clock::time_point timeout_at_ = Clock::time_point::max();
};

bool Job::Rank::is_ours(int wait_status) const {
  if (!WIFSIGNALED(wait_status)) return !asked_by.empty();
  return std::find(asked_by.begin(), asked_by.end(), WTERMSIG(wait_status)) != asked_by.end();
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
  hosts_.push_back(std::make_unique<Host>(rank_signals, stdin_.open(STDIN_FILENO)));
  Prepare prepare = prepare_order(options_);
  for (std::size_t i = 0; i < prepare.ranks.size(); ++i) {
    prepare.prefix_columns[i] = output_.prefix_columns(prepare.ranks[i]);
  }
  order(prepare);
  read_reports(*hosts_[0]);
  started_ = Clock::now();
  if (options_.timeout) timeout_at_ = started_ + *options_.timeout;
  store_.emplace(hosts_[0]->ranks.open_door());
  order(Start{});
}

void Job::order(const Order& order) {
  const std::string bytes = encode(order);
  for (const auto& host : hosts_) host->ranks.obey(bytes);
}

bool Job::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
}

bool Job::is_done() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->is_done; });
}

void Job::ask_to_end(int signal_number, Clock::time_point now) {
  for (Rank& rank : ranks_) rank.asked_by.push_back(signal_number);
  order_signal(-1, signal_number);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {  // who is stopped hears nothing
    if (ranks_[rank].stopped_by != 0) order_signal(static_cast<int>(rank), SIGCONT);
  }
  if (phase_ < Phase::ending) {
    ending_until_ = now + options_.grace;
    still_run_line_at_ = now + kStillRunLine;
  }
  phase_ = std::max(phase_, signal_number == SIGKILL ? Phase::killed : Phase::ending);
}

// ---- The user

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
    order_signal(-1, signal_number);
    if (signal_number == SIGTSTP) ::kill(::getpid(), SIGSTOP);
  }
}

void Job::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    take_signal(static_cast<int>(info.ssi_signo));
  }
}

// ---- What hosts tell

void Job::read_reports(Host& host) {
  const std::string bytes = host.ranks.take_reports();
  host.reports.feed(std::as_bytes(std::span(bytes)));
  net::Frame frame;
  for (;;) {
    const net::FrameDecoder::Next next = host.reports.next(&frame);
    if (next == net::FrameDecoder::Next::more) return;
    const auto report = next == net::FrameDecoder::Next::frame
                            ? decode_report(frame.type, frame.body)
                            : std::nullopt;
    if (!report) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("host {} told {} bytes of type {} that are no report. Please report "
                              "this",
                              host.name, frame.body.size(), frame.type));
    }
    take(host, *report);
  }
}

void Job::take(Host& host, const Report& report) {
  const int rank = rank_in(report);
  if (rank < 0 || rank >= options_.rank_count) {
    throw Error(ErrorCode::kInternal,
                fmt::format("host {} told of rank {}, and the job has ranks 0 to {}. Please report "
                            "this",
                            host.name, rank, options_.rank_count - 1));
  }
  std::visit([&](const auto& which) { on(host, which); }, report);
}

void Job::on(Host& host, const Prepared& prepared) {
  host.name = prepared.host;
  openmp_notice_ = prepared.openmp_notice;
}

void Job::on(Host&, const Stopped& stopped) {
  Rank& rank = rank_of(stopped.rank);
  rank.stopped_by = stopped.by_signal;
  if (phase_ < Phase::ending) {
    rank.stopped_line_at = Clock::now() + kStoppedLine;
  } else {  // as it was asked to end, which it would never hear
    order_signal(stopped.rank, SIGCONT);
  }
}

void Job::on(Host&, const Continued& continued) {
  Rank& rank = rank_of(continued.rank);
  rank.stopped_by = 0;
  rank.stopped_line_at = Clock::time_point::max();
}

void Job::on(Host&, const Joined& joined) {
  gathering_.joined(joined.rank, Clock::now());
  if (joined.has_openmp && !openmp_notice_.empty()) {
    output_.say(std::exchange(openmp_notice_, {}));
  }
}

void Job::on(Host&, const Printed& printed) {
  output_.feed(printed.rank, printed.stream, printed.bytes);
  const std::string wrong = logs_.write(printed.rank, printed.stream, printed.bytes);
  if (!wrong.empty()) output_.say(wrong);
}

void Job::on(Host&, const Complaint& complaint) {
  output_.say(fmt::format("tutti: rank {}: {}", complaint.rank, complaint.text));
}

void Job::on(Host&, const Ended& ended) {
  RankExit exit = ended.exit;
  Rank& rank = rank_of(exit.rank);
  if (rank.ended) return;
  rank.ended = true;
  gathering_.ended(exit.rank, exit.wait_status);
  exit.ours = rank.is_ours(exit.wait_status);
  // Without a world it could write on no board that it had been told of a failed rendezvous.
  const int lost = gathering_.lost_rank();
  if (lost >= 0 && exit.culprits.empty() && !gathering_.has_met(exit.rank)) exit.culprits = {lost};
  outcome_.add(std::move(exit));
}

void Job::on(Host&, const KeeperDied& died) {
  ending_.keeper_died = true;
  output_.say(
      fmt::format("tutti: the keeper (pid {}) died; killing what is left of the job", died.pid));
}

void Job::on(Host& host, const Done& done) {
  host.is_done = true;
  if (done.left_behind == 0) return;
  output_.say(fmt::format("tutti: the guard (pid {}) does not end; processes may be left",
                          done.left_behind));
}

// ---- What follows

/// A rank that ended outside a world can never complete the world of those who wait in init.
void Job::watch_rendezvous(Clock::time_point now) {
  if (const auto reason = gathering_.judge(now)) {
    output_.say("tutti: " + *reason);
    store_->fail(Error(ErrorCode::kPeerLost, *reason, {.culprits = {gathering_.lost_rank()}}));
    ending_.rendezvous_failed = true;
    start_failing(now);
  }
  if (const auto line = gathering_.say_who_is_missing(now)) output_.say(*line);
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
  still_run_line_at_ = now + kAgainLine;
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
  output_.say_due(now);
  if (all_ended()) {
    if (!std::exchange(has_asked_for_end_, true)) order(End{});
    return;
  }
  if (outcome_.failed()) start_failing(now);
  if (phase_ < Phase::ending) watch_rendezvous(now);
  say_who_is_stopped(now);
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
}

Clock::time_point Job::next_event() const {
  Clock::time_point next = output_.next_due();
  for (const auto& host : hosts_) next = std::min(next, host->ranks.next_event());
  if (all_ended()) return has_asked_for_end_ ? next : Clock::time_point::min();
  for (const Rank& rank : ranks_) {
    if (!rank.ended) next = std::min(next, rank.stopped_line_at);
  }
  if (phase_ < Phase::ending) next = std::min({next, timeout_at_, gathering_.next_event()});
  if (phase_ == Phase::failing) next = std::min(next, failing_until_);
  if (phase_ == Phase::ending) next = std::min({next, ending_until_, still_run_line_at_});
  return next;
}

/// Where what ranks print goes nowhere, or not now, they learn it.
void Job::steer_output() {
  if (is_held_ != output_.is_long()) order(Hold{is_held_ = !is_held_});
  for (const Stream stream : kStreams) {
    if (is_closed_[index(stream)] || !output_.is_closed(stream)) continue;
    is_closed_[index(stream)] = true;
    order(CloseStream{stream});
  }
}

/// One wait for everything, at most until `until`.
void Job::poll_once(Clock::time_point until) {
  steer_output();
  std::vector<net::Watch> watches(kFixedWatches);
  watches[0] = {.fd = signals_.get(), .want_read = true};
  watches[1] = stdin_.watch();
  for (const Stream stream : kStreams) {
    watches[kOutputWatch + index(stream)] = {.fd = output_.awaited(stream), .want_write = true};
  }
  std::vector<std::size_t> ends;  // where the watches of each host do
  for (const auto& host : hosts_) {
    host->ranks.watch(watches);
    ends.push_back(watches.size());
  }
  Deadline deadline = until == Clock::time_point::max() ? Deadline{} : Deadline::at(until);
  net::poll_any(watches, deadline);
  for (const Stream stream : kStreams) {
    if (watches[kOutputWatch + index(stream)].writable) output_.write_some(stream);
  }
  if (watches[1].readable || watches[1].writable) stdin_.pump(watches[1]);
  std::size_t begin = kFixedWatches;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i]->ranks.step(std::span(watches).subspan(begin, ends[i] - begin));
    read_reports(*hosts_[i]);
    begin = ends[i];
  }
  if (watches[0].readable) read_signals();  // last: it may stop us
}

int Job::report() {
  JobReport report{.host = hosts_[0]->name,
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
  output_.say_due(Clock::time_point::max());
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
  while (!is_done()) {
    poll_once(next_event());
    act_on_time(Clock::now());
  }
  return report();
}

}  // namespace

std::string describe_job(const JobOptions& options) {
  const RankPlan plan = plan_ranks(prepare_order(options));
  const std::size_t on_host = plan.placement.ranks.size();
  std::string text;
  for (const Place& place : plan.placement.ranks) {
    text += fmt::format("rank {} -> host {} -> cores {} (shared by {} rank{})\n", place.rank,
                        place.host, format_ranks(place.cores), on_host, on_host == 1 ? "" : "s");
  }
  for (const auto& [name, value] : plan.thread_defaults.added) {
    text += fmt::format("{}={}\n", name, value);
  }
  std::vector<std::string> command = options.command;
  command[0] = plan.path;
  return text + shell_words(command) + "\n";
}

int run_job(const JobOptions& options) {
  net::hold_standard_descriptors();
  return Job(options).run();
}

}  // namespace tutti::launch
