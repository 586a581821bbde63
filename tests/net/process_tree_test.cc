#include "net/process_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

#include "net/end_order.h"
#include "net/process_info.h"

namespace tutti::net {
namespace {

/// A child that forks a grandchild in a session of its own; both pause. Writes the grandchild's
/// pid.
struct Family {
  pid_t child = -1, grandchild = -1;
  Family() {
    int pipe_ends[2];
    EXPECT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    child = ::fork();
    if (child == 0) {
      const pid_t below = ::fork();
      if (below == 0) {
        ::setsid();
        const pid_t self = ::getpid();
        (void)!::write(pipe_ends[1], &self, sizeof self);
        for (;;) ::pause();
      }
      for (;;) ::pause();
    }
    EXPECT_EQ(::read(pipe_ends[0], &grandchild, sizeof grandchild),
              static_cast<ssize_t>(sizeof grandchild));
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
  }
};

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

class ProcessTree : public ::testing::Test {
 protected:
  void SetUp() override { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  void TearDown() override {
    kill_everything_below();
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
};

TEST_F(ProcessTree, SeesSessionsOfTheirOwn) {
  const Family family;
  const std::vector<pid_t> found = descendants_of(::getpid());
  EXPECT_TRUE(contains(found, family.child));
  EXPECT_TRUE(contains(found, family.grandchild));
  EXPECT_TRUE(descends_from(family.grandchild, ::getpid()));
  EXPECT_FALSE(descends_from(::getppid(), ::getpid()));
}

TEST_F(ProcessTree, OrphansBecomeOurs) {
  const Family family;
  ASSERT_EQ(::kill(family.child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(family.child, nullptr, 0), family.child);
  EXPECT_TRUE(contains(descendants_of(::getpid()), family.grandchild));
}

TEST_F(ProcessTree, SignalsNobodyElse) {
  const Family mine, other;
  // The grandchild of one family does not descend from the child of the other.
  EXPECT_FALSE(signal_descendant(other.grandchild, mine.child, SIGKILL));
  EXPECT_EQ(::kill(other.grandchild, 0), 0);
  EXPECT_FALSE(signal_descendant(1, ::getpid(), 0));
  EXPECT_TRUE(signal_descendant(mine.grandchild, mine.child, SIGKILL));
}

TEST_F(ProcessTree, KillsEverythingBelow) {
  const Family first, second;
  kill_everything_below();
  EXPECT_EQ(errno, ECHILD);
  EXPECT_TRUE(descendants_of(::getpid()).empty());
}

/// What `body` says as the first process of a pid namespace that sees /proc from outside. 77: not
/// allowed here.
template <typename Body>
int in_a_pid_namespace(const Body& body) {
  const auto code_of = [](pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  };
  const pid_t maker = ::fork();
  if (maker > 0) return code_of(maker);
  if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(77);
  const pid_t first = ::fork();
  if (first > 0) ::_exit(code_of(first));
  ::_exit(first == 0 ? body() : 77);
}

TEST_F(ProcessTree, TellsNothingByTheProcOfAnotherNamespace) {
  const Family family;
  const pid_t self = ::getpid();
  const int answers = in_a_pid_namespace([&] {
    const bool descends = descends_from(family.grandchild, self);
    return (descends ? 1 : 0) + (descendants_of(self).empty() ? 0 : 2) + (has_own_proc() ? 4 : 0);
  });
  if (answers == 77) GTEST_SKIP() << "no pid namespaces here";
  EXPECT_EQ(answers, 0);
}

/// A process in the group of a child that has ended and been reaped.
pid_t leave_in_its_group() {
  const pid_t leader = ::fork();
  if (leader == 0) {
    ::setpgid(0, 0);
    if (::fork() > 0) ::_exit(0);
    for (;;) ::pause();
  }
  ::waitpid(leader, nullptr, 0);
  return leader;
}

TEST_F(ProcessTree, KillsWhatIsKnownWhereProcShowsNobody) {
  const int code = in_a_pid_namespace([] {
    const Family family;
    const pid_t group = leave_in_its_group();
    if (::waitid(P_PGID, static_cast<id_t>(group), nullptr, WEXITED | WNOHANG | WNOWAIT) != 0)
      return 1;
    kill_everything_below({family.child, group});
    if (::kill(family.child, 0) == 0) return 2;
    if (::kill(-group, 0) == 0) return 3;
    return ::kill(family.grandchild, 0) == 0 ? 0 : 4;  // nobody has named it
  });
  if (code == 77) GTEST_SKIP() << "no pid namespaces here";
  EXPECT_EQ(code, 0);
}

TEST_F(ProcessTree, KillsWhatIsKnownWithoutADescriptorToLookWith) {
  const pid_t killer = ::fork();
  if (killer == 0) {
    ::alarm(20);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const Family family;
    const pid_t group = leave_in_its_group();
    const rlimit none{3, 3};  // beyond the standard ones
    if (::setrlimit(RLIMIT_NOFILE, &none) != 0) ::_exit(1);
    kill_everything_below({family.child, group});
    if (::kill(family.child, 0) == 0) ::_exit(2);
    ::_exit(::kill(-group, 0) == 0 ? 3 : 0);
  }
  int status = 0;
  ::waitpid(killer, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(EndOrder, TheFirstToEndComesFirstWhenTheParentLooksLate) {
  EndOrder order;
  std::vector<pid_t> children;
  for (int i = 0; i < 100; ++i) {
    children.push_back(::fork());
    if (children.back() == 0)
      for (;;) ::pause();
    order.watch(children.back());
  }
  EXPECT_TRUE(order.ended().empty());
  std::vector<pid_t> expected;
  for (std::size_t i = 0; i < children.size(); ++i)  // 99, 0, 98, 1, ...
    expected.push_back(children[i % 2 == 0 ? children.size() - 1 - i / 2 : i / 2]);
  for (const pid_t child : expected) {
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  }
  EXPECT_EQ(order.ended(), expected);
  EXPECT_TRUE(order.ended().empty());
  for (const pid_t child : children) EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), child);
}

}  // namespace
}  // namespace tutti::net
