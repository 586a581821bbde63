// What a process has left when its last world is gone, what a forked child may do, what it costs.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <set>
#include <string>

#include "control/board/line.h"
#include "control/thread_ranks.h"
#include "forks.h"
#include "op_patience.h"
#include "tutti/error.h"
#include "tutti/init.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

std::set<std::string> entries(const char* path) {
  std::set<std::string> names;
  DIR* directory = opendir(path);
  const std::string own = std::to_string(dirfd(directory));
  while (const dirent* entry = readdir(directory))
    if (own != entry->d_name) names.insert(entry->d_name);
  closedir(directory);
  return names;
}

int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:") != std::string::npos) ++count;
  return count;
}

int signals_blocked_in(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:"))
      return static_cast<int>(std::count(line.begin(), line.end(), 'f'));
  return -1;
}

std::unique_ptr<Host> join_alone() {
  return Host::join({.store = nullptr, .board_fd = -1, .rank = 0, .world_size = 1, .host_id = {}});
}

TEST(Manners, NothingIsLeftAfterTheLastWorld) {
  const auto threads = entries("/proc/self/task");
  on_thread_ranks(2, [](Host&, Membership&) {});  // whatever is made once and kept
  const auto descriptors = entries("/proc/self/fd");
  const int mappings = shared_mappings();
  for (int round = 0; round < 5; ++round)
    on_thread_ranks(3, [&](Host&, Membership& world) {
      const Request request = collective(Op::barrier, 1);
      world.enter(request);
      if (round % 2 == 0) return world.fail({ErrorCode::kAborted, "enough", {}, {}});
      world.leave(request);
      world.close(1, request.chain, Deadline::after(10s));
    });
  // A thread that was joined may be listed for a moment.
  const auto end = Deadline::Clock::now() + 20s;
  while (entries("/proc/self/task") != threads && Deadline::Clock::now() < end)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(shared_mappings(), mappings);
}

TEST(Manners, OneControlThreadPerProcessAndItTakesNoSignals) {
  const auto before = entries("/proc/self/task");
  const auto one = join_alone();
  const auto two = join_alone();
  std::set<std::string> made;
  const auto now = entries("/proc/self/task");
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                      std::inserter(made, made.end()));
  ASSERT_EQ(made.size(), 1u);
  EXPECT_GE(signals_blocked_in(*made.begin()), 12) << "nearly all of 16 hexadecimal digits";
}

TEST(Manners, ACallbackMayDestroyTheLastWorld) {
  auto host = join_alone();
  auto world = host->make_membership({kWorld, "world", world_ranks({0}), 0});
  std::atomic<bool> gone{false};
  world->on_failure([&](const Error&) {
    world.reset();
    host.reset();
    gone.store(true);
  });
  world->fail({ErrorCode::kAborted, "enough", {}, {}});
  while (!gone.load()) std::this_thread::yield();
  EXPECT_NE(join_alone(), nullptr);
}

TEST(Manners, ARankThatIsPresentIsRefused) {
  const net::Fd memory = Board::make(1);
  HostOptions options;
  options.board_fd = memory.get();
  const auto host = Host::join(options);
  try {
    Host::join(options);
    ADD_FAILURE() << "joined twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(
        std::string(error.what())
            .find("rank 0 of this world is present already (pid " + std::to_string(getpid()) + ")"),
        std::string::npos)
        << error.what();
  }
  options.rank = 1;
  EXPECT_THROW(Host::join(options), Error);
  options.world_size = 2;
  EXPECT_THROW(Host::join(options), Error) << "the board is for one";
}

TEST(Manners, WhoIsMissingIsSaid) {
  const net::Fd memory = Board::make(3);
  HostOptions options;
  options.board_fd = memory.get();
  options.world_size = 3;
  options.timeout = 50ms;
  try {
    Host::join(options);
    ADD_FAILURE() << "joined";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_NE(std::string(error.what())
                  .find("ranks 1-2 did not come to the host's status board within 0.05 s"),
              std::string::npos)
        << error.what();
  }
}

