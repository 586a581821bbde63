// `tutti run` where the system gives it little.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "e2e/launcher_fixture.h"

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

}  // namespace
}  // namespace tutti::e2e
