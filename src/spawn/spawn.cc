#include "tutti/spawn.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/signals.h"
#include "net/fd.h"
#include "net/poller.h"
#include "net/process_tree.h"
#include "net/system_error.h"
#include "rendezvous/identity.h"
#include "spawn/child.h"
#include "spawn/job.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using spawning::EndedBy;
using spawning::Job;
using spawning::JobOptions;

/// How long ranks that are ended may take: the grace, and what is killed takes time to go.
std::chrono::nanoseconds ending_time(const JobOptions& options) {
  constexpr std::chrono::nanoseconds kGoes = 10s, kMost = std::chrono::nanoseconds::max();
  return options.grace < kMost - kGoes ? options.grace + kGoes : kMost;
}

[[noreturn]] void refuse(const Where& where, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("spawn at {}: {}", name_of(where), text),
              {.op = "spawn", .call_site = name_of(where)});
}

/// 0: /proc does not say. The kernel lists a thread for a moment after it was joined.
std::size_t thread_count() {
  Deadline patience = Deadline::after(1s);
  for (;;) {
    const std::size_t count = net::numbers_in("/proc/self/task").size();
    if (count <= 1) return count;
    if (net::pause(1ms, patience) == net::PollResult::expired) return count;
  }
}

/// Whether a device of NVIDIA is open: what CUDA opens first. Without its library, which may not
/// even be here.
std::string cuda_device() {
  for (const int fd : net::numbers_in("/proc/self/fd")) {
    std::error_code gone;
    std::string target =
        std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), gone).string();
    if (target.starts_with("/dev/nvidia")) return target;
  }
  return {};
}

/// Why this process cannot be copied; empty: it can.
std::string no_fork() {
  if (const std::string device = cuda_device(); !device.empty()) {
    return fmt::format(
        "CUDA is in use here ({} is open), and does not work in a forked copy; use "
        "Start::exec",
        device);
  }
  const std::size_t threads = thread_count();
  if (threads == 1) return {};
  if (threads == 0) {
    return "/proc does not say how many threads this process has; mount it (mount -t proc proc "
           "/proc)";
  }
  return fmt::format(
      "this process has {} threads (OpenMP, a world, or a spawn that was not joined makes some), "
      "and a forked copy has one: what the others had locked stays locked in it, and its first "
      "OpenMP region hangs; call spawn before there are threads, or use Start::exec",
      threads);
}

/// In a copy of the process, which has no thread of the job: both stay, since neither can end.
void keep(std::shared_ptr<Job> job, std::thread thread) {
  using Kept = std::vector<std::pair<std::shared_ptr<Job>, std::thread>>;
  static Kept& kept = *new Kept;
  kept.emplace_back(std::move(job), std::move(thread));
}

Start choose(Start wanted, const Where& where) {
  switch (wanted) {
    case Start::exec:
    case Start::thread:
      return wanted;
    case Start::automatic:
      return no_fork().empty() ? Start::fork : Start::exec;
    case Start::fork:
      break;
  }
  if (const std::string why = no_fork(); !why.empty()) {
    refuse(where, "ranks by fork: " + why);
  }
  return wanted;
}

void check(int world_size, const SpawnOptions& options, const Where& where) {
  if (const std::string rank = spawning::rank_here(); !rank.empty()) {
    refuse(where, fmt::format("this is {} already, and ranks start no ranks: call it in a program "
                              "that no launcher has made one of several ranks, or let the launcher "
                              "start all of them",
                              rank));
  }
  if (world_size < 1) refuse(where, fmt::format("{} ranks: at least 1 is needed", world_size));
  if (world_size > rendezvous::kMaxRanksOfHost) {
    refuse(where, fmt::format("{} ranks: a host holds at most {}; more need several hosts, "
                              "where mpirun, srun or RANK and WORLD_SIZE by hand make them",
                              world_size, rendezvous::kMaxRanksOfHost));
  }
  if (options.grace < 0ns || options.start_timeout < 0ns) refuse(where, "a time is negative");
}

}  // namespace

std::string_view name_of(Start start) noexcept {
  constexpr std::array<std::string_view, 4> kNames = {"automatic", "fork", "exec", "thread"};
  return kNames[static_cast<std::size_t>(start)];
}

class Spawned::Impl {
 public:
  /// In a rank by exec that is on its way to another call: nothing runs.
  explicit Impl(const JobOptions& options) : options_(options) {}
  explicit Impl(const JobOptions& options, spawning::Function function)
      : options_(options), job_(std::make_shared<Job>(options, std::move(function))) {
    const SignalsBlocked blocked;
    try {
      thread_ = std::thread([job = job_] { job->run(); });
    } catch (const std::system_error& failure) {
      throw net::no_thread_error("spawn: cannot start a thread", failure.code().value());
    }
  }
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool join_for(std::chrono::nanoseconds timeout);
  void join(const Timeout& timeout);
  void end(EndedBy why, const std::string& text);
  const JobOptions& options() const noexcept { return options_; }
  spawning::RankState state_of(int rank) const;

