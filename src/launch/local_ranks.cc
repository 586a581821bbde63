#include "launch/local_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "base/rank_list.h"
#include "base/run_defaults.h"
#include "launch/gpus.h"
#include "launch/output_ends.h"
#include "launch/program.h"
#include "net/guard.h"
#include "net/process_info.h"
#include "net/process_tree.h"
#include "net/system_error.h"
#include "net/unix_socket.h"

namespace tutti::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kLinger = 200ms;  ///< for helpers and their output when all ranks have ended
constexpr auto kKeeperKillPatience = 400ms;  ///< for a keeper that may be stopped itself
constexpr auto kGuardPatience = 10s;         ///< for the kernel to give back a large memory
constexpr auto kLookForGuard = 1ms;
constexpr std::size_t kFixedWatches = 3;
constexpr std::size_t kReadBytes = std::size_t{32} << 10;  ///< of a pipe; not on a small stack

constexpr const char* kBlind =
    "/proc is missing, or shows another pid namespace: what ranks start in sessions or process "
    "groups of their own may be left when the job ends, and all that they start if guard and "
    "keeper are killed at once; mount this one's (unshare --mount-proc, or mount -t proc proc "
    "/proc)";

bool is_childless() noexcept {
  siginfo_t info;
  const int found = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL);
  return found < 0 && errno == ECHILD;
}

/// "NAME=VALUE OTHER=VALUE".
std::string words_of(const Environment& variables) {
  std::string words;
  for (const auto& [name, value] : variables)
    words += fmt::format("{}{}={}", words.empty() ? "" : " ", name, value);
  return words;
}

/// What ranks read that have no input.
net::Fd open_nothing() {
  net::Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw net::system_error("cannot open /dev/null", errno);
  return nothing;
}

}  // namespace

RankPlan plan_ranks(const Prepare& order) {
  const auto path = order.environment.find("PATH");
  RankPlan plan;
  plan.path =
      find_program(order.command.at(0),
                   path == order.environment.end() ? "/usr/bin:/bin" : path->second, order.folder);
  check_script(order.command, order.folder);
  const int count = static_cast<int>(order.ranks.size());
  plan.placement = place_on_host(
      order.ranks, net::own_host_name(),
      bind_ranks(topology_of_this_host(order.bind_to), count, order.bind_to, order.map_by));
  plan.placement.world_size = order.world_size;
  plan.placement.host_index = order.host_index;
  plan.placement.host_count = order.host_count;
  if (order.gpus_per_rank > 0) {
    const std::vector<std::string> shares =
        share_gpus(visible_gpus(order.environment), count, order.gpus_per_rank);
    for (std::size_t i = 0; i < shares.size(); ++i) plan.placement.ranks[i].gpus = shares[i];
  }
  for (const Place& place : plan.placement.ranks) {
    // Who is bound has cores; the others have what the kernel gives them, a thread at a time.
    const int cores = order.bind_to == BindTo::none ? static_cast<int>(place.binding.threads.size())
                                                    : place.binding.core_count;
    plan.thread_defaults.push_back(
        thread_defaults(order.environment, cores, place.binding.sharers));
  }
  return plan;
}

std::string describe(const Place& place) {
  return fmt::format("rank {} -> host {} -> cores {} (shared by {} rank{}){}", place.rank,
                     place.host, format_ranks(place.binding.threads), place.binding.sharers,
                     place.binding.sharers == 1 ? "" : "s",
                     place.gpus.empty() ? "" : " -> GPUs " + place.gpus);
}

LocalRanks::LocalRanks(const Inherited& inherited, net::Fd input)
    : inherited_(inherited), input_(std::move(input)) {}

LocalRanks::~LocalRanks() {
  await_guard();
  Deadline deadline = Deadline::at(guard_until_);
  while (guard_lives_ && !is_all_gone() &&
         net::pause(kLookForGuard, deadline) != net::PollResult::expired) {
  }
}

// ---- Orders

