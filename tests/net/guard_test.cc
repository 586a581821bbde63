// What a guard lets go of.
#include "net/guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::net {
namespace {

constexpr int kMost = 64;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

bool is_dev_null(int fd) {
  struct stat found {
  }, wanted{};
  return ::fstat(fd, &found) == 0 && ::stat("/dev/null", &wanted) == 0 &&
         found.st_rdev == wanted.st_rdev;
}

/// In a process without room for another descriptor.
int let_go_of_a_full_table() {
  const rlimit few{kMost, kMost};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
  ::close(STDIN_FILENO);
  while (::dup(STDOUT_FILENO) >= 0) {
  }
  if (!is_open(kMost - 1)) return 2;
  let_go_of_all_but({kMost - 1, 5, 6, 40});
  for (int fd = STDERR_FILENO + 1; fd < kMost; ++fd) {
    const bool is_needed = fd == 5 || fd == 6 || fd == 40 || fd == kMost - 1;
    if (is_open(fd) != is_needed) return 100 + fd;
  }
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (!is_dev_null(fd)) return 10 + fd;
  }
  return 0;
}

TEST(Guard, LetsGoOfAllButWhatItNeedsAlsoWithoutRoomForAnother) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(let_go_of_a_full_table());
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti::net
