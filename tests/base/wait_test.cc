// The wait function, across threads and across processes.
#include "base/wait.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "base/cores.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

/// Keeps waiting for ever, counting how often it was asked.
struct Endless : Patience {
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    ++asked;
    last = now;
    *next = now + period;
    return Verdict::keep_waiting;
  }
  std::chrono::nanoseconds period = 1h;
  int asked = 0;
  Clock::time_point last;
};

/// Gives up when asked for the `limit`th time.
struct Limited : Endless {
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    Endless::ask(now, next);
    return asked < limit ? Verdict::keep_waiting : Verdict::give_up;
  }
  int limit = 1;
};

/// Sleeps at once: for tests of the futex alone.
constexpr WaitPolicy kAtOnce{0, 0ns, 0ns};

struct Scene {
  std::atomic<std::uint64_t> abort_word{0};
  Doorbell bell;
  std::atomic<std::uint64_t> flag{0};
  Waiter waiter(WaitPolicy policy = {}) { return {&abort_word, &bell, policy}; }
  void await_sleeper() const {
    while (bell.sleepers.load() == 0) std::this_thread::yield();
  }
};

TEST(Wait, ReadyAtOnceAsksNobody) {
  Scene scene;
  Limited patience;
  EXPECT_EQ(wait(scene.waiter(), patience, [] { return true; }), WaitResult::ready);
  EXPECT_EQ(patience.asked, 0);
}

TEST(Wait, SleeperIsWoken) {
  Scene scene;
  Endless patience;
  std::thread waker([&] {
    scene.await_sleeper();
    scene.flag.store(1);
    ring(scene.bell);
  });
  const auto result = wait(scene.waiter(kAtOnce), patience, [&] { return scene.flag.load() == 1; });
  waker.join();
  EXPECT_EQ(result, WaitResult::ready);
  EXPECT_EQ(scene.bell.sleepers.load(), 0u);
}

TEST(Wait, RingingWithNobodyAsleepTouchesNothing) {
  Scene scene;
  ring(scene.bell);
  EXPECT_EQ(scene.bell.rings.load(), 0u);
}

TEST(Wait, AbortWakesSleeper) {
  Scene scene;
  Endless patience;
  std::thread waker([&] {
    scene.await_sleeper();
    scene.abort_word.store(7);
    ring(scene.bell);
  });
  EXPECT_EQ(wait(scene.waiter(kAtOnce), patience, [] { return false; }), WaitResult::aborted);
  waker.join();
}

TEST(Wait, AbortIsSeenBeforeSleeping) {
  Scene scene;
  scene.abort_word.store(1);
  Endless patience;
  EXPECT_EQ(wait(scene.waiter(), patience, [] { return false; }), WaitResult::aborted);
  EXPECT_EQ(patience.asked, 0);
}

TEST(Wait, ReadyWinsOverAbort) {
  Scene scene;
  scene.abort_word.store(1);
  Endless patience;
  EXPECT_EQ(wait(scene.waiter(), patience, [] { return true; }), WaitResult::ready);
}

TEST(Wait, PatienceIsAskedLateThenWhenItSaid) {
  Scene scene;
  Limited patience;
  patience.limit = 3;
  patience.period = 20ms;
  const auto start = Clock::now();
  EXPECT_EQ(wait(scene.waiter(), patience, [] { return false; }), WaitResult::gave_up);
  EXPECT_EQ(patience.asked, 3);
  EXPECT_GE(Clock::now() - start, 45ms);
  EXPECT_EQ(scene.bell.sleepers.load(), 0u);
}

TEST(Wait, WhatReadyThrowsLeavesNoSleeperBehind) {
  Scene scene;
  Endless patience;
  int looks = 0;
  EXPECT_THROW(wait(scene.waiter(kAtOnce), patience,
                    [&]() -> bool {
                      if (scene.bell.sleepers.load() != 0) throw 1;
                      return ++looks > 1000000;
                    }),
               int);
  EXPECT_EQ(scene.bell.sleepers.load(), 0u);
}