void LocalRanks::obey(std::string_view orders) {
  orders_.feed(std::as_bytes(std::span(orders)));
  net::Frame frame;
  for (;;) {
    const net::FrameDecoder::Next next = orders_.next(&frame);
    if (next == net::FrameDecoder::Next::more) return;
    const auto order = next == net::FrameDecoder::Next::frame ? decode_order(frame.type, frame.body)
                                                              : std::nullopt;
    if (!order) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("the host of the ranks got {} bytes of type {} that are no order. "
                              "Please report this",
                              frame.body.size(), frame.type));
    }
    take(*order);
  }
}

void LocalRanks::take(const Order& order) {
  if (const auto* prepared = std::get_if<Prepare>(&order)) {
    try {
      prepare(*prepared);
    } catch (const Error& error) {
      tell(Refused{error.code(), error.what()});
    }
  } else if (const auto* signalled = std::get_if<Signal>(&order)) {
    signal(*signalled);
  } else if (const auto* hold = std::get_if<Hold>(&order)) {
    is_held_ = hold->is_on;
  } else if (const auto* closed = std::get_if<CloseStream>(&order)) {
    close_stream(*closed);
  } else if (std::holds_alternative<Start>(order)) {
    to_keeper(order);
  } else if (ending_ == Ending::none) {  // End
    ending_ = Ending::lingers;
    linger_until_ = Clock::now() + kLinger;
  }
}

void LocalRanks::prepare(const Prepare& order) {
  const RankPlan plan = plan_ranks(order);
  program_ = order.command[0];
  path_ = order.folder.empty() || plan.path.starts_with('/') ? plan.path
                                                             : order.folder + "/" + plan.path;
  // Each has a file for its error, and both ends of its pipes until the keeper has theirs.
  const std::size_t count = order.ranks.size();
  net::require_descriptors(6 * count + 8, 8 * count + 64,
                           fmt::format("a job of {} ranks on this host", count));
  for (const int rank : order.ranks) ranks_.emplace_back().number = rank;
  if (!net::has_own_proc() && order.restart_count == 0) tell(Complaint{std::nullopt, kBlind});
  door_.emplace(order.world_size, "tutti run");
  master_port_.port = order.master_port;
  if (order.host_index == 0) take_master_port(order.master_port);
  adopts_ = net::has_own_proc() && is_childless() && ::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
  children_ = net::read_signals({SIGCHLD});
  if (!children_) throw net::system_error("cannot make a signalfd", errno);
  {
    std::vector<net::Fd> rank_ends;
    keeper_ = fork_keeper(commands(order, plan, rank_ends), inherited_);
  }
  keeper_lives_ = guard_lives_ = true;
  Prepared prepared{
      plan.placement.ranks[0].host, order.world_size > 1 ? plan.thread_defaults[0].notice : "", {}};
  for (const Place& place : plan.placement.ranks) prepared.places.push_back(describe(place));
  tell(prepared);
}

/// For programs that have a server of their own there, as torch's TCPStore in rank 0.
void LocalRanks::take_master_port(int wanted) {
  master_port_ = net::hold_port(wanted);
  if (master_port_.is_shared) {
    const std::string holder = net::sharer_of(master_port_.port);
    tell(
        Complaint{std::nullopt,
                  fmt::format("MASTER_PORT={}: another job has it, too{}; only one of the programs "
                              "that listen there can; give each job its own, or none",
                              master_port_.port, holder.empty() ? "" : " (" + holder + ")")});
  }
  if (master_port_.error_number == 0) return;
  master_port_.port = wanted;
  const auto address = net::TcpAddress::parse(fmt::format("0.0.0.0:{}", wanted));
  const std::string holder = address ? net::holder_of(*address) : "";
  tell(Complaint{std::nullopt,
                 fmt::format("MASTER_PORT={}: {}{}; a program that listens there will fail", wanted,
                             std::strerror(master_port_.error_number),
                             holder.empty() ? "" : " (" + holder + ")")});
}