 private:
  bool is_owner() const noexcept { return job_ && owner_ == ::getpid(); }
  void rejoin();

  const JobOptions options_;
  const pid_t owner_ = ::getpid();
  std::shared_ptr<Job> job_;
  std::thread thread_;
  std::mutex joining_;  ///< of threads that have found the job ended
};

Spawned::Impl::~Impl() {
  if (!job_) return;
  if (!is_owner()) {
    keep(std::move(job_), std::move(thread_));
    return;
  }
  if (!thread_.joinable()) return;  // all is over, and its program knows how
  job_->end(EndedBy::program, "it was destroyed while ranks ran");
  Deadline deadline = Deadline::after(ending_time(options_));
  if (!job_->wait(deadline)) {
    thread_.detach();  // it goes on, with the job
    log(LogLevel::error, fmt::format("spawn at {}: its ranks do not end", options_.call_site));
    return;
  }
  thread_.join();
  if (job_->failure()) {
    log(LogLevel::error, fmt::format("not joined: {}", job_->failure()->what()));
  }
}

void Spawned::Impl::rejoin() {
  const std::lock_guard lock(joining_);
  if (thread_.joinable()) thread_.join();
  if (job_->failure()) throw Error(*job_->failure());
}

bool Spawned::Impl::join_for(std::chrono::nanoseconds timeout) {
  if (!is_owner()) return true;
  Deadline deadline = Deadline::after(timeout);
  if (!job_->wait(deadline)) return false;
  rejoin();
  return true;
}

void Spawned::Impl::join(const Timeout& timeout) {
  if (join_for(timeout.value_or(std::chrono::nanoseconds::max()))) return;
  end(EndedBy::timeout, fmt::format("not all ranks had ended {:g} s after join was called",
                                    std::chrono::duration<double>(*timeout).count()));
  if (!join_for(ending_time(options_))) {
    throw Error(ErrorCode::kTimeout,
                fmt::format("spawn at {}: its ranks do not end", options_.call_site));
  }
}

void Spawned::Impl::end(EndedBy why, const std::string& text) {
  if (is_owner()) job_->end(why, text);
}

spawning::RankState Spawned::Impl::state_of(int rank) const {
  if (rank < 0 || rank >= options_.world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} is out of range: 0 to {}", rank, options_.world_size - 1));
  }
  if (job_) return job_->state_of(rank);
  spawning::RankState passed;
  passed.wait_status = 0;
  return passed;
}

Spawned::Spawned() noexcept = default;
Spawned::Spawned(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Spawned::Spawned(Spawned&& other) noexcept = default;
Spawned& Spawned::operator=(Spawned&& other) noexcept = default;
Spawned::~Spawned() = default;

void Spawned::join(Timeout timeout) {
  if (impl_) impl_->join(timeout);
}
bool Spawned::join_for(std::chrono::nanoseconds timeout) {
  return !impl_ || impl_->join_for(timeout);
}
void Spawned::end() {
  if (impl_) impl_->end(EndedBy::program, "the program ended it");
}
int Spawned::world_size() const noexcept { return impl_ ? impl_->options().world_size : 0; }
Start Spawned::start() const noexcept { return impl_ ? impl_->options().start : Start::automatic; }
pid_t Spawned::pid(int rank) const { return impl_ ? impl_->state_of(rank).pid : 0; }

std::optional<int> Spawned::exit_code(int rank) const {
  if (!impl_) return std::nullopt;
  const spawning::RankState state = impl_->state_of(rank);
  if (!state.wait_status) return std::nullopt;
  return agent::code_of(*state.wait_status);
}

Spawned detail::spawn_ranks(int world_size, RankFunction function, const SpawnOptions& options,
                            const Where& where, std::string_view type) {
  const std::uint64_t callable = hash_text(type);
  const spawning::Turn turn = spawning::take_turn(function, world_size, where, callable);
  JobOptions job{.world_size = world_size,
                 .start = options.start,
                 .grace = options.grace,
                 .start_timeout = options.start_timeout,
                 .call_site = spawning::site_of(where),
                 .callable = callable,
                 .times = turn.times};
  net::hold_standard_descriptors();
  if (turn.is_passed) return Spawned(std::make_unique<Spawned::Impl>(job));
  check(world_size, options, where);
  job.start = choose(options.start, where);
  return Spawned(std::make_unique<Spawned::Impl>(job, std::move(function)));
}

}  // namespace tutti
