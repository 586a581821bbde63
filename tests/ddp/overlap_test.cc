// Whether a host has a core to spare for what overlaps with backward.
#include "ddp/overlap.h"

#include <gtest/gtest.h>

#include <vector>

#include "tutti/test_kit.h"

namespace tutti::ddp {
namespace {

/// A rank that may run on these cores.
Computing on(std::initializer_list<int> cores, int threads = 1) {
  Computing rank{{}, threads};
  for (const int core : cores) rank.cores.mask[0] |= std::uint64_t{1} << core;
  return rank;
}

TEST(Overlap, ACoreIsSpareThatNoRankComputesOn) {
  EXPECT_FALSE(has_spare_core(std::vector{on({0, 1}), on({0, 1})}));
  EXPECT_TRUE(has_spare_core(std::vector{on({0, 1, 2}), on({0, 1, 2})}));
  EXPECT_FALSE(has_spare_core(std::vector{on({0, 1, 2}, 2), on({0, 1, 2}, 2)}));
}

TEST(Overlap, RanksThatAreBoundHaveWhatTheirCoresLeave) {
  EXPECT_FALSE(has_spare_core(std::vector{on({0}), on({1})}));
  EXPECT_TRUE(has_spare_core(std::vector{on({0, 1}), on({2, 3})}));
  EXPECT_FALSE(has_spare_core(std::vector{on({0, 1}, 2), on({2, 3}, 2)}));
}

TEST(Overlap, AQuotaCountsAsSoManyCores) {
  std::vector<Computing> ranks{on({0, 1, 2, 3}), on({0, 1, 2, 3})};
  ranks[1].cores.quota = 2;
  EXPECT_FALSE(has_spare_core(ranks));
  ranks[1].cores.quota = 3;
  EXPECT_TRUE(has_spare_core(ranks));
}

TEST(Overlap, ALinkWorksMeanwhileAndADevice) {
  std::vector<Computing> ranks{on({0, 1}), on({0, 1})};
  EXPECT_EQ(overlap_of(ranks, true), Overlap::none);
  EXPECT_EQ(overlap_of(ranks, false), Overlap::but_last);
  ranks[0] = on({0, 1, 2});
  EXPECT_EQ(overlap_of(ranks, true), Overlap::but_last);
  ranks[1].on_device = 1;
  EXPECT_EQ(overlap_of(ranks, true), Overlap::whole);
  EXPECT_EQ(overlap_of(ranks, false), Overlap::whole);
}

TEST(Overlap, AllRanksDecideTheSame) {
  test_kit::run_ranks(3, [](ProcessGroup& world) {
    // One of them computes on all that there are.
    const int threads = world.rank() == 1 ? own_cores().count() : 1;
    EXPECT_EQ(choose_overlap(world, threads, false, Where::current()), Overlap::none);
    const bool on_device = world.rank() == 2;
    EXPECT_EQ(choose_overlap(world, threads, on_device, Where::current()), Overlap::whole);
  });
}

}  // namespace
}  // namespace tutti::ddp
