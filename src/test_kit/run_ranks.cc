// Ranks as threads or as forked processes.
//
// A process reports its outcome in a memfd that the parent made before the fork, so that the parent
// has nothing to wait for but the end of its children. A POSIX timer of each child kills it at the
// deadline, stopped or not; PR_SET_PDEATHSIG kills it with its parent.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "base/of_rank.h"
#include "tutti/test_kit.h"

namespace tutti::test_kit {

namespace {

using Function = std::function<std::string(const Rank&)>;
using nlohmann::json;

[[noreturn]] void throw_system(const std::string& doing) {
  const std::string reason = std::generic_category().message(errno);
  throw Error(ErrorCode::kSystem, "run_ranks: " + doing + ": " + reason);
}

/// A descriptor that closes itself.
class Owned {
 public:
  explicit Owned(int fd) noexcept : fd_(fd) {}
  Owned(Owned&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

/// Sends `signal_number` to this process at the deadline unless it is destroyed first.
class DeadlineTimer {
 public:
  DeadlineTimer(std::chrono::milliseconds budget, int signal_number) {
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = signal_number;
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) throw_system("timer_create");
    itimerspec when = {};
    when.it_value.tv_sec = budget.count() / 1000;
    when.it_value.tv_nsec = budget.count() % 1000 * 1'000'000;
    if (::timer_settime(timer_, 0, &when, nullptr) != 0) throw_system("timer_settime");
  }
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;
  ~DeadlineTimer() { ::timer_delete(timer_); }

 private:
  timer_t timer_ = {};
};

Outcome run_one(const Rank& me, const Function& function) {
  Outcome outcome;
  outcome.rank = me.rank;
  try {
    outcome.result = function(me);
  } catch (const Error& error) {
    outcome.failure = error.what();
    outcome.error = error;
  } catch (const std::exception& caught) {
    outcome.failure = caught.what();
  } catch (...) {
    outcome.failure = "an exception of a type not derived from std::exception";
  }
  return outcome;
}

Rank make_rank(int rank, int world_size, const RunOptions& options) {
  Rank me{rank, world_size, options.init};
  me.init.rank = rank;
  me.init.world_size = world_size;
  if (!options.hosts.empty())
    me.init.settings["host_id"] = "host-" + std::to_string(of_rank(options.hosts, rank));
  return me;
}

// ---- threads ----------------------------------------------------------------------------------

std::vector<Outcome> run_threads(int world_size, const Function& function,
                                 const RunOptions& options) {
  const DeadlineTimer timer(options.deadline, SIGABRT);  // threads cannot be killed one by one
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank me = make_rank(rank, world_size, options);
      if (!me.init.store) me.init.store = store;
      of_rank(outcomes, rank) = run_one(me, function);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// ---- processes --------------------------------------------------------------------------------

std::vector<std::uint8_t> encode(const Outcome& outcome) {
  json document = {{"result", outcome.result}, {"failure", outcome.failure}};
  if (outcome.error) {
    const ErrorContext& context = outcome.error->context();
    document["error"] = {{"code", static_cast<int>(outcome.error->code())},
                         {"op", context.op},
                         {"seq", context.seq},
                         {"rank", context.rank},
                         {"culprits", context.culprits},
                         {"host", context.host},
                         {"call_site", context.call_site}};
  }
  return json::to_cbor(document);
}

void decode(const std::vector<std::uint8_t>& bytes, Outcome* outcome) {
  const json document = json::from_cbor(bytes);
  outcome->result = document.at("result").get<std::string>();
  outcome->failure = document.at("failure").get<std::string>();
  if (!document.contains("error")) return;
  const json& error = document.at("error");
  ErrorContext context;
  context.op = error.at("op").get<std::string>();
  context.seq = error.at("seq").get<std::uint64_t>();
  context.rank = error.at("rank").get<int>();
  context.culprits = error.at("culprits").get<std::vector<int>>();
  context.host = error.at("host").get<std::string>();
  context.call_site = error.at("call_site").get<std::string>();
  outcome->error.emplace(static_cast<ErrorCode>(error.at("code").get<int>()), outcome->failure,
                         std::move(context));
}

void write_all(int fd, const std::vector<std::uint8_t>& bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t step = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (step < 0 && errno != EINTR) throw_system("writing the outcome");
    if (step > 0) written += static_cast<std::size_t>(step);
  }
}

std::vector<std::uint8_t> read_all(int fd) {
  std::vector<std::uint8_t> bytes;
  std::uint8_t block[4096];
  off_t offset = 0;
  while (true) {
    const ssize_t step = ::pread(fd, block, sizeof(block), offset);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) throw_system("reading an outcome");
    if (step == 0) return bytes;
    bytes.insert(bytes.end(), block, block + step);
    offset += step;
  }
}

/// A port that nobody else is given while the descriptor lives: it names the meeting point.
Owned reserve_port(int* port) {
  Owned fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t address_bytes = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (fd.get() < 0 || ::bind(fd.get(), generic, address_bytes) != 0 ||
      ::getsockname(fd.get(), generic, &address_bytes) != 0) {
    throw_system("reserving a port");
  }
  *port = ntohs(address.sin_port);
  return fd;
}

/// The variables that a launcher by hand would set; those of launchers around the test are hidden.
void set_identity(const Rank& me, int port) {
  for (const char* hidden : {"TUTTI_AGENT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    ::unsetenv(hidden);
  }
  const std::string rank = std::to_string(me.rank), world_size = std::to_string(me.world_size);
  ::setenv("RANK", rank.c_str(), 1);
  ::setenv("LOCAL_RANK", rank.c_str(), 1);
  ::setenv("WORLD_SIZE", world_size.c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", world_size.c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

[[noreturn]] void child_main(const Rank& me, const Function& function, const RunOptions& options,
                             int port, int outcome_fd, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  int status = 0;
  try {
    const DeadlineTimer timer(options.deadline, SIGKILL);
    set_identity(me, port);
    const Outcome outcome = run_one(me, function);
    write_all(outcome_fd, encode(outcome));
    if (!outcome.failure.empty()) status = 1;
  } catch (const std::exception& caught) {
    std::fprintf(stderr, "run_ranks: rank %d: %s\n", me.rank, caught.what());
    status = 1;
  }
  std::fflush(nullptr);
  ::_exit(status);
}

std::string describe_end(int status, std::chrono::milliseconds lived,
                         std::chrono::milliseconds deadline) {
  if (WIFEXITED(status)) {
    return "exited with " + std::to_string(WEXITSTATUS(status)) + " before its function returned";
  }
  std::string text = std::string("killed by ") + ::strsignal(WTERMSIG(status));
  if (WTERMSIG(status) == SIGKILL && lived >= deadline) {
    text += " at the deadline of " + std::to_string(deadline.count()) + " ms";
  }
  return text;
}

/// Children that have not been reaped; kills and reaps them when an exception leaves.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    while (!pids_.empty()) reap_next();
  }
  void add(pid_t pid) { pids_.push_back(pid); }
  /// The status of the oldest child.
  int reap_next() noexcept {
    int status = 0;
    while (::waitpid(pids_.front(), &status, 0) < 0 && errno == EINTR) {
    }
    pids_.erase(pids_.begin());
    return status;
  }

 private:
  std::vector<pid_t> pids_;
};

/// The kernel lists a thread for a moment after it was joined.
std::ptrdiff_t count_threads() {
  constexpr std::chrono::seconds kGoes{1};
  const auto end_of_patience = std::chrono::steady_clock::now() + kGoes;
  for (;;) {
    const std::filesystem::directory_iterator tasks("/proc/self/task"), end;
    const auto count = std::distance(tasks, end);
    if (count == 1 || std::chrono::steady_clock::now() >= end_of_patience) return count;
    std::this_thread::yield();
  }
}

void require_one_thread() {
  const auto count = count_threads();
  if (count == 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "run_ranks: ranks as processes are forked, but this process has " +
                  std::to_string(count) +
                  " threads: what they had locked would stay locked in the children. Fork before "
                  "the first thread, or use As::threads.");
}

std::vector<Outcome> run_processes(int world_size, const Function& function,
                                   const RunOptions& options) {
  require_one_thread();
  int port = 0;
  const Owned reservation = reserve_port(&port);
  std::vector<Owned> reports;
  for (int rank = 0; rank < world_size; ++rank) {
    reports.emplace_back(::memfd_create("tutti-outcome", MFD_CLOEXEC));
    if (reports.back().get() < 0) throw_system("memfd_create");
  }
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const auto start = std::chrono::steady_clock::now();
  Children children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) throw_system("fork");
    if (pid == 0) {
      child_main(make_rank(rank, world_size, options), function, options, port,
                 of_rank(reports, rank).get(), parent);
    }
    children.add(pid);
  }
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    Outcome& outcome = of_rank(outcomes, rank);
    outcome.rank = rank;
    outcome.wait_status = children.reap_next();
    const auto lived = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - start);
    const std::vector<std::uint8_t> report = read_all(of_rank(reports, rank).get());
    if (!report.empty()) decode(report, &outcome);
    const bool ended_well = WIFEXITED(outcome.wait_status) && !report.empty();
    if (!ended_well) outcome.failure = describe_end(outcome.wait_status, lived, options.deadline);
  }
  return outcomes;
}

}  // namespace