/// Runs in a forked child: 0 if everything there is refused clearly.
int misuse(Host& host, Membership& world) {
  const auto refuses = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument &&
             std::string(error.what()).find("forked child") != std::string::npos;
    }
    return false;
  };
  const auto store = make_memory_store();
  if (!refuses([&] { init_process_group({.rank = 0, .world_size = 2, .store = store}); })) return 7;
  if (store->num_keys() != 0) return 8;  // it would claim its parent's rank
  if (!refuses([] { join_alone(); })) return 1;
  if (!refuses([&] { host.make_membership({3, "x", world_ranks({0}), 0}); })) return 2;
  if (!refuses([&] { world.close(0, 0, Deadline::after(1s)); })) return 3;
  world.give_up();
  const Request request = collective(Op::barrier, 1);
  OpPatience patience(world, request, -1);
  if (wait(world.waiter(), patience, [] { return false; }) != WaitResult::aborted) return 4;
  if (!refuses([&] { world.throw_cause(request); })) return 5;
  return 0;
}

TEST(Manners, AForkedChildIsRefused) {
  auto host = join_alone();
  auto world = host->make_membership({kWorld, "world", world_ranks({0}), 0});
  int status = -1;
  for (int tries = 0; tries < 5; ++tries) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // the control thread may have held a lock of AddressSanitizer's allocator
      int result = misuse(*host, *world);
      world.reset();
      host.reset();
      _exit(result);
    }
    waitpid(child, &status, 0);
    if (!kKeepsFreed || !WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM) break;
  }
  EXPECT_EQ(status, 0) << "step " << WEXITSTATUS(status);
  EXPECT_FALSE(world->cause()) << "the parent is not concerned";
  EXPECT_EQ(host->board().state_of(SlotIndex(0)), RankState::running);
  const Line* const line = host->board().find_line(SlotIndex(0), kWorld);
  ASSERT_NE(line, nullptr);
  EXPECT_FALSE(has_left(line->state.load())) << "the child's close is not its parent's";
  world->close(0, 0, Deadline::after(1s));
}

TEST(Manners, AChildForkedAfterTheLastWorldIsFree) {
  join_alone().reset();
  const pid_t child = fork();
  if (child == 0) _exit(join_alone() != nullptr ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Manners, AThreadThatCannotBeMadeIsAnErrorThatNamesTheLimit) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // it was a hang
    const rlimit none{1, 1};
    // Root is not limited; anybody else is, here by having one process already.
    if (setrlimit(RLIMIT_NPROC, &none) != 0 ||
        (getuid() == 0 && setresuid(12345, 12345, 12345) != 0))
      _exit(77);
    try {
      join_alone();
      _exit(1);
    } catch (const Error& error) {
      const std::string text = error.what();
      std::printf("%s\n", text.c_str());
      const bool is_right =
          error.code() == ErrorCode::kSystem &&
          text.starts_with(
              "cannot start the control thread: Resource temporarily unavailable "
              "(errno 11); this user may have 1 processes and threads (`ulimit -u`)") &&
          text.ends_with(": raise the limit, or start fewer ranks and threads");
      _exit(is_right ? 0 : 2);
    }
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "not allowed here";
  EXPECT_EQ(status, 0);
}

TEST(Manners, WithoutRobustMutexesItIsSaidThatDeathsAreFoundLate) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_set_robust_list, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(steps), const_cast<sock_filter*>(steps)};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 ||
        syscall(SYS_set_robust_list, nullptr, 24) == 0)
      _exit(77);
    std::thread([] { join_alone(); }).join();  // this thread's list is known to the kernel
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[1024];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "not allowed here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(said,
            "tutti: this kernel or sandbox refuses set_robust_list: that a rank has died will be "
            "found late, when a timeout ends. Allow that system call (seccomp), or set a short "
            "TUTTI_TIMEOUT\n");
}

/// 20 ns on an idle machine (bench micro). What can be seen on a busy one: it makes no system call.
TEST(Manners, PublishingAnOperationMakesNoSystemCall) {
  const auto host = join_alone();
  const auto world = host->make_membership({kWorld, "world", world_ranks({0}), 0});
  Request request = collective(Op::all_reduce, 1);
  const auto run_strictly = [&](bool makes_a_call) {
    const pid_t child = fork();
    if (child == 0) {
      // From here on any call but read, write and exit kills it.
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
      for (int i = 0; i < 1000; ++i) {
        world->enter(request);
        world->leave(request);
        ++request.seq;
      }
      if (makes_a_call) ::syscall(SYS_getppid);
      ::syscall(SYS_exit, 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  };
  EXPECT_EQ(run_strictly(false), 0);
  const int killed = run_strictly(true);
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL) << "else this sees nothing";
}

}  // namespace
}  // namespace tutti::control
