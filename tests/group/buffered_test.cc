// Buffered sends: they end at once, whatever the receiver does meanwhile.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "in_time.h"
#include "ranks.h"
#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20;
SendOptions buffered(int tag) { return {.tag = tag, .buffered = true}; }

std::vector<int> pattern(std::size_t count, int seed) {
  std::vector<int> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = seed * 1000 + static_cast<int>(i);
  return data;
}

void send_pattern(ProcessGroup& group, std::size_t count, int to, int tag, int seed) {
  std::vector<int> data = pattern(count, seed);
  group.send(data, to, buffered(tag));
  data.assign(count, -1);  // ours again
}

void expect_pattern(ProcessGroup& group, std::size_t count, int from, int tag, int seed) {
  std::vector<int> data(count);
  group.recv(data, from, {.tag = tag});
  EXPECT_TRUE(data == pattern(count, seed)) << "tag " << tag << ", message " << seed;
}

void send_all(ProcessGroup& group, int tags, int per_tag, std::size_t count) {
  for (int i = 0; i < per_tag; ++i) {
    for (int tag = 0; tag < tags; ++tag) send_pattern(group, count, 1, tag, i);
  }
}

/// The other way round: what came first is received last.
void receive_all(ProcessGroup& group, int tags, int per_tag, std::size_t count) {
  for (int tag = tags; tag-- > 0;) {
    for (int i = 0; i < per_tag; ++i) expect_pattern(group, count, 0, tag, i);
  }
}

struct Load {
  const char* what;
  int ranks, tags, per_tag;
  std::size_t count;
};
constexpr Load kLoads[] = {
    {"more than there is room for matches, short rings", 32, 14, 50, 1},
    {"more than there is room for matches", 2, 100, 60, 1},
    {"more bytes than a ring holds", 2, 8, 60, 1024},
    {"more of a tag than may be unmatched", 2, 1, 1000, 1},
    {"more than an announcement carries", 2, 3, 2, 1'000'000},
    {"the same, short rings", 32, 3, 2, 1000},
};

void on_loads(const std::function<void(ProcessGroup&, const Load&)>& body) {
  for (const Load& load : kLoads) {
    for (const test_kit::As as : every_kind()) {
      SCOPED_TRACE(load.what);
      if (as == test_kit::As::processes && load.ranks > 2 && load.count > 1) continue;
      on_ranks(load.ranks, [&](ProcessGroup& world) { body(world, load); }, {.as = as});
    }
  }
}

TEST(Buffered, ASenderInABarrierIsNotNeeded) {
  on_loads([](ProcessGroup& world, const Load& load) {
    if (world.rank() == 0) send_all(world, load.tags, load.per_tag, load.count);
    if (world.rank() == 1) receive_all(world, load.tags, load.per_tag, load.count);
    world.barrier();
  });
}

TEST(Buffered, ASenderInABarrierOfAnotherGroupIsNotNeeded) {
  on_loads([](ProcessGroup& world, const Load& load) {
    if (world.rank() > 1) return;
    ProcessGroup pair = world.new_group({0, 1});
    if (pair.rank() == 0) send_all(pair, load.tags, load.per_tag, load.count);
    if (pair.rank() == 1) receive_all(pair, load.tags, load.per_tag, load.count);
    ProcessGroup other = world.new_group({1, 0});
    other.barrier();
  });
}

TEST(Buffered, AReceiverInABarrierIsNotNeeded) {
  on_loads([](ProcessGroup& world, const Load& load) {
    if (world.rank() == 0) send_all(world, load.tags, load.per_tag, load.count);
    world.barrier();
    if (world.rank() == 1) receive_all(world, load.tags, load.per_tag, load.count);
  });
}

TEST(Buffered, ASenderThatClosesIsNotNeeded) {
  on_loads([](ProcessGroup& world, const Load& load) {
    if (world.rank() == 0) send_all(world, load.tags, load.per_tag, load.count);
    if (world.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      receive_all(world, load.tags, load.per_tag, load.count);
    }
    world.close();
  });
}

TEST(Buffered, WhatNobodyReceivesIsDropped) {
  on_loads([](ProcessGroup& world, const Load& load) {
    if (world.rank() == 0) send_all(world, load.tags, load.per_tag, load.count);
    const auto began = std::chrono::steady_clock::now();
    world.close();
    EXPECT_LT(std::chrono::steady_clock::now() - began, 20s);
  });
}

