// A program that spawns: `spawn_program START WAY [TIMEOUT_MS]` prints how that ended, in a line.
// Its ranks by exec come here again with the same words.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "open_descriptors.h"
#include "spawn/ways.h"
#include "tutti/tutti.h"

using namespace std::chrono_literals;
using tutti::Error;
using tutti::Spawned;
using tutti::Start;

namespace {

Start start_of(const std::string& word) {
  for (const Start start : {Start::automatic, Start::fork, Start::exec, Start::thread}) {
    if (word == tutti::name_of(start)) return start;
  }
  fmt::print(stderr, "no such start: {}\n", word);
  std::exit(2);
}

/// As if CUDA were in use: in a /dev that nobody else sees. 77: not allowed here.
void open_cuda_device() {
  const bool is_made = ::unshare(CLONE_NEWNS) == 0 &&
                       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       ::mount("none", "/dev", "tmpfs", 0, nullptr) == 0 &&
                       ::mknod("/dev/null", S_IFCHR | 0666, makedev(1, 3)) == 0 &&
                       ::open("/dev/nvidia-uvm", O_CREAT | O_RDWR | O_CLOEXEC, 0600) >= 0;
  if (!is_made) std::exit(77);
}

bool is_rank() { return std::getenv("TUTTI_SPAWN") != nullptr; }

int sum(int value) {
  auto world = tutti::init_process_group();
  world.all_reduce(value);
  return value;
}

/// A world of its own for each: sums of what its ranks give.
void expect_sum(int rank, int scale, int ranks) {
  const int expected = scale * ranks * (ranks - 1) / 2;
  if (const int got = sum(scale * rank); got != expected) {
    throw Error(tutti::ErrorCode::kInternal, fmt::format("{} instead of {}", got, expected));
  }
}

/// Several spawns at one call site, and several at once.
void spawn_many(Start start) {
  for (int i = 1; i <= 3; ++i) {
    tutti::spawn(2, [i](int rank) { expect_sum(rank, i, 2); }, {.start = start}).join(20s);
  }
  std::vector<Spawned> all;
  for (int i = 1; i <= 3; ++i) {
    all.push_back(tutti::spawn(i + 1, [i](int rank) { expect_sum(rank, 10 * i, i + 1); },
                               {.start = i == 1                   ? start
                                         : start == Start::thread ? start
                                                                  : Start::exec}));
  }
  for (Spawned& each : all) each.join(20s);
}

/// What a rank finds in its environment, of rank 1.
void print_environment(Start start) {
  tutti::spawn(2,
               [](int rank) {
                 if (rank == 0) return;
                 for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                          "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TUTTI_INIT_METHOD",
                                          "TUTTI_WORLD_SIZE", "OMP_WAIT_POLICY", "MY_OWN"}) {
                   const char* value = std::getenv(name);
                   fmt::print("{}={} ", name, value == nullptr ? "-" : value);
                 }
                 char byte = 0;
                 fmt::print("stdin={}\n", ::read(STDIN_FILENO, &byte, 1));
               },
               {.start = start})
      .join(20s);
}

/// Each of them once, though nobody flushes what C++ keeps in buffers of its own.
void print_unflushed(Start start) {
  std::ios::sync_with_stdio(false);
  std::cout << "main ";
  std::clog << "log ";
  tutti::spawn(2,
               [](int) {
                 std::cout << "rank ";
                 std::clog << "its log ";
                 std::wcout << L"wide ";
               },
               {.start = start})
      .join(20s);
  std::cout << "end\n";
}

/// A rank that saves when it is asked to end.
void save_when_asked(int rank) {
  static std::atomic<bool> asked = false;
  tutti::on_terminate([] { asked = true; });
  fmt::print("ready {}\n", rank);
  std::fflush(stdout);
  while (!asked) std::this_thread::sleep_for(1ms);
  fmt::print("saved {}\n", rank);
}

/// main hears the signals itself, and ends its ranks, which hear nothing of main's.
void end_when_asked(Start start) {
  std::atomic<bool> asked = false;
  tutti::on_terminate([&] { asked = true; });
  Spawned ranks = tutti::spawn(2,
                               [](int rank) {
                                 fmt::print("ready {}\n", rank);
                                 std::fflush(stdout);
                                 for (;;) ::pause();
                               },
                               {.start = start, .grace = 60s});
  while (!asked) std::this_thread::sleep_for(1ms);
  ranks.end();
  ranks.join();
}

/// Its guard ends before it makes a keeper. Tells whether this process got the SIGCONT of a keeper.
void fail_without_keeper(Start start) {
  static volatile sig_atomic_t continued = 0;
  ::signal(SIGCONT, [](int) { continued = 1; });
  ::pthread_atfork(nullptr, nullptr, [] { ::_exit(1); });
  try {
    tutti::spawn(2, [](int) {}, {.start = start}).join(20s);
  } catch (const Error& error) {
    fmt::print("{}, continued {}: {}\n", name_of(error.code()), int{continued}, error.what());
  }
}

/// Ranks that hear nothing, of a program that can open `left` more descriptors.
void spawn_with_few_descriptors(Start start, int left) {
  const auto limit = static_cast<rlim_t>(tutti::open_descriptors() - 1 + left);
  const rlimit few{limit, limit};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) std::exit(2);
  tutti::spawn(2,
               [](int) {
                 ::signal(SIGTERM, SIG_IGN);
                 for (;;) ::pause();
               },
               {.start = start, .grace = 200ms})
      .join(300ms);
}

