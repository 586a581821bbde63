// Where the control thread of a rank finds no memory.
#include <gtest/gtest.h>

#include "control/forked_ranks.h"
#include "op_patience.h"
#include "refused_memory.h"

namespace tutti::control {
namespace {

/// Rank 0 decides. From its allocation number `first` on some are refused: once, so that the part
/// is begun anew, or for some ticks.
void lose_one(std::size_t first, std::size_t count) {
  SCOPED_TRACE(std::to_string(count) + " from " + std::to_string(first));
  ForkedRanks ranks(3, [&](Host&, Membership& world, ChildReport& report) {
    const Request request = collective(Op::all_reduce, 1);
    world.enter(request);
    if (world.rank() == 0) refuse_memory_of("tutti-control", first, count);
    report.stage.store(1);
    OpPatience patience(world, request, -1);
    wait(world.waiter(), patience, [] { return false; });
    while (report.code.load() < 0) usleep(1000);
    report.stage.store(2 + static_cast<int>(refusals()));
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.kill_now(2);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks.reap(rank, std::chrono::seconds(20)), 0) << "rank " << rank;
    EXPECT_EQ(ranks.report(rank).code.load(), static_cast<int>(ErrorCode::kPeerLost));
    EXPECT_EQ(ranks.culprits(rank), std::vector<int>{2}) << ranks.report(rank).text.data();
  }
  if (first == 1) {
    EXPECT_EQ(ranks.report(0).stage.load(), 2 + static_cast<int>(count));
  }
}

TEST(ControlMemory, ADeathIsToldAllTheSame) {
  for (std::size_t first = 1; first <= 60; ++first) {
    lose_one(first, 1);
    if (first % 3 == 0) lose_one(first, 2);
    if (HasFailure()) return;
  }
  lose_one(1, 40);
}

}  // namespace
}  // namespace tutti::control