std::vector<Outcome> collect_ranks(int world_size, const Function& function,
                                   const RunOptions& options) {
  if (world_size < 1) {
    throw Error(ErrorCode::kInvalidArgument, "run_ranks: a world of " + std::to_string(world_size) +
                                                 " ranks: at least 1 needed");
  }
  if (!options.hosts.empty() && options.hosts.size() != static_cast<std::size_t>(world_size)) {
    throw Error(ErrorCode::kInvalidArgument,
                "run_ranks: the hosts of " + std::to_string(options.hosts.size()) +
                    " ranks are given, and the world has " + std::to_string(world_size));
  }
  switch (options.as) {
    case As::threads:
      return run_threads(world_size, function, options);
    case As::processes:
      return run_processes(world_size, function, options);
  }
  return {};
}

void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& function,
               const RunOptions& options) {
  std::vector<Outcome> outcomes = collect_ranks(
      world_size,
      [&function](const Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        function(world);
        world.close();
        return std::string();
      },
      options);
  std::string message;
  for (const Outcome& outcome : outcomes) {
    if (outcome.failure.empty()) continue;
    message += "\n  rank " + std::to_string(outcome.rank) + ": " + outcome.failure;
  }
  if (!message.empty()) {
    throw RanksFailed("of " + std::to_string(world_size) + " ranks, these failed:" + message,
                      std::move(outcomes));
  }
}

}  // namespace tutti::test_kit