std::vector<RankCommand> LocalRanks::commands(const Prepare& order, const RankPlan& plan,
                                              std::vector<net::Fd>& rank_ends) {
  JobFacts job{door_->address(), order.master_address, master_port_.port, order.run_id,
               order.role,       order.restart_count,  order.max_restarts};
  std::vector<RankCommand> commands;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    RankCommand command{.rank = ranks_[index].number,
                        .path = plan.path,
                        .folder = order.folder,
                        .arguments = order.command};
    if (order.bind_to != BindTo::none) {
      command.threads = plan.placement.ranks[index].binding.threads;
    }
    Environment variables = order.environment;
    const Environment& added = plan.thread_defaults[index].added;
    variables.insert(added.begin(), added.end());
    if (!added.empty()) variables[kRunDefaults] = words_of(added);
    job.error_file = ranks_[index].error_file.path();
    for (const auto& [name, value] :
         rank_variables(variables, plan.placement, static_cast<int>(index), job)) {
      command.variables.push_back(fmt::format("{}={}", name, value));
    }
    rank_ends.push_back(index == 0 && input_ ? std::move(input_) : open_nothing());
    command.stdin_fd = rank_ends.back().get();
    for (const Stream stream : {Stream::out, Stream::err}) {
      const int own = stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO;
      OutputEnds ends = open_output_ends(own, order.prefix_columns[index]);
      ranks_[index].pipes[launch::index(stream)] = std::move(ends.launcher_end);
      rank_ends.push_back(std::move(ends.rank_end));
      (stream == Stream::out ? command.stdout_fd : command.stderr_fd) = rank_ends.back().get();
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

void LocalRanks::signal(const Signal& order) {
  to_keeper(order);
  const bool kills_all = order.rank < 0 && order.number == SIGKILL;
  if (kills_all && takeover_at_ == Clock::time_point::max()) {
    takeover_at_ = Clock::now() + kKeeperKillPatience;
  }
}

void LocalRanks::close_stream(const CloseStream& order) {
  for (const int number : order.ranks) {
    if (Rank* const rank = find(number)) rank->pipes[index(order.stream)].reset();
  }
}

void LocalRanks::to_keeper(const Order& order) noexcept {
  // Should both be stopped: it lets the keeper go on. It is ours, and not reaped yet.
  if (guard_lives_ && !awaits_guard_) ::kill(keeper_.guard, SIGCONT);
  const std::string packet = encode(order);
  // A keeper that is gone is noticed by the end of its channel; one that is stopped must not stop
  // us when the channel is full.
  net::send_packet(keeper_.channel.get(), std::as_bytes(std::span(packet)), false);
}

// ---- What becomes of them

LocalRanks::Rank* LocalRanks::find(int number) noexcept {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(),
                                  [number](const Rank& rank) { return rank.number == number; });
  return found == ranks_.end() ? nullptr : &*found;
}

void LocalRanks::read_notes() {
  while (keeper_lives_) {
    char packet[net::kFrameHeaderBytes + kMaxNoteBytes];
    const ssize_t got = ::recv(keeper_.channel.get(), packet, sizeof packet, MSG_DONTWAIT);
    if (got > 0) {
      net::FrameDecoder decoder(kMaxNoteBytes);
      decoder.feed(std::as_bytes(std::span(packet, static_cast<std::size_t>(got))));
      net::Frame frame;
      if (decoder.next(&frame) != net::FrameDecoder::Next::frame) continue;
      if (const auto note = decode_note(frame.type, frame.body)) take_note(*note);
    } else if (got < 0 && errno == EAGAIN) {
      return;
    } else if (got == 0 || (errno != EINTR && errno != ECONNRESET)) {
      keeper_is_gone();
    }  // else it ended with an order unread (told once); what it had told before is still there
  }
}

void LocalRanks::take_note(const Note& note) {
  if (const auto* failed = std::get_if<ExecFailed>(&note)) {
    tell(Complaint{
        failed->rank,
        failed->is_forked
            ? fmt::format("cannot execute {}: {}", program_, explain_refusal(path_, failed->error))
            : net::no_thread_error("cannot make a process", failed->error).what()});
    return;
  }
  if (const auto* exited = std::get_if<Exited>(&note)) {
    rank_ended(exited->rank, exited->wait_status);
    return;
  }
  if (const auto* none = std::get_if<NoKeeper>(&note)) {
    keeper_lives_ = false;
    tell(Refused{ErrorCode::kSystem,
                 net::no_thread_error("cannot make the keeper of the ranks", none->error).what()});
  } else if (const auto* keeper = std::get_if<KeeperIs>(&note)) {
    keeper_pid_ = keeper->pid;
    tell(*keeper);
  } else if (const auto* started = std::get_if<Started>(&note)) {
    door_->rank_started(started->rank, started->pid);
    tell(*started);
  } else if (const auto* stopped = std::get_if<Stopped>(&note)) {
    tell(*stopped);
  } else if (const auto* continued = std::get_if<Continued>(&note)) {
    tell(*continued);
  }
}

void LocalRanks::rank_ended(int number, int wait_status) {
  Rank* const rank = find(number);
  if (rank == nullptr || rank->has_ended) return;
  rank->has_ended = true;
  look_at_door();  // first: whether its world was complete belongs to its end
  door_->rank_exited(number, wait_status);
  tell(Ended{{.rank = number,
              .wait_status = wait_status,
              .culprits = door_->blamed_by(number),
              .disagreement = door_->disagreement_of(number),
              .failure = door_->failure_of(number),
              .doing = door_->doing_of(number),
              .error = rank->error_file.said(),
              .untold = door_->untold_by(number)}});
}

void LocalRanks::look_at_door() {
  for (Rank& rank : ranks_) {
    if (!rank.has_joined && door_->has_joined(rank.number)) {
      rank.has_joined = true;
      tell(Joined{rank.number,
                  !std::exchange(has_first_, true) && has_openmp(door_->first_joined())});
    }
    if (!rank.has_met && door_->is_in_world(rank.number)) {
      rank.has_met = true;
      tell(Met{rank.number});
    }
  }
}

void LocalRanks::keeper_is_gone() {
  // Its ranks have got SIGKILL from the kernel; what they left behind is the guard's child now.
  keeper_lives_ = false;
  if (Clock::now() < takeover_at_) tell(KeeperDied{keeper_pid_, keeper_.guard});
  await_guard();
}

/// Nobody is meant to stop the guard: should the keeper be stopped as well, the guard lets it go
/// on. A keeper whose guard has ended ends everything, unless it is stopped.
void LocalRanks::look_at_guard() {
  siginfo_t info = {};
  const bool has_changed = ::waitid(P_PID, static_cast<id_t>(keeper_.guard), &info,
                                    WSTOPPED | WEXITED | WNOHANG | WNOWAIT) == 0 &&
                           info.si_pid == keeper_.guard;
  if (!has_changed) return;
  if (info.si_code == CLD_STOPPED) {
    ::kill(keeper_.guard, SIGCONT);
  } else if (keeper_lives_ && keeper_pid_ > 0 && alone_until_ == Clock::time_point::max()) {
    ::kill(keeper_pid_, SIGCONT);
    alone_until_ = Clock::now() + kKeeperKillPatience;
  }
}

/// Until it has ended, and with it everything below it, the keeper included.
void LocalRanks::await_guard() {
  if (!guard_lives_ || std::exchange(awaits_guard_, true)) return;
  keeper_.lifeline.reset();
  ::kill(keeper_.guard, SIGCONT);  // it may have been stopped
  guard_until_ = Clock::now() + kGuardPatience;
}

/// The guard, and what it and the keeper have left.
bool LocalRanks::is_all_gone() {
  if (::waitpid(keeper_.guard, nullptr, WNOHANG) == 0) return false;
  return !adopts_ || net::kill_and_reap_below();
}

void LocalRanks::guard_is_gone(int left_behind) {
  read_notes();  // what the keeper has told before its end
  keeper_lives_ = guard_lives_ = awaits_guard_ = false;
  left_behind_ = left_behind;
  for (const Rank& rank : ranks_) rank_ended(rank.number, W_EXITCODE(0, SIGKILL));
}

/// False when there was nothing to read now.
bool LocalRanks::read_pipe(Rank& rank, Stream stream) {
  net::Fd& pipe = rank.pipes[index(stream)];
  std::string bytes(kReadBytes, '\0');
  const ssize_t got = ::read(pipe.get(), bytes.data(), bytes.size());
  if (got > 0) {
    bytes.resize(static_cast<std::size_t>(got));
    tell(Printed{rank.number, stream, std::move(bytes)});
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    tell(PrintedAll{rank.number, stream});
    pipe.reset();
  } else {
    return errno == EINTR;
  }
  return true;
}

// ---- The end

bool LocalRanks::is_any_open() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.pipes[0] || rank.pipes[1]; });
}

