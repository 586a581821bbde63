// Who is missing at a barrier.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ranks.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

/// Four ranks, of which 3 has done nothing and 2 one operation when 0 and 1 `meet`.
void with_two_missing(const std::function<void(ProcessGroup&)>& meet,
                      const std::vector<int>& named) {
  std::atomic<int> told{0};
  const auto outcomes = test_kit::collect_ranks(4, [&](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    int x = 1;
    if (me.rank < 3) world.scan(x);  // needs lower ranks only
    if (me.rank >= 2) {
      while (told.load() < 2) std::this_thread::yield();
    }
    const Error error = thrown_by([&] { me.rank < 2 ? meet(world) : world.barrier(); });
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
  with_two_missing(
      [](ProcessGroup& world) { world.monitored_barrier({.timeout = milliseconds(200)}); }, {2, 3});
}

TEST(MonitoredBarrier, NamesThoseFurthestBehindIfToldSo) {
  const MonitoredBarrierOptions options = {.timeout = milliseconds(200), .wait_all_ranks = false};
  with_two_missing(
      [&](ProcessGroup& world) {
        try {
          world.monitored_barrier(options, {"step.cc", 9});
        } catch (const Error& error) {
          EXPECT_EQ(error.context().op, "monitored_barrier");
          EXPECT_TRUE(std::string(error.what()).starts_with("monitored_barrier #2 (rank "));
          throw;
        }
      },
      {3});
  with_two_missing([](ProcessGroup& world) { world.barrier({.timeout = milliseconds(200)}); }, {3});
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
