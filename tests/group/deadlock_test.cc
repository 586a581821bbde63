// Ranks that wait for each other in a circle are told so; ranks that somebody comes to help are
// not.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "tutti/init.h"
#include "tutti/log.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

test_kit::RunOptions options(std::string after = "50ms", std::string deadlock = "fail",
                             test_kit::As as = test_kit::As::threads) {
  test_kit::RunOptions options{.as = as};
  options.init.settings = {{"deadlock", std::move(deadlock)}, {"deadlock_after", std::move(after)}};
  return options;
}

/// Where the target says so (CMakeLists.txt), each rank is on a host of its own.
test_kit::RunOptions placed(int world_size, test_kit::RunOptions options) {
#ifdef TUTTI_TEST_APART
  for (int rank = 0; rank < world_size; ++rank) options.hosts.push_back(rank);
#else
  (void)world_size;
#endif
  return options;
}

void on_free_ranks(int world_size, const std::function<void(ProcessGroup&)>& function,
                   const test_kit::RunOptions& options) {
  on_ranks(world_size, function, placed(world_size, options));
}

/// As on_ranks, but the world is not closed: it has failed.
void on_stuck_ranks(int world_size, const std::function<void(ProcessGroup&)>& function,
                    const test_kit::RunOptions& options) {
  const auto outcomes = test_kit::collect_ranks(
      world_size,
      [&](const test_kit::Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        function(world);
        if (options.as == test_kit::As::processes && testing::Test::HasFailure())
          throw std::runtime_error("an expectation failed (see above)");
        return std::string();
      },
      placed(world_size, options));
  for (const test_kit::Outcome& outcome : outcomes)
    EXPECT_EQ(outcome.failure, "") << "rank " << outcome.rank;
}

std::vector<int> all_of(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int rank = 0; rank < group.world_size(); ++rank) ranks.push_back(rank);
  return ranks;
}

/// The failure of `call`, which must be a deadlock of all ranks of the world.
Error deadlock_of(ProcessGroup& world, const std::function<void()>& call) {
  Error error = thrown_by(call);
  EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
  EXPECT_EQ(error.context().culprits, all_of(world)) << error.what();
  expect_text(error, "deadlock: ");
  return error;
}

TEST(Deadlock, SendsInARingThatAreLargerThanAnyBuffer) {
  for (const test_kit::As as : every_kind()) {
    on_stuck_ranks(
        3,
        [](ProcessGroup& world) {
          std::vector<float> data(2'000'000);
          const int next = (world.rank() + 1) % 3;
          const Error error = deadlock_of(world, [&] { world.send(data, next); });
          expect_text(error,
                      "deadlock: rank 0 waits in send(f32 x 2000000, to 1, tag 0) at "
                      "deadlock_test.cc:");
          expect_text(error, " for rank 1, which waits in send(f32 x 2000000, to 2, tag 0) at ");
          expect_text(error, " for rank 2, which waits in send(f32 x 2000000, to 0, tag 0) at ");
          expect_text(error, " for rank 0. ");
        },
        options("50ms", "fail", as));
  }
}

TEST(Deadlock, BufferedSendsThatAreLargerThanTheBufferSaySo) {
  on_stuck_ranks(
      2,
      [](ProcessGroup& world) {
        const std::vector<float> data((std::size_t{64} << 20) / sizeof(float) + 1);
        const Error error =
            deadlock_of(world, [&] { world.send(data, 1 - world.rank(), {.buffered = true}); });
        expect_text(error, "rank 0 waits in send(f32 x 16777217, to 1, tag 0, buffered) at ");
        expect_text(error, "are more than 64 MiB");
      },
      options());
}

TEST(Deadlock, IsToldInTimeUnlessSettingsSayOtherwise) {
  on_stuck_ranks(2,
                 [](ProcessGroup& world) {
                   int x = 0;
                   const auto began = Clock::now();
                   deadlock_of(world, [&] { world.recv(x, 1 - world.rank()); });
                   EXPECT_GE(Clock::now() - began, 1s);
                   EXPECT_LE(Clock::now() - began,
                             10s);  // 3 s in the soak, where nothing else runs
                 },
                 {});
}