/// Helpers of ranks that have ended may still print; then nothing below us may stay.
void LocalRanks::go_on_ending(Clock::time_point now) {
  if (ending_ == Ending::lingers) {
    if (keeper_lives_ && is_any_open() && now < linger_until_) return;
    if (keeper_lives_) {
      to_keeper(End{});
      keeper_lives_ = false;
      await_guard();
    }
    ending_ = Ending::awaits_guard;
  }
  if (ending_ == Ending::awaits_guard && !awaits_guard_) {
    drain(left_behind_ == 0 ? Clock::time_point::max() : now + kLinger);
    ending_ = Ending::done;
    tell(Done{left_behind_});
  }
}

/// All that is in the pipes. Something of the job that lives on may print without end.
void LocalRanks::drain(Clock::time_point until) {
  for (Rank& rank : ranks_) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      if (!rank.pipes[index(stream)]) continue;
      while (rank.pipes[index(stream)] && Clock::now() < until) {
        if (!read_pipe(rank, stream)) break;
      }
      if (rank.pipes[index(stream)]) tell(PrintedAll{rank.number, stream});
      rank.pipes[index(stream)].reset();
    }
  }
}

void LocalRanks::act_on_time(Clock::time_point now) {
  if (now >= alone_until_ && keeper_lives_) {
    ::kill(keeper_pid_, SIGKILL);  // and the kernel its ranks
    alone_until_ = Clock::time_point::max();
  }
  // The keeper does not kill: a debugger holds it, or it is busy. The guard kills it as well.
  if (now >= takeover_at_ && keeper_lives_ && !awaits_guard_) {
    if (net::is_stopped(keeper_pid_)) {
      tell(Complaint{std::nullopt,
                     fmt::format("the keeper of the ranks (pid {}) is stopped, by a debugger or "
                                 "again and again, and told nothing of them meanwhile; its guard "
                                 "kills what is left",
                                 keeper_pid_)});
    }
    await_guard();
  }
  if (awaits_guard_) {
    if (is_all_gone()) {
      guard_is_gone(0);
    } else if (now >= guard_until_) {
      guard_is_gone(keeper_.guard);
    }
  }
  go_on_ending(now);
}

