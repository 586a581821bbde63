#include "launch/attempt.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <span>
#include <utility>
#include <variant>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "launch/signals.h"
#include "tutti/error.h"

namespace tutti::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kStillRunLine = 1s;  ///< after the request to end; then every kAgainLine
constexpr auto kAgainLine = 10s;
constexpr auto kStoppedLine = 2s;  ///< a shorter stop is nobody's business
constexpr Stream kStreams[] = {Stream::out, Stream::err};

}  // namespace

Prepare prepare_order(const JobOptions& options, int attempt) {
  Prepare order{
      .command = options.command,
      .environment = options.environment,
      .ranks = std::vector<int>(static_cast<std::size_t>(options.rank_count)),
      .prefix_columns = {},
      .world_size = options.rank_count,
      .folder = options.folder,
      .master_address = options.master_address.empty() ? "127.0.0.1" : options.master_address,
      .master_port = options.master_port.value_or(0),
      .bind_to = options.bind_to,
      .map_by = options.map_by,
      .run_id = options.run_id,
      .role = options.role,
      .restart_count = attempt,
      .max_restarts = options.max_restarts,
      .gpus_per_rank = options.gpus_per_rank};
  if (order.master_port == 0) order.master_port = master_port(options.environment);
  std::iota(order.ranks.begin(), order.ranks.end(), 0);
  order.prefix_columns.resize(order.ranks.size());
  return order;
}

Attempt::Attempt(const JobOptions& options, int number, Clock::time_point timeout_at,
                 Console& console)
    : options_(options),
      number_(number),
      timeout_at_(timeout_at),
      console_(console),
      ranks_(static_cast<std::size_t>(options.rank_count)),
      gathering_(options.rank_count) {}

bool Attempt::Rank::is_ours(int wait_status) const {
  if (!WIFSIGNALED(wait_status)) return !asked_by.empty();
  return std::find(asked_by.begin(), asked_by.end(), WTERMSIG(wait_status)) != asked_by.end();
}

void Attempt::start() {
  console_.output().forget_last_lines();
  hosts_.push_back(std::make_unique<Host>(console_.inherited(), console_.open_input()));
  Prepare prepare = prepare_order(options_, number_);
  for (std::size_t i = 0; i < prepare.ranks.size(); ++i) {
    prepare.prefix_columns[i] = console_.output().prefix_columns(prepare.ranks[i]);
  }
  order(prepare);
  read_reports(*hosts_[0]);
  logs_.emplace(options_.logs, number_);
  if (number_ == 0 && !options_.logs.folder.empty()) {
    console_.say("tutti run: what ranks print is kept in " + options_.logs.folder);
  }
  started_ = Clock::now();
  if (number_ == 0 && options_.timeout) timeout_at_ = started_ + *options_.timeout;
  store_.emplace(hosts_[0]->ranks.open_door());
  order(Start{});
}

void Attempt::order(const Order& order) {
  const std::string bytes = encode(order);
  for (const auto& host : hosts_) host->ranks.obey(bytes);
}

bool Attempt::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
}

bool Attempt::is_done() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->is_done; });
}

void Attempt::kill_all() { ask_to_end(SIGKILL, Clock::now()); }