/// What a callback calls, in whichever thread, makes no second thread of the program.
TEST(Deadlock, IsToldAfterACallbackHasCalledTheWorld) {
  std::atomic<bool> is_set{false};
  on_stuck_ranks(
      2,
      [&](ProcessGroup& world) {
        float x = 0, y = 0;
        if (world.rank() == 0) {
          const auto main = std::this_thread::get_id();
          auto called_by = main;
          Work sent;
          Work called = world.recv(x, 1, async).then([&](const Error*) {
            called_by = std::this_thread::get_id();
            sent = world.send(x, 1, async);
          });
          is_set.store(true);
          while (!called.done()) std::this_thread::sleep_for(1ms);
          called.wait();
          sent.wait();
          EXPECT_NE(called_by, main);
        } else {
          while (!is_set.load()) std::this_thread::sleep_for(1ms);
          world.send(x, 0);
          world.recv(x, 0);
        }
        deadlock_of(world, [&] { world.recv(y, 1 - world.rank()); });
      },
      options());
}

/// A callback behind what is awaited starts nothing before that has ended.
TEST(Deadlock, IsToldWhereACallbackIsBehindWhatIsAwaited) {
  const auto nothing = [](const Error*) {};
  on_stuck_ranks(
      2,
      [&](ProcessGroup& world) {
        float x = 0;
        deadlock_of(world, [&] {
          world.recv(x, 1 - world.rank(), async).then(nothing).then(nothing).wait();
        });
      },
      options());
}

TEST(Deadlock, TwoGroupsInOppositeOrderFailBoth) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        ProcessGroup a = world.new_group({0, 1, 2}), b = world.new_group({2, 1, 0});
        ProcessGroup& first = world.rank() == 1 ? b : a;
        ProcessGroup& second = world.rank() == 1 ? a : b;
        const Error error = thrown_by([&] { first.barrier(); });
        EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
        EXPECT_EQ(error.context().culprits.size(), 2u) << "one circle is told";
        // Ranks 1 and 2 are one, too, if rank 0 is late.
        const bool is_late =
            std::string(error.what()).find("world rank 0 waits") == std::string::npos;
        const auto waits = [](int rank) { return "world rank " + std::to_string(rank); };
        expect_text(error, waits(is_late ? 1 : 0) + " waits in barrier #1 at deadlock_test.cc:");
        expect_text(error, "of the group made by new_group({0, 1, 2}) at deadlock_test.cc:");
        expect_text(error, "for " + waits(is_late ? 2 : 1) + ", which waits in barrier #1 at ");
        EXPECT_EQ(thrown_by([&] { second.barrier(); }).code(), ErrorCode::kDeadlock);
        world.barrier();  // a group that carries no edge goes on
      },
      options());
}

// Each is found by a rank of its own, while the others' entries come into the log.
TEST(Deadlock, ManyAtATimeAreAllTold) {
  on_free_ranks(
      8,
      [](ProcessGroup& world) {
        const int first = world.rank() / 2 * 2;
        for (int round = 0; round < 8; ++round) {
          ProcessGroup pair = world.new_group({first, first + 1});
          world.barrier();
          int x = 0;
          const Error error = thrown_by([&] { pair.recv(x, 1 - pair.rank()); });
          EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
          world.barrier({.timeout = 60s});
        }
      },
      options());
}

TEST(Deadlock, IsToldWhileGroupsOfOthersFail) {
  std::atomic<int> told{0};
  on_free_ranks(
      4,
      [&told](ProcessGroup& world) {
        ProcessGroup stuck = world.new_group({0, 1});
        world.barrier();
        if (stuck.is_member()) {
          int x = 0;
          const Error error = thrown_by([&] { stuck.recv(x, 1 - stuck.rank()); });
          EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
          ++told;
          return;
        }
        for (;;) {
          int more = told.load() < 2 ? 1 : 0;
          world.rank() == 2 ? world.send(more, 3) : (void)world.recv(more, 2);
          if (more == 0) return;
          const Error error = thrown_by([&] {
            ProcessGroup pair = world.new_group({2, 3});  // rank 3 may be told in this
            if (pair.rank() == 0) pair.abort("on purpose");
            pair.barrier();
          });
          EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
        }
      },
      options());
}

