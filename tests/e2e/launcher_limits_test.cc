// `tutti run` where the system gives it little: descriptors, processes.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "e2e/launcher_fixture.h"
#include "ranks.h"

namespace tutti::e2e {
namespace {

constexpr int kRanks = 20;

/// Twenty ranks under a limit of 64 descriptors, which they print. `kind`: soft, or both.
LaunchedJob::Command job_under_limit(const char* kind) {
  return {{"sh", "-c",
           fmt::format("ulimit {} 64; exec {} run -n {} sh -c 'ulimit -Sn'", kind, TUTTI_COMMAND,
                       kRanks)}};
}

TEST_F(Launcher, ASoftLimitOfDescriptorsIsRaisedForTheLauncherAlone) {
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 512) GTEST_SKIP() << "the hard limit is as low";
  LaunchedJob job(job_under_limit("-Sn"));
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  const std::vector<std::string> lines = lines_of(job.out());
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(kRanks));
  EXPECT_TRUE(std::all_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.ends_with("] 64");
  })) << job.out();
}

TEST_F(Launcher, AHardLimitOfDescriptorsIsSaidInFull) {
  LaunchedJob job(job_under_limit("-n"));
  EXPECT_EQ(job.wait_exit(), 1);
  EXPECT_TRUE(has(job.err(),
                  "tutti run: a job of 20 ranks on this host needs 128 descriptors more, "
                  "and of 64 that this process may open "))
      << job.err();
  EXPECT_EQ(lines_of(job.err()).size(), 1u) << job.err();
}

/// Threads get a stack of that size, too; that of the store reads what ranks send.
TEST_F(Launcher, ASmallStackIsEnoughForTheLauncher) {
  if (kNoForks || kKeepsFreed) GTEST_SKIP() << "sanitizers need more";
  LaunchedJob job(LaunchedJob::Command{
      {"sh", "-c",
       fmt::format("ulimit -Ss 64 && exec {} run -n 2 sh -c 'ulimit -Ss $(ulimit -Hs) && exec {} "
                   "give-up - 1'",
                   TUTTI_COMMAND, kRank)}});
  EXPECT_EQ(job.wait_exit(), 6) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1 on ")) << job.err();
}

TEST_F(Launcher, AMissingDevNullIsNamed) {
  LaunchedJob job(LaunchedJob::Command{
      {"unshare", "-m", "sh", "-c",
       fmt::format("mount -t tmpfs none /dev || exit 77; exec {} run -n 2 true", TUTTI_COMMAND)}});
  const int code = job.wait_exit();
  if (code == 77 || has(job.err(), "unshare")) GTEST_SKIP() << "no right to hide it";
  EXPECT_EQ(code, 1);
  EXPECT_EQ(job.err(), "tutti run: cannot open /dev/null: No such file or directory (errno 2)\n");
}

/// `unshare --pid` without `--fork`: the first child may be made, and no thread; then no child.
TEST_F(Launcher, APidNamespaceForChildrenAloneIsNamed) {
  if (kNoForks || kNeedsProc) GTEST_SKIP() << "the sanitizer needs a thread";
  for (const auto& [first, what] :
       {std::pair{"", "cannot start the thread that serves the store: Invalid argument"},
        {"/bin/true; ", "cannot make the process that guards the ranks: Cannot allocate memory"}}) {
    LaunchedJob job(
        LaunchedJob::Command{{"unshare", "-Urp", "sh", "-c",
                              fmt::format("{}exec $0 run -n 2 true", first), TUTTI_COMMAND}});
    const int code = job.wait_exit();
    if (has(job.err(), "unshare:")) GTEST_SKIP() << "no pid namespaces here";
    EXPECT_EQ(code, 1);
    EXPECT_TRUE(has(job.err(), what)) << job.err();
    EXPECT_TRUE(has(job.err(),
                    "another pid namespace (unshare --pid without --fork): it can have "
                    "no threads, and no processes once the first of these has ended; "
                    "use unshare --pid --fork --mount-proc\n"))
        << job.err();
    EXPECT_EQ(lines_of(job.err()).size(), 1u) << job.err();
  }
}

/// A job of a user who has so many processes and threads beside the caller, and no other. Whether
/// the keeper or a thread of the launcher gets the last one is open.
[[noreturn]] void run_with_processes(rlim_t processes) {
  const auto user = static_cast<uid_t>(1'000'000 + ::getpid());
  const rlimit limit{processes + 1, processes + 1};
  if (::setgid(user) != 0 || ::setuid(user) != 0 || ::chdir("/") != 0 ||
      ::access(TUTTI_COMMAND, X_OK) != 0 || ::setrlimit(RLIMIT_NPROC, &limit) != 0) {
    ::_exit(77);
  }
  {
    LaunchedJob job(run(2, {"true"}));
    EXPECT_NE(job.wait_exit(), 0) << processes;
    EXPECT_TRUE(has(job.err(), "ulimit -u")) << processes << ": " << job.err();
    EXPECT_FALSE(has(job.err(), "pid -1")) << processes << ": " << job.err();
  }
  std::fflush(stdout);
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST_F(Launcher, ProcessesThatCannotBeMadeAreSaidToBe) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (const rlim_t processes : {1, 2, 3, 3, 3, 4}) {
    const pid_t pid = ::fork();
    if (pid == 0) run_with_processes(processes);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no other user here who may run the command";
    EXPECT_EQ(WEXITSTATUS(status), 0) << processes;
  }
}

}  // namespace
}  // namespace tutti::e2e