void Attempt::ask_to_end(int signal_number, Clock::time_point now) {
  gathering_.asked_to_end();
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

void Attempt::take_signal(int signal_number) {
  const Clock::time_point now = Clock::now();
  if (signal_number == SIGINT && console_.interrupts() > 1) {
    if (!all_ended()) console_.say("tutti: second SIGINT: killing all ranks");
    kill_all();
  } else if (ends_a_job(signal_number)) {
    const bool has_failed = outcome_.failed() || ending_.rendezvous_failed;
    if (!has_failed && ending_.signal_number == 0) ending_.signal_number = signal_number;
    if (!all_ended()) {
      console_.say(fmt::format("tutti: {}: asking {} to end; SIGKILL follows after --grace {}{}",
                               agent::describe_signal(signal_number), running_text(),
                               format_span(options_.grace),
                               signal_number == SIGINT ? ", or at once by a second Ctrl-C" : ""));
    }
    ask_to_end(signal_number, now);
  } else {
    order_signal(-1, signal_number);
  }
}

// ---- What hosts tell

void Attempt::read_reports(Host& host) {
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

void Attempt::take(Host& host, const Report& report) {
  const std::optional<int> rank = rank_in(report);
  if (rank && (*rank < 0 || *rank >= options_.rank_count)) {
    throw Error(ErrorCode::kInternal,
                fmt::format("host {} told of rank {}, and the job has ranks 0 to {}. Please report "
                            "this",
                            host.name, *rank, options_.rank_count - 1));
  }
  std::visit([&](const auto& which) { on(host, which); }, report);
}

void Attempt::on(Host& host, const Prepared& prepared) {
  host.name = prepared.host;
  openmp_notice_ = prepared.openmp_notice;
  if (!options_.reports_bindings || number_ > 0) return;
  for (const std::string& place : prepared.places) console_.say("tutti: " + place);
}

void Attempt::on(Host&, const Stopped& stopped) {
  Rank& rank = rank_of(stopped.rank);
  rank.stopped_by = stopped.by_signal;
  // Asked to end it would never hear that; and its own handler of Ctrl-Z may stop it late.
  const bool is_to_go_on =
      phase_ >= Phase::ending || (stopped.by_signal == SIGTSTP && console_.cannot_stop());
  if (is_to_go_on) {
    order_signal(stopped.rank, SIGCONT);
  } else {
    rank.stopped_line_at = Clock::now() + kStoppedLine;
  }
}

void Attempt::on(Host&, const Continued& continued) {
  Rank& rank = rank_of(continued.rank);
  rank.stopped_by = 0;
  rank.stopped_line_at = Clock::time_point::max();
}

void Attempt::on(Host&, const Joined& joined) {
  gathering_.joined(joined.rank, Clock::now());
  if (joined.has_openmp && !openmp_notice_.empty()) {
    console_.say(std::exchange(openmp_notice_, {}));
  }
}

void Attempt::on(Host&, const Printed& printed) {
  console_.output().feed(printed.rank, printed.stream, printed.bytes);
  const std::string wrong = logs_->write(printed.rank, printed.stream, printed.bytes);
  if (!wrong.empty()) console_.say(wrong);
}

void Attempt::on(Host&, const Complaint& complaint) {
  const std::string whose = complaint.about ? fmt::format("rank {}: ", *complaint.about) : "";
  console_.say(fmt::format("tutti: {}{}", whose, complaint.text));
}

void Attempt::on(Host&, const Ended& ended) {
  agent::RankExit exit = ended.exit;
  Rank& rank = rank_of(exit.rank);
  if (rank.ended) return;
  rank.ended = true;
  gathering_.ended(exit.rank, exit.wait_status);
  exit.ours = rank.is_ours(exit.wait_status);
  // Without a world it could write on no board that it had been told of a failed rendezvous.
  const int lost = gathering_.lost_rank();
  if (lost >= 0 && exit.culprits.empty() && !gathering_.has_met(exit.rank)) exit.culprits = {lost};
  const std::vector<int> awaited = gathering_.awaited_by(exit.rank);
  if (exit.doing.empty() && !awaited.empty() && agent::is_abnormal(exit.wait_status)) {
    exit.doing = "waited in init_process_group for " + ranks_text(awaited);
  }
  outcome_.add(std::move(exit));
}

void Attempt::on(Host&, const KeeperDied& died) {
  const bool has_failed = outcome_.failed() || ending_.rendezvous_failed || phase_ >= Phase::ending;
  ending_.keeper_died = !has_failed;  // else what came before is the reason
  for (Rank& rank : ranks_) rank.asked_by.push_back(SIGKILL);  // by the kernel, or the guard
  console_.say(
      fmt::format("tutti: the keeper (pid {}) or its guard (pid {}) died; killing what is left of "
                  "the job",
                  died.pid, died.guard));
}

void Attempt::on(Host& host, const Done& done) {
  host.is_done = true;
  if (done.left_behind == 0) return;
  console_.say(fmt::format("tutti: the guard (pid {}) does not end; processes may be left",
                           done.left_behind));
}

// ---- What follows

/// A rank that ended outside a world can never complete the world of those who wait in init.
void Attempt::watch_rendezvous(Clock::time_point now) {
  if (const auto reason = gathering_.judge(now)) {
    console_.say("tutti: " + *reason);
    store_->fail(Error(ErrorCode::kPeerLost, *reason, {.culprits = {gathering_.lost_rank()}}));
    ending_.rendezvous_failed = true;
    start_failing(now);
  }
  if (const auto line = gathering_.say_who_is_missing(now)) console_.say(*line);
}

void Attempt::say_who_is_stopped(Clock::time_point now) {
  for (Rank& rank : ranks_) {
    if (rank.ended || now < rank.stopped_line_at) continue;
    rank.stopped_line_at = Clock::time_point::max();
    console_.say(fmt::format(
        "tutti: rank {} (pid {}) is stopped by {}; kill -CONT {} lets it go on",
        &rank - ranks_.data(), rank.pid, agent::describe_signal(rank.stopped_by), rank.pid));
  }
}

/// "ranks 0-2", "rank 1 (stopped)", "ranks 0-2 (of which 1 stopped)".
std::string Attempt::running_text() const {
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

void Attempt::say_who_still_runs(Clock::time_point now) {
  if (phase_ != Phase::ending || now < still_run_line_at_ || all_ended()) return;
  still_run_line_at_ = now + kAgainLine;
  const auto left = std::max(Clock::duration::zero(), ending_until_ - now);
  const std::string text = running_text();
  console_.say(fmt::format("tutti: {} still run{}; SIGKILL in {}, or at once by {} Ctrl-C", text,
                           text.starts_with("rank ") ? "s" : "", format_span(left),
                           console_.interrupts() > 0 ? "a second" : "two"));
}

void Attempt::start_failing(Clock::time_point now) {
  if (phase_ != Phase::running) return;
  phase_ = Phase::failing;
  failing_until_ = now + options_.failure_grace;
}

void Attempt::act_on_time(Clock::time_point now) {
  console_.output().say_due(now);
  if (all_ended()) {
    if (!std::exchange(has_asked_for_end_, true)) order(End{});
    return;
  }
  if (outcome_.failed()) start_failing(now);
  if (phase_ < Phase::ending) watch_rendezvous(now);
  say_who_is_stopped(now);
  if (phase_ < Phase::ending && now >= timeout_at_) {
    ending_.timed_out = true;
    console_.say(fmt::format("tutti: --timeout {} is over; ending all ranks",
                             format_span(*options_.timeout)));
    ask_to_end(SIGTERM, now);
  }
  if (phase_ == Phase::failing && now >= failing_until_) {
    console_.say(fmt::format("tutti: survivors still run {} after the failure; ending them",
                             format_span(options_.failure_grace)));
    ask_to_end(SIGTERM, now);
  }
  if (phase_ == Phase::ending && now >= ending_until_) {
    console_.say(fmt::format("tutti: ranks still run after --grace {}; killing them",
                             format_span(options_.grace)));
    kill_all();
  }
  say_who_still_runs(now);
}

Attempt::Clock::time_point Attempt::next_event() const {
  Clock::time_point next = console_.output().next_due();
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

/// Those of whom this stream is shown, and nothing else becomes of it.
std::vector<int> Attempt::who_is_only_shown(Stream stream) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    if (console_.output().is_shown(rank, stream) && !logs_->keeps(rank, stream)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

/// Where what ranks print goes nowhere, or not now, they learn it. Who was asked to end, or is
/// given time after a failure, may save and say so: SIGPIPE would end it first.
void Attempt::steer_output() {
  if (is_held_ != console_.output().is_long()) order(Hold{is_held_ = !is_held_});
  if (phase_ != Phase::running) return;
  for (const Stream stream : kStreams) {
    if (is_closed_[index(stream)] || !console_.output().is_closed(stream)) continue;
    is_closed_[index(stream)] = true;
    order(CloseStream{stream, who_is_only_shown(stream)});
  }
}

/// One wait for everything, at most until `until`.
void Attempt::poll_once(Clock::time_point until) {
  steer_output();
  std::vector<net::Watch> watches;
  console_.watch(watches);
  std::vector<std::size_t> begins = {watches.size()};  // where the watches of each host do
  for (const auto& host : hosts_) {
    host->ranks.watch(watches);
    begins.push_back(watches.size());
  }
  Deadline deadline = until == Clock::time_point::max() ? Deadline{} : Deadline::at(until);
  net::poll_any(watches, deadline);
  const std::span<const net::Watch> all(watches);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i]->ranks.step(all.subspan(begins[i], begins[i + 1] - begins[i]));
    read_reports(*hosts_[i]);
  }
  // Last: a signal may stop us.
  console_.step(all.first(begins[0]), [this](int number) { take_signal(number); });
}

JobReport Attempt::report() const {
  JobReport report{.host = hosts_[0]->name,
                   .lasted = Clock::now() - started_,
                   .ending = ending_,
                   .exit_code = outcome_.exit_code(ending_)};
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    const agent::RankExit* exit = outcome_.exit_of(rank);
    report.ranks.push_back({.rank = rank,
                            .pid = of_rank(ranks_, rank).pid,
                            .exit = exit != nullptr ? *exit : agent::RankExit{.rank = rank},
                            .last_lines = console_.output().last_lines(rank)});
  }
  return report;
}

void Attempt::run() {
  start();
  while (!is_done()) {
    poll_once(next_event());
    act_on_time(Clock::now());
  }
}

}  // namespace tutti::launch