// ---- One turn

void LocalRanks::watch(std::vector<net::Watch>& watches) const {
  watches.push_back({.fd = keeper_lives_ ? keeper_.channel.get() : -1, .want_read = true});
  watches.push_back({.fd = door_ ? door_->news().fd() : -1, .want_read = true});
  watches.push_back({.fd = guard_lives_ ? children_.get() : -1, .want_read = true});
  for (const Rank& rank : ranks_) {
    for (const net::Fd& pipe : rank.pipes) {
      watches.push_back({.fd = is_held_ ? -1 : pipe.get(), .want_read = true});
    }
  }
}

void LocalRanks::step(std::span<const net::Watch> watched) {
  for (std::size_t i = 0; i < 2 * ranks_.size(); ++i) {
    if (!watched[kFixedWatches + i].readable) continue;
    read_pipe(ranks_[i / 2], i % 2 == 0 ? Stream::out : Stream::err);
  }
  if (watched[0].readable) read_notes();
  if (watched[1].readable) door_->news().drain();
  if (watched[2].readable) {
    net::drain_signals(children_);
    look_at_guard();
  }
  if (door_) look_at_door();
  act_on_time(Clock::now());
}

LocalRanks::Clock::time_point LocalRanks::next_event() const {
  if (!reports_.empty()) return Clock::time_point::min();
  Clock::time_point next = Clock::time_point::max();
  if (keeper_lives_) next = std::min(next, alone_until_);
  if (keeper_lives_ && !awaits_guard_) next = std::min(next, takeover_at_);
  if (awaits_guard_) next = std::min(next, Clock::now() + kLookForGuard);
  if (ending_ == Ending::lingers) {
    next = std::min(next, is_any_open() ? linger_until_ : Clock::time_point::min());
  }
  return next;
}

}  // namespace tutti::launch