int run(Start start, const std::string& way, std::chrono::milliseconds timeout) {
  // On the way of a rank by exec to the call.
  if (is_rank() && start == Start::exec) {
    if (way == "never") return 3;
    if (way == "never well") return 0;
    if (way == "killed early") std::raise(SIGKILL);
    if (way == "late") std::this_thread::sleep_for(60s);
    if (way == "early world") tutti::init_process_group();
  }
  if (way == "many") {
    spawn_many(start);
    fmt::print("well\n");
    return 0;
  }
  if (way == "environment") {
    print_environment(start);
    return 0;
  }
  if (way == "unflushed") {
    print_unflushed(start);
    return 0;
  }
  if (way == "name") {
    tutti::spawn(1,
                 [](int) {
                   std::array<char, 16> name{};
                   ::prctl(PR_GET_NAME, name.data());
                   fmt::print("{}\n", name.data());
                 },
                 {.start = start})
        .join(20s);
    return 0;
  }
  if (way == "late") {
    tutti::spawn(2, [](int) {}, {.start = start, .grace = 200ms, .start_timeout = 500ms}).join();
    return 0;
  }
  if (way == "never" || way == "never well" || way == "early world" || way == "killed early") {
    tutti::spawn(2, [](int) {}, {.start = start}).join(20s);
    return 0;
  }
  if (way == "other count") {
    tutti::spawn(is_rank() ? 3 : 2, [](int) {}, {.start = start}).join(20s);
    return 0;
  }
  if (way == "saves") {
    tutti::spawn(2, save_when_asked, {.start = start}).join();
    return 0;
  }
  if (way == "deaf") {
    tutti::spawn(2,
                 [](int) {
                   ::signal(SIGTERM, SIG_IGN);
                   fmt::print("ready\n");
                   std::fflush(stdout);
                   for (;;) ::pause();
                 },
                 {.start = start, .grace = 60s})
        .join();
    return 0;
  }
  if (way.starts_with("descriptors ")) {
    spawn_with_few_descriptors(start, std::stoi(way.substr(way.find(' '))));
    return 0;
  }
  if (way == "threads") {  // of OpenMP, in rank 0 of two
    tutti::spawn(2,
                 [](int rank) {
                   if (rank == 0) fmt::print("threads {}\n", std::getenv("OMP_NUM_THREADS"));
                 },
                 {.start = start})
        .join(20s);
    return 0;
  }
  if (way == "no keeper") {
    fail_without_keeper(start);
    return 0;
  }
  if (way == "main hears") {
    end_when_asked(start);
    return 0;
  }
  if (way == "other function") {  // of one line, as of `c ? spawn(2, a) : spawn(2, b)`
    const tutti::Where where = tutti::Where::current();
    const auto wanted = [](int) { fmt::print("the wanted one\n"); };
    const auto other = [](int) { fmt::print("another one\n"); };
    (is_rank() ? tutti::spawn(2, other, {.start = start}, where)
               : tutti::spawn(2, wanted, {.start = start}, where))
        .join(20s);
    return 0;
  }
  if (way == "thread ends") {  // that called spawn, while its ranks run
    Spawned ranks;
    std::thread([&] {
      ranks = tutti::spawn(2, [](int) { std::this_thread::sleep_for(300ms); }, {.start = start});
    }).join();
    ranks.join(20s);
    fmt::print("well\n");
    return 0;
  }
  if (way == "destroyed") {
    {
      const Spawned ranks = tutti::spawn(2, [](int) { std::this_thread::sleep_for(60s); },
                                         {.start = start, .grace = 200ms});
    }
    fmt::print("gone\n");
    return 0;
  }
  // Who does not hear SIGTERM is killed after it; the others may be slow.
  const auto grace = std::chrono::milliseconds(way.starts_with("stubborn") ? 300 : 5000);
  fmt::print("{}\n", tutti::ways::line_of(tutti::ways::attempt(start, way, timeout, grace)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  const auto timeout = std::chrono::milliseconds(argc > 3 ? std::atoi(argv[3]) : 20'000);
  if (std::getenv("TUTTI_TEST_IGNORE_CHILDREN") != nullptr) ::signal(SIGCHLD, SIG_IGN);
  if (std::getenv("TUTTI_TEST_CUDA") != nullptr && !is_rank()) open_cuda_device();
  // A process with threads: those of OpenMP wait for ever.
  if (std::getenv("TUTTI_TEST_THREAD") != nullptr) {
    std::thread([] { std::this_thread::sleep_for(3600s); }).detach();
  }
  const std::string way = argv[2];
  // As strtok and the like do.
  if (std::getenv("TUTTI_TEST_REWRITES") != nullptr) std::memset(argv[2], 'x', way.size());
  if (std::getenv("TUTTI_TEST_MOVES") != nullptr && ::chdir("/") != 0) return 3;
  if (std::getenv("TUTTI_TEST_REMOVES") != nullptr && !is_rank() && ::unlink(argv[0]) != 0)
    return 3;
  return run(start_of(argv[1]), way, timeout);
} catch (const Error& error) {
  std::vector<int> culprits = error.context().culprits;
  fmt::print("{} culprits {}: {}\n", name_of(error.code()), fmt::join(culprits, " "), error.what());
  return 1;
}