TEST(Deadlock, GroupsMadeByOneLineAreToldApart) {
  on_stuck_ranks(
      2,
      [](ProcessGroup& world) {
        std::vector<ProcessGroup> groups;
        for (int i = 0; i < 2; ++i) groups.push_back(world.new_group({1, 0}));
        float x = 0;
        const Error error = thrown_by([&] {
          if (world.rank() == 0) groups[0].barrier();
          if (world.rank() == 1) groups[1].recv(x, 1);
        });
        EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
        expect_text(error, "world rank 0 waits in barrier #1 at deadlock_test.cc:");
        expect_text(error,
                    " for world rank 1, which waits in recv(f32 x 1, from 1 of the group, "
                    "tag 0) at deadlock_test.cc:");
        expect_text(error, " (#2) for world rank 0. ");
      },
      options());
}

TEST(Deadlock, ACollectiveCrossedWithAReceive) {
  on_stuck_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0;
        const Error error = thrown_by([&] {
          if (world.rank() == 2) {
            world.recv(x, 0, {.tag = 7});
          } else {
            world.all_reduce(x);
          }
        });
        EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
        EXPECT_EQ(error.context().culprits, (std::vector<int>{0, 2}));
        expect_text(error, "rank 0 waits in all_reduce #1(f32 x 1, sum) at ");
        expect_text(error, "which waits in recv(f32 x 1, from 0, tag 7) at ");
      },
      options());
}

TEST(Deadlock, TheThreadThatMadeTheWorldMayComeToHelp) {
  on_stuck_ranks(
      2,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        if (world.rank() == 1) {
          world.recv(x, 0);
          return world.send(y, 0, {.tag = 1});
        }
        std::thread listener([&] { world.recv(y, 1, {.tag = 1}); });
        std::this_thread::sleep_for(700ms);  // the first call of this one comes after that
        world.send(x, 1);
        listener.join();
      },
      options());
}

TEST(Deadlock, AReceiveFromAnyRankIsStuckIfAllOthersAre) {
  on_stuck_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0;
        const Error error = deadlock_of(
            world, [&] { world.recv(x, world.rank() == 0 ? kAnyRank : 0, {.tag = 1}); });
        expect_text(error, "rank 0 waits in recv(f32 x 1, from any rank, tag 1) at ");
        expect_text(error, "for any of the ranks 1-2; rank 1 waits in recv");
      },
      options());
}

TEST(Deadlock, WorksAreWaitedFor) {
  on_stuck_ranks(
      2,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        // Of the first nothing is awaited: it is the second that they wait in.
        Work reduced = world.all_reduce(x, async);
        Work received = world.recv(y, 1 - world.rank(), async);
        const Error error = deadlock_of(world, [&] { received.wait(); });
        expect_text(error, "recv(f32 x 1, from ");
        reduced.wait();
      },
      options());
}

TEST(Deadlock, AnyOfSeveralWorks) {
  on_stuck_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        if (world.rank() == 0) {
          std::vector<Work> works;
          works.push_back(world.recv(x, 1, async));
          works.push_back(world.recv(y, 2, {.tag = 3}, async));
          const Error error = deadlock_of(world, [&] { works[wait_any(works)].wait(); });
          expect_text(error, "rank 0 waits in wait_any of recv(f32 x 1, from 1, tag 0) at ");
          for (Work& work : works) thrown_by([&] { work.wait(); });
        } else {
          deadlock_of(world, [&] { world.barrier(); });
        }
      },
      options());
}

TEST(Deadlock, OneOfTheWorksMayStillEnd) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        if (world.rank() == 0) {
          std::vector<Work> works;
          works.push_back(world.recv(x, 1, async));
          works.push_back(world.recv(y, 2, async));
          EXPECT_EQ(wait_any(works), 1u);
          world.send(x, 1);
          wait_all(works);
        } else if (world.rank() == 1) {
          world.recv(x, 0);
          world.send(x, 0);
        } else {
          std::this_thread::sleep_for(700ms);
          world.send(y, 0);
        }
      },
      options());
}

