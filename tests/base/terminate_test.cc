// Hearing that the job is to end.
#include "tutti/terminate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "../forks.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

/// Whether `is_so` becomes true within 10 s.
template <class Condition>
bool comes(const Condition& is_so) {
  for (int i = 0; i < 10'000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

/// How a child ends in which `run` runs.
template <class Run>
int status_of_child(const Run& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    run();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

class Terminate : public testing::Test {
 protected:
  ~Terminate() override { on_terminate({}); }
};

TEST_F(Terminate, IsHeardInAThreadOfItsOwn) {
  std::atomic<int> heard = 0;
  std::atomic<std::thread::id> by;
  on_terminate([&] {
    by = std::this_thread::get_id();
    ++heard;
  });
  std::raise(SIGTERM);
  ASSERT_TRUE(comes([&] { return heard == 1; }));
  EXPECT_NE(by.load(), std::this_thread::get_id());
  std::raise(SIGTERM);
  EXPECT_TRUE(comes([&] { return heard == 2; })) << "as often as it is asked";
  std::raise(SIGINT);
  EXPECT_TRUE(comes([&] { return heard == 3; }));
}

TEST_F(Terminate, TheLastCallbackHears) {
  std::atomic<int> first = 0, second = 0;
  on_terminate([&] { ++first; });
  on_terminate([&] { ++second; });
  std::raise(SIGTERM);
  EXPECT_TRUE(comes([&] { return second == 1; }));
  EXPECT_EQ(first, 0);
}

TEST_F(Terminate, OneThatThrowsIsCalledAgain) {
  std::atomic<int> heard = 0;
  on_terminate([&] {
    ++heard;
    throw std::runtime_error("made up");
  });
  for (int times = 1; times <= 2; ++times) {
    std::raise(SIGTERM);
    ASSERT_TRUE(comes([&] { return heard == times; }));
  }
}

TEST_F(Terminate, ACallbackMayTakeItselfBack) {
  std::atomic<int> heard = 0;
  on_terminate([&] {
    on_terminate([&] { heard += 10; });
    ++heard;
  });
  std::raise(SIGTERM);
  ASSERT_TRUE(comes([&] { return heard == 1; }));
  std::raise(SIGTERM);
  EXPECT_TRUE(comes([&] { return heard == 11; }));
}

TEST_F(Terminate, NoneRunsOnceItsPlaceIsTaken) {
  std::atomic<bool> is_running = false, has_ended = false;
  on_terminate([&] {
    is_running = true;
    std::this_thread::sleep_for(50ms);
    has_ended = true;
  });
  std::raise(SIGTERM);
  ASSERT_TRUE(comes([&] { return is_running.load(); }));
  on_terminate([] {});
  EXPECT_TRUE(has_ended);
}

TEST_F(Terminate, ASecondCtrlCEndsTheProcess) {
  const int status = status_of_child([] {
    on_terminate([] {});
    std::raise(SIGINT);
    std::raise(SIGINT);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST_F(Terminate, WithoutACallbackTheSystemEndsTheProcess) {
  const int status = status_of_child([] {
    on_terminate([] {});
    on_terminate({});
    std::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

/// What `run` says in a child that is forked while a callback is set, and may be running.
template <class Run>
int status_of_forked_child(const Run& run) {
  std::atomic<bool> is_running = false, may_end = false;
  on_terminate([&] {
    is_running = true;
    comes([&] { return may_end.load(); });
  });
  std::raise(SIGTERM);
  EXPECT_TRUE(comes([&] { return is_running.load(); }));
  const int status = status_of_child([&] {
    ::alarm(20);  // should it be deaf, or wait for a lock
    run();
  });
  may_end = true;
  on_terminate({});
  return status;
}

TEST_F(Terminate, AForkedChildIsEnded) {
  if (kNoForks) GTEST_SKIP() << "forks beside a thread";
  for (const int number : {SIGTERM, SIGINT}) {
    const int status = status_of_forked_child([&] {
      std::raise(number);
      ::pause();
    });
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), number);
  }
}

TEST_F(Terminate, AForkedChildHearsByACallbackOfItsOwn) {
  if (kNoForks) GTEST_SKIP() << "forks beside a thread";
  const int status = status_of_forked_child([] {
    std::atomic<int> heard = 0;
    on_terminate([&] { ++heard; });
    std::raise(SIGTERM);
    if (!comes([&] { return heard == 1; })) ::_exit(1);
    std::this_thread::sleep_for(20ms);
    if (heard != 1) ::_exit(2);  // what its parent was asked is not the child's
    on_terminate({});
    std::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

}  // namespace
}  // namespace tutti
