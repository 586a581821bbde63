// Callbacks of operations, whichever thread ends them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "ranks.h"

namespace tutti {
namespace {

TEST(Then, RunsOnceForCollectivesAndMessages) {
  on_ranks(3, [](ProcessGroup& world) {
    const int next = (world.rank() + 1) % 3, previous = (world.rank() + 2) % 3;
    std::atomic<int> calls{0};
    std::vector<Work> works;
    std::vector<int> sums(50, 1), sent(50, world.rank()), received(50);
    const auto count = [&](const Error* failure) {
      EXPECT_EQ(failure, nullptr);
      calls.fetch_add(1);
    };
    for (std::size_t i = 0; i < sums.size(); ++i) {
      works.push_back(world.all_reduce(sums[i], async).then(count));
      works.push_back(world.send(sent[i], next, async).then(count));
      works.push_back(world.recv(received[i], previous, async).then(count));
    }
    wait_all(works);
    EXPECT_EQ(calls.load(), 150);
    EXPECT_EQ(sums, std::vector<int>(50, 3));
    EXPECT_EQ(received, std::vector<int>(50, previous));
  });
}

TEST(Then, RunsWithoutAnybodyWaiting) {
  on_ranks(2, [](ProcessGroup& world) {
    std::atomic<bool> called{false};
    int x = 1;
    world.all_reduce(x, async).then([&](const Error*) { called.store(true); }).detach();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!called.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(called.load());
    EXPECT_EQ(x, 2);
    world.barrier();
  });
}

TEST(Then, StartsTheNextOperation) {
  on_ranks(2, [](ProcessGroup& world) {
    int first = world.rank() + 1, second = 0;
    Work next;
    Work work = world.all_reduce(first, async).then([&](const Error* failure) {
      ASSERT_EQ(failure, nullptr);
      second = first;
      next = world.all_reduce(second, async);
    });
    work.wait();
    next.wait();
    EXPECT_EQ(second, 6);
  });
}

/// Until `flag`, without waiting for any Work: the progress thread has to do it.
void await(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flag.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  ASSERT_TRUE(flag.load());
}

TEST(Then, StartsTheFirstOperationOfAnotherGroup) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup other = world.new_group({0, 1});
    std::atomic<bool> called{false};
    int x = 1, y = 10;
    Work next;
    Work work = world.all_reduce(x, async).then([&](const Error*) {
      next = other.all_reduce(y, async);
      called.store(true);
    });
    await(called);
    next.wait();
    work.wait();
    EXPECT_EQ(y, 20);
  });
}

TEST(Then, MayBeTheLastToKnowAnotherGroup) {
  on_ranks(2, [](ProcessGroup& world) {
    auto other = std::make_shared<ProcessGroup>(world.new_group({0, 1}));
    int x = 1, y = 10;
    other->all_reduce(y, async).wait();
    other->close();
    const std::weak_ptr<ProcessGroup> watched = other;
    Work work = world.all_reduce(x, async).then([other](const Error*) {});
    other.reset();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!watched.expired() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(watched.expired());
    work.wait();
    world.barrier();
  });
}

TEST(Then, WhatBlocksIsRefusedAndTheGroupStaysUsable) {
  on_ranks(2, [](ProcessGroup& world) {
    int x = 1, calls = 0;
    const auto refused = [&](auto&& call) {
      const Error error = thrown_by(call);
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      EXPECT_EQ(error.context().rank, world.rank()) << error.what();
      EXPECT_TRUE(error.context().call_site.starts_with("then_test.cc:")) << error.what();
      ++calls;
    };
    int other = 0;
    world.all_reduce(x, async)
        .then([&](const Error*) {
          refused([&] { world.all_reduce(other); });
          refused([&] { world.barrier(); });
          refused([&] { world.send(other, 1 - world.rank()); });
          refused([&] { world.batch(std::vector<Message>{Message::recv(other, 0)}); });
          refused([&] { world.new_group({0, 1}); });
          refused([&] { world.close(); });
        })
        .wait();
    EXPECT_EQ(calls, 6);
    world.barrier();
  });
}

TEST(Then, IsToldOfTheFailureOfTheGroup) {
  test_kit::collect_ranks(2, [](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    if (me.rank == 1) {
      world.abort("enough");
      return {};
    }
    int x = 1;
    std::atomic<int> told{-1};
    Work work = world.recv(x, 1, async).then([&](const Error* failure) {
      told = failure == nullptr ? -2 : static_cast<int>(failure->code());
    });
    EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kAborted);
    EXPECT_EQ(told.load(), static_cast<int>(ErrorCode::kAborted));
    return {};
  });
}

TEST(Then, WhatACallbackThrowsBeginsWithTheOperation) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup other = world.new_group({1, 0});
    const std::string rank = std::to_string(other.rank());
    int x = 1;
    Work work = other.all_reduce(x, async, {"step.cc", 7}).then([](const Error*) {
      throw std::runtime_error("out of luck");
    });
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.context().rank, other.rank());
    EXPECT_EQ(error.what(), "all_reduce #1 of group " + other.name() + " (rank " + rank +
                                ") at step.cc:7: the callback given to Work::then threw: out of "
                                "luck.");
    Work later = world.send(x, world.rank(), {.buffered = true}, async, {"step.cc", 8})
                     .then([](const Error*) {})
                     .then([](const Error*) { throw 7; });
    expect_text(thrown_by([&] { later.wait(); }),
                "send (rank " + std::to_string(world.rank()) + ") at step.cc:8: the callback");
    world.recv(x, world.rank());
  });
}

}  // namespace
}  // namespace tutti
