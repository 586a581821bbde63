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

}  // namespace
}  // namespace tutti