TEST(Deadlock, MakingAGroupIsAwaitedToo) {
  on_stuck_ranks(
      2,
      [](ProcessGroup& world) {
        float x = 0;
        const Error error = thrown_by([&] {
          if (world.rank() == 0) {
            world.new_group({0, 1});
          } else {
            world.recv(x, 0);
          }
        });
        EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
        expect_text(error, "world rank 0 waits in new_group({0, 1}) at deadlock_test.cc:");
        expect_text(error, "for world rank 1, which waits in recv(f32 x 1, from 0, tag 0) at ");
        expect_text(error,
                    " for world rank 0. None of them can go on by itself: all members of a new "
                    "group must call new_group, and all ranks make their calls in one order. ");
      },
      options());
}

// More than a connection holds, to a rank that does not read it.
TEST(Deadlock, IsToldHoweverMuchAnotherCollectiveMoves) {
  on_stuck_ranks(
      4,
      [](ProcessGroup& world) {
        ProcessGroup group = world.new_group({0, 1, 2, 3});
        std::vector<float> input(4 << 20), output(1 << 20);
        const Error error = thrown_by([&] {
          if (world.rank() == 3) return group.barrier();
          world.reduce_scatter(input, output);
        });
        EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
      },
      options());
}

/// In a circle of more groups than one entry of the log names.
TEST(Deadlock, MakingManyGroupsIsToldInAll) {
  on_stuck_ranks(
      18,
      [](ProcessGroup& world) {
        world.barrier();
        const std::vector<int> pair = {world.rank(), (world.rank() + 1) % world.world_size()};
        const Error error = thrown_by([&] { world.new_group(pair); });
        EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
        world.barrier({.timeout = 60s});  // nobody leaves before all are told
      },
      options());
}

TEST(Deadlock, WithOneself) {
  on_stuck_ranks(
      1,
      [](ProcessGroup& world) {
        float x = 0;
        const Error error = deadlock_of(world, [&] { world.recv(x, 0); });
        expect_text(error, "rank 0 waits in recv(f32 x 1, from 0, tag 0) at ");
        expect_text(error, "for itself");
      },
      options());
}

TEST(Deadlock, OfABroadcastItsRootIsAwaited) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0;
        // Rank 2 waits for the root only: that rank 1 never comes is nothing to it.
        if (world.rank() == 0) std::this_thread::sleep_for(600ms);
        if (world.rank() == 1) world.recv(x, 2);
        world.broadcast(x, {.root = 0});
        if (world.rank() == 2) world.send(x, 1);
      },
      options());
}

// ---- somebody comes to help -------------------------------------------------------------------

TEST(NoDeadlock, ALateRank) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0;
        if (world.rank() == 2) std::this_thread::sleep_for(600ms);
        world.barrier();
        float y = 0;
        world.sendrecv(x, y, {.to = (world.rank() + 1) % 3, .from = (world.rank() + 2) % 3});
      },
      options());
}

/// Who waits in the second has called it, although it cannot enter it before the first has ended.
TEST(NoDeadlock, ALateRankWhileABlockingCallAwaitsItsTurn) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 1, y = 1;
        if (world.rank() == 2) std::this_thread::sleep_for(600ms);
        Work first = world.all_reduce(x, async);
        world.all_reduce(y);
        first.wait();
        EXPECT_EQ(y, 3);
      },
      options());
}

TEST(NoDeadlock, ATimeoutOfItsOwn) {
  on_free_ranks(
      2,
      [](ProcessGroup& world) {
        float x = 0;
        if (world.rank() == 0) {
          const Error error = thrown_by([&] { world.recv(x, 1, {.timeout = 600ms}); });
          EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
          world.send(x, 1);
        } else {
          world.recv(x, 0);
        }
      },
      options());
}

TEST(NoDeadlock, AWaitWithABound) {
  on_free_ranks(
      2,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        if (world.rank() == 0) {
          Work work = world.recv(x, 1, async);
          EXPECT_FALSE(work.wait_for(600ms));
          world.send(y, 1);
          work.wait();
        } else {
          world.recv(y, 0);
          world.send(x, 0);
        }
      },
      options());
}

