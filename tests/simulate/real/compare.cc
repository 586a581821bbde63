#include "simulate/real/compare.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

#include "net/unix_socket.h"
#include "simulate/program.h"
#include "simulate/real/real_world.h"
#include "simulate/script.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/store.h"
#include "tutti/test_kit.h"

namespace tutti::simulate {

using namespace std::chrono_literals;

namespace {

using nlohmann::json;

/// Then ranks are killed, which is a difference.
constexpr std::chrono::seconds kLimit{60};

struct OfRank {
  std::vector<Told> told;
  std::string violation;
};

/// What one rank of a process does and finds.
OfRank run_rank(const Plan& plan, RealWorld& world, int rank) {
  OfRank own;
  own.told.resize(static_cast<std::size_t>(plan.ranks()));
  Tally nothing;
  Happened happened{
      .plan = plan, .tally = nothing, .around = world, .sees_all = false, .told = &own.told};
  happened.done.resize(own.told.size());
  run_program(happened, rank);
  own.violation = happened.violation;
  return own;
}

/// The processes that run, in memory that all of them share.
class SharedPids {
 public:
  explicit SharedPids(std::size_t count) : bytes_(count * sizeof(std::atomic<pid_t>)) {
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    pids_ = {static_cast<std::atomic<pid_t>*>(memory), count};
  }
  SharedPids(const SharedPids&) = delete;
  SharedPids& operator=(const SharedPids&) = delete;
  ~SharedPids() { ::munmap(pids_.data(), bytes_); }
  RealWorld::Pids get() const noexcept { return pids_; }

 private:
  const std::size_t bytes_;
  RealWorld::Pids pids_;
};

/// A store in a process of its own: as the simulated one it outlives all ranks. Where there are
/// hosts it is on the first one, rank 0's, and served over TCP.
class OutlivingStore {
 public:
  explicit OutlivingStore(const Hosts* hosts) : hosts_(hosts) {
    // Made here: there all can connect at once.
    net::Fd listener = hosts == nullptr ? net::Fd(net::listen(local_).release()) : net::Fd();
    server_ = ::fork();
    if (server_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (hosts != nullptr) {
      const auto store = make_tcp_store({.host = hosts->address(), .is_server = true});
      for (;;) ::pause();
    }
    const store::Server server({.listener = std::move(listener)});
    for (;;) ::pause();
  }
  OutlivingStore(const OutlivingStore&) = delete;
  OutlivingStore& operator=(const OutlivingStore&) = delete;
  ~OutlivingStore() {
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
  }

  /// From a process of any host.
  std::shared_ptr<Store> connect() const {
    if (hosts_ != nullptr) return make_tcp_store({.host = hosts_->address(), .timeout = kLimit});
    return store::connect_store(local_, {}, Deadline::after(kLimit)).store;
  }

 private:
  const Hosts* const hosts_;
  const std::string local_ = net::random_address("tutti-real");
  pid_t server_ = -1;
};

/// All ranks of a process, each in a thread, on its host; what it answers goes back to the
/// comparison. They meet in the store.
std::string run_process(const Plan& plan, int process, InitOptions init,
                        const OutlivingStore& store, const Hosts* hosts, RealWorld::Pids pids) {
  use_cores_of(plan);
  if (hosts != nullptr) hosts->enter(plan.hosts_of[static_cast<std::size_t>(process)]);
  pids[static_cast<std::size_t>(process)].store(::getpid());
  init.store = store.connect();
  RealWorld world(plan, init, hosts, pids);
  std::vector<OfRank> ranks(static_cast<std::size_t>(plan.ranks()));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (plan.process_of[rank] == process)
      threads.emplace_back(
          [&, rank] { ranks[rank] = run_rank(plan, world, static_cast<int>(rank)); });
  for (std::thread& thread : threads) thread.join();
  pids[static_cast<std::size_t>(process)].store(0);
  json answer = json::object();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (plan.process_of[rank] == process) {
      answer[std::to_string(rank)] = {{"told", to_json(ranks[rank].told[rank])},
                                      {"violation", ranks[rank].violation}};
    }
  return answer.dump();
}

std::vector<test_kit::Outcome> run_processes(const Plan& plan, const Hosts* hosts) {
  const OutlivingStore store(hosts);
  const SharedPids pids(static_cast<std::size_t>(plan.process_of.back() + 1));
  const test_kit::RunOptions options{.as = test_kit::As::processes, .deadline = kLimit};
  return test_kit::collect_ranks(
      plan.process_of.back() + 1,
      [&](const test_kit::Rank& me) {
        return run_process(plan, me.rank, me.init, store, hosts, pids.get());
      },
      options);
}

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

}  // namespace

Run run_real(const json& expectation, RanksAs as, const Hosts* hosts) {
  Plan plan = from_script(expectation.at("script").get<std::string>());
  if (as == RanksAs::threads) std::fill(plan.process_of.begin(), plan.process_of.end(), 0);
  const std::vector<test_kit::Outcome> processes = run_processes(plan, hosts);
  if (hosts != nullptr) hosts->mend();
  Run run;
  run.told = json::array();
  for (std::size_t rank = 0; rank < plan.process_of.size(); ++rank) {
    const auto& process = processes[static_cast<std::size_t>(plan.process_of[rank])];
    const json answer = process.result.empty()
                            ? json{{"told", nullptr}, {"violation", ""}}
                            : json::parse(process.result).at(std::to_string(rank));
    run.told.push_back(answer.at("told"));
    const auto note = [&](const std::string& what) {
      run.differences.push_back(fmt::format("rank {}: {}", rank, what));
    };
    const Told simulated = told_from(expectation.at("told").at(rank));
    const Told real = told_from(answer.at("told"));
    if (real.has_ended && simulated.has_ended) {
      for (const Difference& each : differences(simulated, real)) {
        note(each.text);
        if (each.is_call) run.unlike.push_back({rank, each.what});
      }
      run.calls += static_cast<int>(simulated.calls.size());
    } else if (real.has_ended != simulated.has_ended) {
      note(real.has_ended ? "its process has not died" : "its process was " + process.failure);
    }
    if (const std::string violation = answer.at("violation"); !violation.empty()) {
      note(violation);
      run.is_explainable = false;
    }
  }
  if (has_children()) {
    run.differences.emplace_back("a process was left behind");
    run.is_explainable = false;
  }
  return run;
}

}  // namespace tutti::simulate