TEST(Wait, WithoutABellItYields) {
  std::atomic<bool> flag{false};
  Endless patience;
  std::thread other([&] { flag.store(true); });
  EXPECT_EQ(wait(Waiter{}, patience, [&] { return flag.load(); }), WaitResult::ready);
  other.join();
}

/// Two sides count up in turn; a lost wake would hang (the patience then gives up after 20 s).
void ping_pong(Scene& mine, Scene& theirs, std::uint64_t rounds, bool first, WaitPolicy policy) {
  Limited patience;
  patience.limit = 2;
  patience.period = 20s;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (first) {
      theirs.flag.store(round);
      ring(theirs.bell);
    }
    patience.asked = 0;
    const auto result =
        wait(mine.waiter(policy), patience, [&] { return mine.flag.load() >= round; });
    ASSERT_EQ(result, WaitResult::ready) << "round " << round;
    if (!first) {
      theirs.flag.store(round);
      ring(theirs.bell);
    }
  }
}

class WaitPingPong : public testing::TestWithParam<WaitPolicy> {};

TEST_P(WaitPingPong, LosesNoWake) {
  Scene left;
  Scene right;
  std::thread other([&] { ping_pong(right, left, 100'000, false, GetParam()); });
  ping_pong(left, right, 100'000, true, GetParam());
  other.join();
  EXPECT_EQ(left.flag.load(), 100'000u);
}

INSTANTIATE_TEST_SUITE_P(Policies, WaitPingPong,
                         testing::Values(WaitPolicy{}, kAtOnce, wait_policy(8, 2)),
                         [](const auto& given) {
                           return std::string(given.index == 0   ? "spinning"
                                              : given.index == 1 ? "sleeping"
                                                                 : "yielding");
                         });

TEST(Wait, WorksBetweenProcesses) {
  void* const memory =
      ::mmap(nullptr, 2 * sizeof(Scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const scenes = static_cast<Scene*>(memory);
  new (&scenes[0]) Scene;
  new (&scenes[1]) Scene;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ping_pong(scenes[1], scenes[0], 10'000, false, kAtOnce);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ping_pong(scenes[0], scenes[1], 10'000, true, kAtOnce);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ::munmap(memory, 2 * sizeof(Scene));
}

/// Something comes while the alarm is armed for the third time.
struct ThreeTimes : Alarm {
  bool arm() noexcept override {
    if (++armed == 3) has_come = true;
    return armed <= 3;
  }
  int armed = 0;
  bool has_come = false;
};

TEST(Wait, WhoHasArmedAnythingLooksOnceMore) {
  Scene scene;
  Endless patience;
  ThreeTimes alarm;
  Waiter waiter = scene.waiter(kAtOnce);
  waiter.alarm = &alarm;
  const auto began = Clock::now();
  EXPECT_EQ(wait(waiter, patience, [&] { return alarm.has_come; }), WaitResult::ready);
  EXPECT_EQ(alarm.armed, 3);
  EXPECT_EQ(patience.asked, 0) << "it did not sleep";
  EXPECT_LT(Clock::now() - began, 5s);
}

/// It rings between the last look and the sleep.
struct RingsAtOnce : Alarm {
  explicit RingsAtOnce(Scene& scene_in) noexcept : scene(scene_in) {}
  bool arm() noexcept override {
    EXPECT_EQ(scene.bell.sleepers.load(), 1u) << "it would ring nobody";
    ++armed;
    ring(scene.bell);
    return false;
  }
  Scene& scene;
  int armed = 0;
};

TEST(Wait, AnAlarmThatHasRungEndsTheSleepThatIsAboutToBegin) {
  Scene scene;
  Endless patience;
  RingsAtOnce alarm(scene);
  Waiter waiter = scene.waiter(kAtOnce);
  waiter.alarm = &alarm;
  EXPECT_EQ(wait(waiter, patience, [&] { return alarm.armed == 1000; }), WaitResult::ready)
      << "a thousand sleeps of 5 ms would be seen by the time that this takes";
  EXPECT_EQ(alarm.armed, 1000);
}

TEST(Wait, SeveralThreadsSleepOnOneBell) {
  Scene scene;
  std::thread waiters[3];
  std::atomic<int> ready{0};
  for (std::thread& waiter : waiters) {
    waiter = std::thread([&] {
      Endless patience;
      if (wait(scene.waiter(kAtOnce), patience, [&] { return scene.flag.load() == 1; }) ==
          WaitResult::ready) {
        ++ready;
      }
    });
  }
  while (scene.bell.sleepers.load() < 3) std::this_thread::yield();
  scene.flag.store(1);
  ring(scene.bell);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(ready.load(), 3);
}

TEST(WaitUntil, ReturnsWhenRungAndWhenItIsTime) {
  Scene scene;
  const auto start = Clock::now();
  EXPECT_FALSE(wait_until(scene.bell, start + 20ms, [] { return false; }));
  EXPECT_GE(Clock::now() - start, 20ms);
  std::thread waker([&] {
    scene.await_sleeper();
    scene.flag.store(1);
    ring(scene.bell);
  });
  EXPECT_TRUE(
      wait_until(scene.bell, Clock::time_point::max(), [&] { return scene.flag.load() == 1; }));
  waker.join();
}

TEST(WaitPolicies, MoreThreadsThanCoresNeverSpin) {
  EXPECT_GT(wait_policy(2, 2).spin, 10us);
  EXPECT_FALSE(wait_policy(2, 2).shares_cores);
  EXPECT_LE(wait_policy(3, 2).looks, 5);
  EXPECT_TRUE(wait_policy(3, 2).shares_cores);
  EXPECT_GE(usable_cores(), 1);
}

// ---- the plan of one wait, with a clock of the test's own

using Step = WaitPlan::Step;
constexpr WaitPolicy kPlain{64, 20us, 100us, false};
constexpr WaitPolicy kShared{20, 0us, 200us, true};

TEST(WaitPlan, SpinsLingersAndSleeps) {
  WaitAccount account;
  WaitPlan plan(kPlain, &account);
  EXPECT_EQ(plan.next(1us, false), Step::spin);
  EXPECT_FALSE(plan.lingers());
  EXPECT_EQ(plan.next(30us, false), Step::spin);
  EXPECT_TRUE(plan.lingers());
  EXPECT_EQ(plan.next(100us, false), Step::sleep);
  EXPECT_FALSE(plan.lingers());
}

TEST(WaitPlan, YieldsWhereCoresAreShared) {
  WaitPlan plan(kShared, nullptr);
  EXPECT_EQ(plan.next(1us, false), Step::yield);
  EXPECT_EQ(plan.next(200us, false), Step::sleep);
}

TEST(WaitPlan, GivesUpTheCoreOfAnAwaitedRankAtOnce) {
  WaitAccount account;
  WaitPlan plan(kPlain, &account);
  EXPECT_EQ(plan.next(1us, true), Step::sleep);
  EXPECT_EQ(WaitPlan(kPlain, &account).next(50us, false), Step::spin) << "which cost nothing";
}

/// One wait in which what is awaited comes after `comes`. True: it lingered.
bool wait_by_plan(const WaitPolicy& policy, WaitAccount& account, std::chrono::nanoseconds comes) {
  WaitPlan plan(policy, &account);
  bool lingered = false;
  for (std::chrono::nanoseconds now = 0us; now < comes; now += 10us) {
    const Step step = plan.next(now, false);
    if (step == Step::sleep) return lingered;
    lingered = plan.lingers();
  }
  plan.end(comes);
  return lingered;
}

int count_lingering(WaitAccount& account, int waits, std::chrono::nanoseconds comes) {
  int lingered = 0;
  for (int i = 0; i < waits; ++i) lingered += wait_by_plan(kPlain, account, comes) ? 1 : 0;
  return lingered;
}

TEST(WaitPlan, LingersWhileItPays) {
  WaitAccount account;
  EXPECT_EQ(count_lingering(account, 100, 50us), 100);
}

TEST(WaitPlan, StopsLingeringWhenItDoesNotPay) {
  WaitAccount account;
  count_lingering(account, 100, 50us);
  EXPECT_EQ(count_lingering(account, 10, 5ms), 10) << "eight gains were kept, at 100 us each";
  EXPECT_LE(count_lingering(account, 140, 5ms), 12) << "about one of 14 tries again";
  EXPECT_GE(count_lingering(account, 140, 5ms), 9);
}

TEST(WaitPlan, LingersAgainOnceItPays) {
  WaitAccount account;
  count_lingering(account, 100, 5ms);
  EXPECT_GE(count_lingering(account, 100, 50us), 80);
}

TEST(WaitPlan, LingersWhereHalfOfTheWaitsWin) {
  WaitAccount account;
  int lingered = 0;
  count_lingering(account, 4, 50us);
  for (int i = 0; i < 100; ++i) {
    count_lingering(account, 1, 5ms);
    lingered += count_lingering(account, 1, 50us);
  }
  EXPECT_EQ(lingered, 100);
}

TEST(WaitPlan, SpinsShortlyEvenWhenLingeringDoesNotPay) {
  WaitAccount account;
  count_lingering(account, 20, 5ms);
  WaitPlan plan(kPlain, &account);
  EXPECT_EQ(plan.next(10us, false), Step::spin);
  EXPECT_EQ(plan.next(20us, false), Step::sleep);
}

TEST(WaitPlan, MovesWhereWaitsOnOneCoreAreOften) {
  WaitAccount account;
  const auto moves = [&](Deadline::Clock::time_point begin, int waits, auto every) {
    int moved = 0;
    for (int i = 0; i < waits; ++i) moved += account.should_move(begin + i * every) ? 1 : 0;
    return moved;
  };
  const auto begin = Deadline::Clock::now();
  EXPECT_EQ(moves(begin, 3'000, 5us), 1);
  EXPECT_EQ(moves(begin + 100ms, 8'000, 5us), 2) << "once in 20 ms";
  EXPECT_EQ(moves(begin + 200ms, 1'000, 1ms), 0) << "who computes in between stays";
}

TEST(LeaveCore, MovesTheThreadAndGivesItsCoresBack) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const int core = ::sched_getcpu();
  EXPECT_EQ(leave_core(core), CPU_COUNT(&before) > 1);
  cpu_set_t after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));

  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_FALSE(leave_core(core)) << "there is no other";
  EXPECT_EQ(::sched_getcpu(), core);
  ::sched_setaffinity(0, sizeof before, &before);
  EXPECT_FALSE(leave_core(-1));
}

/// A yield beside a busy loop comes back a slice later: what came meanwhile was not won by it, and
/// the slice is not risked again soon.
TEST(WaitPlan, AYieldThatTookASliceIsPaidFor) {
  WaitAccount account;
  const auto yields = [&](std::chrono::nanoseconds took) {
    WaitPlan plan(kShared, &account);
    const bool yielded = plan.next(1us, false) == Step::yield;
    plan.end(took);
    return yielded;
  };
  EXPECT_TRUE(yields(3ms));
  int others = 0;
  while (!yields(3ms)) ++others;
  EXPECT_GE(others, 200);
  EXPECT_LE(others, 300);
}

TEST(WaitPolicies, CoresFollowTheAffinityMask) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    cpu_set_t all;
    ::sched_getaffinity(0, sizeof all, &all);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::_exit(usable_cores());
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace tutti