TEST(NoDeadlock, ASecondThreadThatHasCalledBefore) {
  on_free_ranks(
      2,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        world.barrier();
        if (world.rank() == 0) {
          std::atomic<bool> has_called{false};
          std::thread helper([&] {
            world.send(x, 1, {.tag = 1});
            has_called.store(true);
            std::this_thread::sleep_for(600ms);
            world.send(x, 1, {.tag = 2});
          });
          while (!has_called.load()) std::this_thread::yield();
          world.recv(y, 1, {.tag = 3});
          helper.join();
        } else {
          world.recv(x, 0, {.tag = 1});
          world.recv(x, 0, {.tag = 2});
          world.send(y, 0, {.tag = 3});
        }
      },
      options());
}

TEST(NoDeadlock, ACallbackThatIsYetToRun) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0, y = 0;
        if (world.rank() == 0) {
          Work sent;
          Work called =
              world.recv(x, 2, async).then([&](const Error*) { sent = world.send(x, 1, async); });
          world.recv(y, 1);
          called.wait();
          sent.wait();
        } else if (world.rank() == 1) {
          world.recv(x, 0);
          world.send(y, 0);
        } else {
          std::this_thread::sleep_for(600ms);
          world.send(x, 0);
        }
      },
      options());
}

TEST(NoDeadlock, WhatWasCalledAsynchronouslyComesByItself) {
  on_free_ranks(
      3,
      [](ProcessGroup& world) {
        float x = 0, y = 0, z = 0;
        if (world.rank() == 0) {
          // The second waits for the first, which waits for rank 2; no program but rank 2's is
          // awaited in either.
          Work first = world.all_reduce(x, async), second = world.all_reduce(y, async);
          world.recv(z, 1);
          wait_all({first, second});
        } else {
          if (world.rank() == 2) std::this_thread::sleep_for(600ms);
          world.all_reduce(x);
          world.all_reduce(y);
          if (world.rank() == 1) world.send(z, 0);
        }
      },
      options());
}

/// What the ranks of this process have logged.
class Lines {
 public:
  Lines() {
    set_log_callback([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~Lines() { set_log_callback({}); }
  int count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    int count = 0;
    for (const std::string& line : lines_) count += line.find(part) != std::string::npos ? 1 : 0;
    return count;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Rank 0's second thread helps with the first call it makes, after `wait_before`.
void rescued_by_a_first_call(ProcessGroup& world, const std::function<void()>& wait_before) {
  float x = 0, y = 0;
  if (world.rank() == 0) {
    std::thread helper([&] {
      wait_before();
      world.send(x, 1);
    });
    world.recv(y, 1);
    helper.join();
  } else {
    world.recv(x, 0);
    world.send(y, 0);
  }
}

TEST(NoDeadlock, ASecondThreadThatHasNotCalledBeforeNeedsTheSetting) {
  Lines lines;
  on_free_ranks(
      2,
      [](ProcessGroup& world) {
        rescued_by_a_first_call(world, [] { std::this_thread::sleep_for(800ms); });
      },
      options("50ms", "off"));
  EXPECT_EQ(lines.count("deadlock"), 0);
  on_free_ranks(
      2,
      [&](ProcessGroup& world) {
        rescued_by_a_first_call(world, [&] {
          for (int i = 0; i < 2000 && lines.count("deadlock: ") == 0; ++i)
            std::this_thread::sleep_for(10ms);
        });
      },
      options("50ms", "warn"));
  EXPECT_EQ(lines.count("deadlock: rank 0 waits in recv(f32 x 1, from 1, tag 0) at "), 1);
}

TEST(NoDeadlock, SettingsDifferBetweenRanks) {
  const auto outcomes = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
    InitOptions init = me.init;
    init.settings["deadlock"] = me.rank == 0 ? "warn" : "fail";
    init_process_group(init);
    return std::string();
  });
  for (const test_kit::Outcome& outcome : outcomes)
    EXPECT_NE(outcome.failure.find("deadlock=warn on rank 0, deadlock=fail on rank 1"),
              std::string::npos)
        << outcome.failure;
}

}  // namespace
}  // namespace tutti
