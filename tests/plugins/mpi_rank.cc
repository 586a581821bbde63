// One rank of a job that tests the backend "mpi": `mpi_rank SCENARIO RECORDS`.
//
// Prints nothing; what happened goes to the file RECORDS.R of rank R, because launchers kill, mix
// and swallow: "ok", "failed: <text>", or "<code> <culprits>: <text>" of an Error.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tutti/test_kit.h"
#include "tutti/tutti.h"

#if defined(TUTTI_TEST_OWN_MPI)
#include <mpi.h>
#endif

namespace tutti::mpi_test {
namespace {

using namespace std::chrono_literals;

// ---- operations; backends.conformance_mpi_* is where all of them are tested

void expect(bool right, const char* what) {
  if (!right) throw std::runtime_error(std::string(what) + " gave something else");
}

/// The sum of 1, 2, ... as far as the group has ranks, everywhere in `count` elements.
template <class T>
void all_reduce(ProcessGroup& group, std::size_t count) {
  std::vector<T> x(count, static_cast<T>(group.rank() + 1));
  group.all_reduce(x);
  const int ranks = group.world_size();
  expect(x == std::vector<T>(count, static_cast<T>(ranks * (ranks + 1) / 2)), "all_reduce");
}

/// Every operation and type, one count, asynchronous ones among them.
void operations(ProcessGroup& group) {
  const test_kit::ConformanceReport report =
      test_kit::run_conformance(group, {.counts = {5}, .one_variant_in = 4});
  if (!report.failures.empty()) throw std::runtime_error(report.failures.front());
}

/// One thread, and more than one staged piece of what MPI cannot reduce by itself.
void blocking(ProcessGroup& group) {
  all_reduce<float>(group, 1'500'001);
  std::vector<bfloat16> x(1'500'001, bfloat16(static_cast<float>(2 * group.rank())));
  group.all_reduce(x, ReduceOp::avg);
  const bfloat16 average(static_cast<float>(group.world_size() - 1));
  expect(std::all_of(x.begin(), x.end(), [&](bfloat16 each) { return each.bits == average.bits; }),
         "all_reduce of bf16");
  std::vector<int> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(group.rank(), all);
  for (std::size_t i = 0; i < all.size(); ++i) expect(all[i] == static_cast<int>(i), "all_gather");
  group.barrier();
}

// ---- messages, groups, worlds

/// Two messages at once, taken in the other order.
void messages(ProcessGroup& group) {
  const int rank = group.rank(), ranks = group.world_size();
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  std::vector<int> first(1000, rank), second(300'000, rank + 100), got_first(1000),
      got_second(300'000);
  Work one = group.send(first, next, {.tag = 1}, async);
  Work two = group.send(second, next, {.tag = 2}, async);
  group.recv(got_second, before, {.tag = 2});
  group.recv(got_first, before, {.tag = 1});
  one.wait();
  two.wait();
  expect(got_first == std::vector<int>(1000, before), "the message of tag 1");
  expect(got_second == std::vector<int>(300'000, before + 100), "the message of tag 2");
}

/// Two collectives at once, waited for in the other order.
void asynchronous(ProcessGroup& group) {
  std::vector<std::int64_t> x(1000, 1);
  std::vector<float> y(77, static_cast<float>(group.rank()));
  Work first = group.all_reduce(x, async);
  Work second = group.all_reduce(y, ReduceOp::max, async);
  second.wait();
  first.wait();
  expect(x == std::vector<std::int64_t>(1000, group.world_size()), "the first all_reduce");
  expect(y == std::vector<float>(77, static_cast<float>(group.world_size() - 1)),
         "the second all_reduce");
}

void subgroups(ProcessGroup& world) {
  for (int round = 0; round < 3; ++round) {
    std::vector<int> members;  // every other rank, backwards
    for (int rank = world.world_size() - 1; rank >= 0; rank -= 2) members.push_back(rank);
    ProcessGroup group = world.new_group(members);
    if (!group.is_member()) continue;
    all_reduce<int>(group, 100);
    group.close();
  }
  ProcessGroup half = world.split({.color = world.rank() % 2});
  all_reduce<double>(half, 100);
}

/// Two groups of all ranks, each used from a thread of its own, with pauses between the calls.
void two_threads(ProcessGroup& world) {
  std::vector<int> all;
  for (int rank = 0; rank < world.world_size(); ++rank) all.push_back(rank);
  ProcessGroup groups[2] = {world.new_group(all), world.new_group(all)};
  std::string failures[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int round = 0; round < 30; ++round) {
          all_reduce<int>(groups[i], 1 + 100u * (round % 7u));
          std::this_thread::sleep_for(std::chrono::microseconds((round * 7919 + i * 31) % 300));
        }
      } catch (const std::exception& failure) {
        failures[i] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) {
    if (!failure.empty()) throw std::runtime_error(failure);
  }
}

// ---- more than an int can count; two ranks

constexpr std::size_t kLarge = (std::size_t{1} << 31) + 5;

void expect_bytes(const std::vector<std::uint8_t>& bytes, std::size_t begin, std::size_t end,
                  std::uint8_t value) {
  for (std::size_t i = begin; i < end; ++i) {
    if (bytes[i] == value) continue;
    throw std::runtime_error("byte " + std::to_string(i) + " is " + std::to_string(bytes[i]) +
                             " instead of " + std::to_string(value));
  }
}

void large(ProcessGroup& group) {
  const auto rank = static_cast<std::uint8_t>(group.rank());
  std::vector<std::uint8_t> x(kLarge, rank == 1 ? 7 : 0);
  group.broadcast(x, {.root = 1});
  expect_bytes(x, 0, kLarge, 7);
  group.all_reduce(x);
  expect_bytes(x, 0, kLarge, 14);
  // The second part begins behind 2^31: 2^31 + 4 bytes stay, one crosses.
  const std::vector<std::size_t> counts =
      rank == 0 ? std::vector<std::size_t>{kLarge - 1, 1} : std::vector<std::size_t>{1, kLarge - 1};
  x.front() = x.back() = static_cast<std::uint8_t>(100 + rank);
  std::vector<std::uint8_t> y(kLarge);
  group.all_to_allv(x, counts, y, counts);
  if (y.front() != 100 || y.back() != 101) throw std::runtime_error("the ends are wrong");
  group.sendrecv(x, y, {.to = 1 - rank, .from = 1 - rank});
  expect_bytes(y, kLarge - 1, kLarge, static_cast<std::uint8_t>(101 - rank));
  expect_bytes(y, 1, kLarge - 1, 14);
}

// ---- failures

std::string describe(const Error& error) {
  std::string text(name_of(error.code()));
  for (const int culprit : error.context().culprits) text += " " + std::to_string(culprit);
  return text + ": " + error.what();
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

/// Rank 1 dies; the others are about to call, or wait for it in the check.
void die_before(ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 1) {
    std::this_thread::sleep_for(500ms);  // the others have left the barrier
    die();
  }
  std::vector<float> x(1000);
  group.all_reduce(x);
}

/// Rank 1 dies in the middle of an all_reduce of 64 MiB in which all ranks are.
void die_inside(ProcessGroup& group) {
  std::vector<float> x(16 << 20);
  group.all_reduce(x);
  const auto begin = std::chrono::steady_clock::now();
  group.all_reduce(x);
  const auto half = (std::chrono::steady_clock::now() - begin) / 2;
  if (group.rank() == 1) {
    std::thread([half] {
      std::this_thread::sleep_for(half);
      die();
    }).detach();
  }
  for (;;) group.all_reduce(x);
}

/// Until the group has failed.
void await_failure(ProcessGroup& group) {
  const auto told = std::make_shared<std::promise<void>>();
  group.on_failure([told](const Error&) { told->set_value(); });
  told->get_future().wait_for(60s);
}

/// Rank 1 comes after the deadline of the others.
void late(ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 1) await_failure(group);  // until the others have given up
  std::vector<float> x(1000);
  group.all_reduce(x, {.timeout = 2s});
}

/// Rank 1 dies while groups are made and closed.
void die_making(ProcessGroup& world) {
  world.barrier();
  if (world.rank() == 1) {
    std::thread([] {
      std::this_thread::sleep_for(60ms);
      die();
    }).detach();
  }
  for (;;) world.new_group({0, 1}).close();
}

/// Rank 1 goes without the second all_reduce, its group by the destructor.
void leave_early(ProcessGroup& world) {
  all_reduce<float>(world, 1000);
  if (world.rank() == 1) {
    const ProcessGroup gone = std::move(world);
    return;
  }
  all_reduce<float>(world, 1000);
}

/// All leave in order; then rank 1 ends without MPI_Finalize.
void die_after_close(ProcessGroup& world) {
  const bool dies = world.rank() == 1;
  world.close();
  if (dies) die();
}

/// All leave in order; then rank 1 takes its time before it exits.
void exit_late(ProcessGroup& world) {
  const bool is_late = world.rank() == 1;
  world.close();
  if (is_late) std::this_thread::sleep_for(std::getenv("TUTTI_TEST_FULL") ? 60s : 5s);
}

/// Rank 0 calls from a thread that did not start MPI, when rank 1 is inside already.
void other_thread(ProcessGroup& group) {
  std::vector<float> x(10);
  if (group.rank() == 1) return group.all_reduce(x);
  std::exception_ptr failure;
  std::thread([&] {
    try {
      group.all_reduce(x);
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

void unequal_counts(ProcessGroup& group) {
  std::vector<float> x(group.rank() == 1 ? 999 : 1000);
  group.all_reduce(x);
}

void unequal_roots(ProcessGroup& group) {
  std::vector<float> x(1000);
  group.broadcast(x, {.root = group.rank()});
}

/// Rank 0 sends `sent` elements to rank 1, which awaits 1000.
void unequal_message(ProcessGroup& group, std::size_t sent) {
  std::vector<float> x(group.rank() == 0 ? sent : 1000);
  group.rank() == 0 ? group.send(x, 1) : void(group.recv(x, 0));
}

/// The user aborts while nobody is inside MPI: an error, and the process lives.
void user_abort(ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 0) group.abort("enough");
  float x = 1;
  for (;;) group.all_reduce(x);
}

/// Two ranks of one world as threads of this process, of a job of one process.
void threads(ProcessGroup&) {
  const auto store = make_memory_store();
  std::string failures[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto world = init_process_group(
            {.backend = "mpi", .rank = rank, .world_size = 2, .name = "threads", .store = store});
      } catch (const Error& error) {
        failures[rank] = describe(error);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  throw std::runtime_error(failures[0] + " | " + failures[1]);
}

/// The world goes by its destructor.
void leave(ProcessGroup& world) { const ProcessGroup gone = std::move(world); }

std::optional<ProcessGroup> g_world;

/// The world goes by its destructor after main, and after MPI_Finalize of a process that exits.
void outlive_main(ProcessGroup& world) { g_world.emplace(std::move(world)); }

/// The world goes by no destructor.
ProcessGroup& leak(ProcessGroup& world) { return *new ProcessGroup(std::move(world)); }

/// Rank 1 ends by exit(3) in the middle of the program.
void exit_open(ProcessGroup& world) {
  world.barrier();
  if (world.rank() == 1) std::exit(3);
  all_reduce<float>(world, 1000);
}

/// Rank 0 aborts and lives on until rank 1, which has returned from main with its world, has ended.
void abort_before_exit(ProcessGroup& world) {
  std::vector<int> pids(2);
  world.all_gather(static_cast<int>(::getpid()), pids);
  if (world.rank() == 1) {
    leak(world);
    return;
  }
  std::this_thread::sleep_for(500ms);
  world.abort("enough");
  for (int i = 0; i < 400 && ::kill(pids[1], 0) == 0; ++i) std::this_thread::sleep_for(50ms);
  expect(::kill(pids[1], 0) != 0, "the exit of rank 1 in 20 s");
}

/// A handler of rank 1 calls exit(code) when its thread is in an all_reduce, to which rank 0 never
/// comes.
template <int code>
void exit_in_handler(ProcessGroup& world) {
  world.barrier();
  std::vector<float> x(1000);
  if (world.rank() == 1) {
    ::signal(SIGALRM, [](int) { std::exit(code); });
    ::alarm(1);
  } else {
    await_failure(world);
  }
  world.all_reduce(x);
}

/// Rank 0 exits beside a thread that is inside MPI; rank 1 exits, too, and never comes there.
void exit_beside_a_thread(ProcessGroup& own) {
  ProcessGroup& world = leak(own);
  world.barrier();
  if (world.rank() == 0) {
    std::thread([&world] {
      std::vector<float> x(1000);
      world.all_reduce(x);
    }).detach();
    std::this_thread::sleep_for(500ms);
  }
}

std::vector<int> g_large;
std::vector<Work> g_works;
struct LooksAtTheEnd {
  ~LooksAtTheEnd() {
    if (g_large.empty() || g_large.back() >= 0) return;
    std::fputs("a message under way at exit has not come\n", stderr);
    ::_exit(4);
  }
} g_looks_at_the_end;

/// Holds up the thread that moves messages, as a callback.
std::promise<void> g_holding, g_released;
void hold_up(const Error*) {
  g_holding.set_value();
  g_released.get_future().wait_for(500ms);
}

/// A large message from rank 0 to rank 1 is under way: both have begun it, and rank 0 does not end
/// it before `callback` has returned, which runs in the thread that would.
void begin_large(ProcessGroup& group, void (*callback)(const Error*) = hold_up) {
  constexpr std::size_t kCount = 8 << 20;
  const int other = 1 - group.rank();
  static int got[2] = {};
  int x = 0;
  g_large.assign(kCount, group.rank() == 0 ? 7 : -1);
  if (group.rank() == 0) {
    g_works.push_back(group.send(g_large, other, async));
    group.recv(x, other, {.tag = 1});
    group.send(x, other, {.tag = 2});  // holds rank 1 up
    group.recv(x, other, {.tag = 3});  // rank 1 has its end, too
    g_works.push_back(group.recv(got[0], other, {.tag = 4}, async).then(callback));
    group.send(x, other, {.tag = 5});
    g_holding.get_future().wait();
    group.send(x, other, {.tag = 6});
    group.send(x, other, {.tag = 7});
    return;
  }
  g_works.push_back(group.recv(got[0], other, {.tag = 2}, async).then(hold_up));
  group.send(x, other, {.tag = 1});
  g_holding.get_future().wait();
  g_works.push_back(group.recv(g_large, other, async));
  Work later = group.recv(got[1], other, {.tag = 6}, async);
  group.send(x, other, {.tag = 3});
  group.recv(x, other, {.tag = 5});
  group.send(x, other, {.tag = 4});  // holds rank 0 up
  group.recv(x, other, {.tag = 7});
  g_released.set_value();
  later.wait();  // so the large one has begun
}

/// Rank 0 calls exit(0) in a callback meanwhile.
void exit_in_callback(ProcessGroup& group) {
  begin_large(group, [](const Error*) { std::exit(0); });
}

/// The program ends meanwhile.
void exit_pending(ProcessGroup& group) {
  begin_large(group);
  outlive_main(group);
}

#if defined(TUTTI_TEST_OWN_MPI)
void finalize(ProcessGroup&) { MPI_Finalize(); }

/// The program finalises MPI meanwhile.
void finalize_pending(ProcessGroup& group) {
  begin_large(group);
  MPI_Finalize();
  for (Work& work : g_works) work.wait();
  expect(g_large == std::vector<int>(g_large.size(), 7), "a message under way");
}
#endif

// ---- the job

const std::map<std::string, void (*)(ProcessGroup&)> kScenarios = {
    {"operations", operations},
    {"blocking", blocking},
    {"messages", messages},
    {"asynchronous", asynchronous},
    {"subgroups", subgroups},
    {"two_threads", two_threads},
    {"large", large},
    {"die_before", die_before},
    {"die_inside", die_inside},
    {"die_making", die_making},
    {"leave_early", leave_early},
    {"die_after_close", die_after_close},
    {"exit_late", exit_late},
    {"other_thread", other_thread},
    {"late", late},
    {"unequal_counts", unequal_counts},
    {"unequal_roots", unequal_roots},
    {"oversize_message", [](ProcessGroup& group) { unequal_message(group, 40'000); }},
    {"undersize_message", [](ProcessGroup& group) { unequal_message(group, 10); }},
    {"user_abort", user_abort},
    {"threads", threads},
    {"nothing", [](ProcessGroup&) {}},
    {"leave", leave},
    {"outlive_main", outlive_main},
    {"exit_pending", exit_pending},
    {"exit_open", exit_open},
    {"abort_before_exit", abort_before_exit},
    {"exit_0_in_handler", exit_in_handler<0>},
    {"exit_7_in_handler", exit_in_handler<7>},
    {"exit_in_callback", exit_in_callback},
    {"exit_beside_a_thread", exit_beside_a_thread},
#if defined(TUTTI_TEST_OWN_MPI)
    {"finalize", finalize},
    {"finalize_pending", finalize_pending},
#endif
};

/// After a failure: the survivors make another group, which works.
void go_on_without(ProcessGroup& world, const Error& failure) {
  std::vector<int> survivors;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    const auto& culprits = failure.context().culprits;
    if (std::find(culprits.begin(), culprits.end(), rank) == culprits.end()) {
      survivors.push_back(rank);
    }
  }
  ProcessGroup group = world.new_group(survivors);
  all_reduce<float>(group, 1000);
}

/// SCENARIO is a list: "blocking,again,messages" does "messages" in a second world.
void run_scenarios(const std::string& list, const std::function<void(const std::string&)>& record) {
  ProcessGroup world = init_process_group({.backend = "mpi"});
  const bool goes_on = list.ends_with(",go_on");
  try {
    for (std::size_t begin = 0; begin < list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      begin = end + 1;
      if (name == "go_on") continue;
      if (name == "again") {
        world.close();
        world = init_process_group({.backend = "mpi"});
        continue;
      }
      kScenarios.at(name)(world);
    }
    if (world.is_member()) world.close();
  } catch (const Error& failure) {
    if (!goes_on) throw;
    record(describe(failure));
    go_on_without(world, failure);
  }
}

int rank_of_environment() {
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"}) {
    if (const char* const value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

#if defined(TUTTI_TEST_OWN_MPI)
/// The program starts MPI itself: "init-LEVEL" and "finalized", before the "/".
void start_own_mpi(std::string& scenario) {
  const std::size_t slash = scenario.find('/');
  if (slash == std::string::npos) return;
  const std::map<std::string, int> levels = {{"single", MPI_THREAD_SINGLE},
                                             {"funneled", MPI_THREAD_FUNNELED},
                                             {"serialized", MPI_THREAD_SERIALIZED},
                                             {"multiple", MPI_THREAD_MULTIPLE},
                                             {"finalized", MPI_THREAD_MULTIPLE}};
  const std::string level = scenario.substr(0, slash);
  scenario = scenario.substr(slash + 1);
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, levels.at(level), &provided);
  if (provided != levels.at(level)) throw std::runtime_error("MPI gave another thread level");
  MPI_Barrier(MPI_COMM_WORLD);  // an object of Open MPI's library
  if (level == "finalized") MPI_Finalize();
}

/// What the program started it ends: MPI must still be there.
void end_own_mpi() {
  int is_initialized = 0, is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized != 0 && is_finalized == 0) MPI_Finalize();
}
#else
void start_own_mpi(std::string&) {}
void end_own_mpi() {}
#endif

int main(std::string scenario, const std::string& records) {
  const std::string path = records + "." + std::to_string(rank_of_environment());
  const auto record = [&](const std::string& text) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const std::string line = text + "\n";
    if (::write(file, line.data(), line.size()) < 0) std::perror("write");
    ::close(file);
  };
  try {
    start_own_mpi(scenario);
    run_scenarios(scenario, record);
    record("ok");
    end_own_mpi();
    return 0;
  } catch (const Error& failure) {
    record(describe(failure));
    return 3;
  } catch (const std::exception& failure) {
    record(std::string("failed: ") + failure.what());
    return 4;
  }
}

}  // namespace
}  // namespace tutti::mpi_test

int main(int argc, char** argv) { return argc == 3 ? tutti::mpi_test::main(argv[1], argv[2]) : 2; }