TEST(Buffered, BothWaysAndFromAnyRank) {
  for (const test_kit::As as : every_kind()) {
    on_ranks(3,
             [](ProcessGroup& world) {
               const auto me = static_cast<std::size_t>(world.rank());
               for (int peer = 0; peer < 3; ++peer) {
                 for (int i = 0; i < 5; ++i)
                   send_pattern(world, 100'000 + me, peer, 7, 10 * world.rank() + i);
               }
               world.barrier();
               std::vector<int> next(3, 0);
               for (int i = 0; i < 15; ++i) {
                 std::vector<int> got;
                 const MessageInfo info = world.recv_resize(got, kAnyRank, {.tag = 7});
                 const auto from = static_cast<std::size_t>(info.rank);
                 EXPECT_TRUE(got == pattern(100'000 + from, 10 * info.rank + next[from]++));
               }
             },
             {.as = as});
  }
}

TEST(Buffered, AsynchronousOnesEndAtOnceToo) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<int> small = pattern(1, 1), large = pattern(300'000, 2);
    if (world.rank() == 0) {
      for (int i = 0; i < 100; ++i) {
        Work work = world.send(small, 1, buffered(1), async);
        work.wait();
      }
      Work work = world.send(large, 1, buffered(2), async);
      work.wait();
      EXPECT_FALSE(work.cancel());
      large.assign(large.size(), 0);
      Work waits = world.send(small, 1, {.tag = 1}, async);  // behind a hundred of them
      world.barrier();
      waits.wait();
    } else {
      world.barrier();
      expect_pattern(world, large.size(), 0, 2, 2);
      for (int i = 0; i < 101; ++i) expect_pattern(world, 1, 0, 1, 1);
    }
  });
}

TEST(Buffered, FromManyThreads) {
  constexpr int kThreads = 8;
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 100; ++i) {
          const std::size_t count = i % 10 == 0 ? 5000 : 10;
          if (world.rank() == 0) {
            send_pattern(world, count, 1, thread, i);
          } else {
            expect_pattern(world, count, 0, thread, i);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    world.barrier();
  });
}

/// What is left waits for its turn, and goes on as soon as there is room.
TEST(Buffered, BeyondTheBoundTheyWaitForRoom) {
  on_ranks(2, [](ProcessGroup& world) {
    constexpr std::size_t kCount = kMiB / sizeof(int);
    if (world.rank() == 0) {
      for (int i = 0; i < 100; ++i) send_pattern(world, kCount, 1, i % 3, i);
      const std::vector<int> none(65 * kCount);
      const Error error =
          thrown_by([&] { world.send(none, 1, {.tag = 9, .buffered = true, .timeout = 20ms}); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      Work work = world.send(none, 1, buffered(9), async);
      EXPECT_TRUE(work.cancel());
      world.barrier();
    } else {
      for (int i = 0; i < 60; ++i) expect_pattern(world, kCount, 0, i % 3, i);
      world.barrier();
      for (int i = 60; i < 100; ++i) expect_pattern(world, kCount, 0, i % 3, i);
    }
  });
}

/// What stands behind a send that is not buffered does not take all the room before it has gone.
TEST(Buffered, WhatIsBehindASendStarvesItNot) {
  on_ranks(2, [](ProcessGroup& world) {
    constexpr int kEmpty = 64, kBuffered = 100;
    const std::vector<char> none, some(4096, 's');
    const std::vector<char> large(kMiB, 'l');
    if (world.rank() == 0) {
      std::vector<Work> works;
      for (int i = 0; i < kEmpty; ++i) works.push_back(world.send(none, 1, {.tag = 0}, async));
      works.push_back(world.send(some, 1, {.tag = 0}, async));
      for (int i = 0; i < kBuffered; ++i) world.send(large, 1, buffered(0));
      wait_all(works);
    } else {
      std::this_thread::sleep_for(50ms);
      std::vector<char> empty, got(some.size()), all(large.size());
      for (int i = 0; i < kEmpty; ++i) world.recv(empty, 0, {.tag = 0});
      world.recv(got, 0, {.tag = 0});
      EXPECT_TRUE(got == some);
      for (int i = 0; i < kBuffered; ++i) world.recv(all, 0, {.tag = 0});
      EXPECT_TRUE(all == large);
    }
    world.barrier();
  });
}

TEST(Buffered, ALargeOneThatWaitsForRoomHoldsUpNoSmallOnes) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<char> large(50 * kMiB, 'l'), other(large.size());
    if (world.rank() == 0) {
      world.send(large, 1, buffered(1));
      Work waits = world.send(large, 1, buffered(1), async);
      send_all(world, 1, 3000, 250);
      world.barrier();
      waits.wait();
    } else {
      world.barrier();
      receive_all(world, 1, 3000, 250);
      for (int i = 0; i < 2; ++i) world.recv(other, 0, {.tag = 1});
      EXPECT_TRUE(other == large);
    }
  });
}

/// With its envelope the largest takes all the room there is.
TEST(Buffered, AMessageMayTakeAllTheRoom) {
  constexpr std::size_t kEnvelope = 128;
  for (const std::size_t less : {kEnvelope, 2 * kEnvelope - 1, 2 * kEnvelope}) {
    on_ranks(2, [less](ProcessGroup& world) {
      std::vector<char> sent(64 * kMiB - less, 's'), got(sent.size());
      world.send(sent, 1 - world.rank(), buffered(0));
      world.recv(got, 1 - world.rank(), {.tag = 0});
      EXPECT_TRUE(got == sent);
    });
  }
}

