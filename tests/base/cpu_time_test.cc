// The time of a thread's own work.
#include "base/cpu_time.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tutti {
namespace {

using namespace std::chrono_literals;

TEST(CpuTime, SleepIsNoWork) {
  const auto before = thread_cpu_time();
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(thread_cpu_time() - before, 100ms);
}

TEST(CpuTime, WorkIsOfTheThreadThatDoesIt) {
  const auto before = thread_cpu_time();
  std::thread([] {
    const auto begin = thread_cpu_time();
    while (thread_cpu_time() - begin < 50ms) {
    }
  }).join();
  EXPECT_LT(thread_cpu_time() - before, 40ms);
}

}  // namespace
}  // namespace tutti
