// scan and exclusive_scan as a program sees them.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ranks.h"

namespace tutti {
namespace {

TEST(Scan, CoversTheRanksUpToTheOwn) {
  on_ranks(4, [](ProcessGroup& world) {
    std::vector<int> data = {1, world.rank()};
    world.scan(data);
    EXPECT_EQ(data, (std::vector<int>{world.rank() + 1, world.rank() * (world.rank() + 1) / 2}));
    float least = static_cast<float>(-world.rank());
    world.scan(least, {.op = ReduceOp::min}, async).wait();
    EXPECT_EQ(least, static_cast<float>(-world.rank()));
  });
}

TEST(Scan, ExclusiveStopsBelowTheOwnAndStartsWithTheIdentity) {
  on_ranks(3, [](ProcessGroup& world) {
    const int mine = world.rank() + 2;
    int product = -1;
    world.exclusive_scan(mine, product, {.op = ReduceOp::product});
    EXPECT_EQ(product, std::vector({1, 2, 6})[static_cast<std::size_t>(world.rank())]);
    double most = world.rank();
    world.exclusive_scan(most, {.op = ReduceOp::max}, async).wait();
    const double below = world.rank() - 1;
    EXPECT_EQ(most, world.rank() == 0 ? -std::numeric_limits<double>::infinity() : below);
  });
}

TEST(Scan, HasTheBitsOfAnAllReduceOverTheRanksItCovers) {
  on_ranks(5, [](ProcessGroup& world) {
    std::vector<float> mine(1000);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i] = 1.0f / static_cast<float>(i + 7 * static_cast<std::size_t>(world.rank()) + 1);
    }
    std::vector<float> scanned(mine.size());
    world.scan(mine, scanned);
    for (int last = 0; last < world.world_size(); ++last) {
      std::vector<int> ranks;
      for (int rank = 0; rank <= last; ++rank) ranks.push_back(rank);
      ProcessGroup group = world.new_group(ranks);
      if (!group.is_member()) continue;
      std::vector<float> reduced = mine;
      group.all_reduce(reduced);
      if (world.rank() == last) {
        EXPECT_EQ(scanned, reduced);
      }
      group.close();
    }
  });
}

TEST(Scan, HasNoAverage) {
  on_ranks(2, [](ProcessGroup& world) {
    float x = 1;
    const Error error = thrown_by([&] { world.scan(x, {.op = ReduceOp::avg}); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    expect_text(error, "a scan has no average");
    world.all_reduce(x, ReduceOp::avg);  // the group stays usable
    EXPECT_FALSE(world.supports({Op::exclusive_scan, DType::f32, ReduceOp::Kind::avg, {}}).yes);
  });
}

TEST(Scan, IsNotAnExclusiveScan) {
  test_kit::collect_ranks(2, [](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    int x = 1;
    const Error error = thrown_by([&] {
      me.rank == 0 ? world.scan(x) : world.exclusive_scan(x);
      world.barrier();  // rank 0 of a scan may have left by then
    });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
    expect_text(error, "exclusive_scan(i32 x 1, sum)");
    return {};
  });
}

}  // namespace
}  // namespace tutti