TEST(Buffered, ToOneselfTheyHaveABoundToo) {
  on_ranks(1, [](ProcessGroup& world) {
    std::vector<char> large(40 * kMiB, 'a'), got(large.size());
    Work first = world.send(large, 0, buffered(1), async);
    first.wait();
    Work second = world.send(large, 0, buffered(2), async);
    EXPECT_FALSE(second.wait_for(20ms));
    const Error error = thrown_by([&] { world.send(large, 0, buffered(3)); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("67108864 bytes"), std::string::npos) << error.what();
    world.recv(got, 0, {.tag = 1});
    second.wait();
    large.assign(large.size(), 'b');
    world.recv(got, 0, {.tag = 2});
    EXPECT_EQ(got.front(), 'a');
    EXPECT_EQ(got.back(), 'a');
    const Error full = thrown_by([&] {
      for (int i = 0; i < 1'000'000; ++i) world.send(std::vector<char>(), 0, buffered(4));
    });
    EXPECT_EQ(full.code(), ErrorCode::kInvalidArgument);
  });
}

/// One that has closed is believed not to send any more as soon as all has come that it sent.
TEST(Buffered, WhatWasNeverSentIsMissedAtOnce) {
  expect_once_in_time([](bool& is_in_time) {
    std::atomic<bool> closes{false};
    const auto outcomes = test_kit::collect_ranks(2, [&](const test_kit::Rank& me) {
      ProcessGroup world = init_process_group(me.init);
      if (me.rank == 0) {
        send_pattern(world, 1'000'000, 1, 1, 1);
        send_all(world, 8, 60, 1024);
        closes.store(true);
        world.close();
      } else {
        while (!closes.load()) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(100ms);
        const auto began = std::chrono::steady_clock::now();
        int x = 0;
        const Error error = thrown_by([&] { world.recv(x, 0, {.tag = 1000}); });
        is_in_time = std::chrono::steady_clock::now() - began < 1s;
        EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
      }
      return std::string();
    });
    ASSERT_TRUE(outcomes[0].error.has_value());
    EXPECT_EQ(outcomes[0].error->code(), ErrorCode::kClosed);
  });
}

/// What was copied goes with its sender, and its receiver learns of that.
TEST(Buffered, OfASenderThatHasGivenUpClosingAreMissed) {
  std::atomic<bool> has_left{false};
  const auto outcomes = test_kit::collect_ranks(2, [&](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    if (me.rank == 0) {
      send_pattern(world, 1'000'000, 1, 1, 1);
      EXPECT_EQ(thrown_by([&] { world.close(20ms); }).code(), ErrorCode::kTimeout);
      world = {};
      has_left.store(true);
    } else {
      while (!has_left.load()) std::this_thread::sleep_for(1ms);
      std::vector<int> data(1'000'000);
      const Error error = thrown_by([&] { world.recv(data, 0, {.tag = 1}); });
      EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
    }
    return std::string();
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

TEST(Buffered, AreDroppedWithAGroupThatFails) {
  on_loads([](ProcessGroup& world, const Load& load) {
    if (world.rank() > 1) return;
    ProcessGroup pair = world.new_group({0, 1});
    const Error error = thrown_by([&] {
      pair.barrier();  // both have made it
      if (pair.rank() == 0) send_all(pair, load.tags, load.per_tag, load.count);
      if (pair.rank() == 0) pair.abort("as planned");
      int x = 0;
      pair.recv(x, 1 - pair.rank(), {.tag = 1000});
    });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  });
}

TEST(Buffered, ADeadlockBesideThemIsFound) {
  const auto outcomes = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    int x = 0;
    if (me.rank == 0) {
      send_pattern(world, 1'000'000, 1, 1, 1);
      world.barrier();
    } else {
      world.recv(x, 0, {.tag = 1000});
    }
    return std::string();
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), ErrorCode::kDeadlock) << outcome.error->what();
  }
}

TEST(Buffered, TheLossOfTheSenderIsOneOfItsMessages) {
  if (kNoForks) GTEST_SKIP() << "ranks are processes here";
  const auto body = [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    int heard = 0;
    if (me.rank == 0) {
      send_pattern(world, 1'000'000, 1, 1, 1);
      send_pattern(world, 1, 1, 2, 1);
      world.recv(heard, 1, {.tag = 3});
      ::raise(SIGKILL);
    }
    expect_pattern(world, 1, 0, 2, 1);
    world.send(heard, 0, buffered(3));
    std::this_thread::sleep_for(200ms);
    std::vector<int> data(1'000'000);
    const Error error = thrown_by([&] { world.recv(data, 0, {.tag = 1}); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    return std::string();
  };
  const auto outcomes = test_kit::collect_ranks(2, body, {.as = test_kit::As::processes});
  EXPECT_EQ(outcomes[1].failure, "");
}

}  // namespace
}  // namespace tutti
