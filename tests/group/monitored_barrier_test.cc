// Who is missing at a barrier.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ranks.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

/// Returns once the board shows that rank 1 is in barrier #2.
void await_barrier_of_rank_1(ProcessGroup& world) {
  for (int tries = 0; tries < 4000; ++tries) {
    int x = 0;
    const Error error =
        thrown_by([&] { world.recv(x, 1, {.tag = 99, .timeout = milliseconds(5)}); });
    if (std::string(error.what()).find("barrier #2") != std::string::npos) return;
  }
  ADD_FAILURE() << "rank 1 has not called";
}

/// Four ranks, of which 3 has done nothing and 2 one operation when 0 and 1 `meet`: rank 1 first,
/// and it is rank 0's time that ends.
void with_two_missing(const std::function<void(ProcessGroup&, milliseconds)>& meet,
                      const std::vector<int>& named) {
  std::atomic<int> told{0}, scanned{0};
  const auto outcomes = test_kit::collect_ranks(4, [&](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    int x = 1;
    if (me.rank < 3) {
      world.scan(x);  // needs lower ranks only
      ++scanned;
    }
    while (me.rank < 2 && scanned.load() < 3) std::this_thread::yield();
    if (me.rank == 0) await_barrier_of_rank_1(world);
    if (me.rank >= 2) {
      while (told.load() < 2) std::this_thread::yield();
    }
    const Error error = thrown_by([&] {
      me.rank < 2 ? meet(world, milliseconds(me.rank == 0 ? 200 : 20'000)) : world.barrier();
    });
    told.fetch_add(1);
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    EXPECT_EQ(error.context().culprits, named) << error.what();
    for (const int rank : named) expect_text(error, "rank " + std::to_string(rank));
    if (me.rank < 2 && named.size() == 2) {
      EXPECT_EQ(error.context().op, "monitored_barrier");
      expect_text(error, "last completed scan #1");
      expect_text(error, "has completed no collective yet");
    }
    return {};
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

TEST(MonitoredBarrier, NamesEveryMissingRankOnEveryRank) {
  with_two_missing([](ProcessGroup& world,
                      milliseconds timeout) { world.monitored_barrier({.timeout = timeout}); },
                   {2, 3});
}

TEST(MonitoredBarrier, NamesThoseFurthestBehindIfToldSo) {
  with_two_missing(
      [](ProcessGroup& world, milliseconds timeout) {
        try {
          world.monitored_barrier({.timeout = timeout, .wait_all_ranks = false}, {"step.cc", 9});
        } catch (const Error& error) {
          EXPECT_EQ(error.context().op, "monitored_barrier");
          EXPECT_TRUE(std::string(error.what()).starts_with("monitored_barrier #2 (rank "));
          throw;
        }
      },
      {3});
  with_two_missing(
      [](ProcessGroup& world, milliseconds timeout) { world.barrier({.timeout = timeout}); }, {3});
}

TEST(MonitoredBarrier, IsABarrier) {
  on_ranks(3, [](ProcessGroup& world) {
    for (int i = 0; i < 20; ++i) {
      i % 2 == 0 ? world.monitored_barrier() : world.monitored_barrier({.wait_all_ranks = false});
    }
  });
}

}  // namespace
}  // namespace tutti
