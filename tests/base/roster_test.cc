// Who is where.
#include "base/roster.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "tutti/error.h"

namespace tutti {
namespace {

// None of the three numbers of a process stands for another.
static_assert(!std::is_convertible_v<int, WorldRank> && !std::is_convertible_v<WorldRank, int>);
static_assert(!std::is_convertible_v<int, SlotIndex> && !std::is_convertible_v<SlotIndex, int>);
static_assert(!std::is_constructible_v<SlotIndex, WorldRank>);
static_assert(!std::is_constructible_v<WorldRank, SlotIndex>);

std::string why_refused(const std::vector<std::vector<int>>& ranks_of_hosts, int own_host = 0) {
  std::vector<Roster::HostRanks> hosts;
  for (const auto& ranks : ranks_of_hosts)
    hosts.push_back({"h" + std::to_string(hosts.size()), world_ranks(ranks)});
  try {
    const Roster roster(hosts, own_host);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(Roster, OneHostHasEveryRankInTheSlotOfItsNumber) {
  const Roster roster = Roster::of_one_host(3, "alone");
  EXPECT_EQ(roster.world_size(), 3);
  EXPECT_EQ(roster.host_count(), 1);
  EXPECT_EQ(roster.own().name, "alone");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(roster.is_here(WorldRank(rank)));
    EXPECT_EQ(roster.slot_of(WorldRank(rank)), SlotIndex(rank));
    EXPECT_EQ(roster.rank_in(SlotIndex(rank)), WorldRank(rank));
  }
}

TEST(Roster, SlotsCountOnEachHost) {
  const Roster roster({{"a", world_ranks({0, 3})}, {"b", world_ranks({4, 1, 2})}}, 1);
  EXPECT_EQ(roster.world_size(), 5);
  EXPECT_EQ(roster.host_of(WorldRank(3)), 0);
  EXPECT_EQ(roster.slot_of(WorldRank(3)), SlotIndex(1));
  EXPECT_FALSE(roster.is_here(WorldRank(0)));
  EXPECT_TRUE(roster.is_here(WorldRank(4)));
  EXPECT_EQ(roster.slot_of(WorldRank(2)), SlotIndex(2));
  EXPECT_EQ(roster.rank_in(SlotIndex(0)), WorldRank(4));
  EXPECT_EQ(roster.host(0).ranks, world_ranks({0, 3}));
}

TEST(Roster, OneThatCannotBeIsRefused) {
  EXPECT_NE(why_refused({{0, 1}, {1}}).find("rank 1 is on host h0 and again on host h1"),
            std::string::npos);
  EXPECT_NE(why_refused({{0, 0}}).find("rank 0 is on host h0 and again on host h0"),
            std::string::npos);
  EXPECT_NE(why_refused({{0, 1}, {}}).find("host h1 has no ranks"), std::string::npos);
  EXPECT_NE(why_refused({{0}, {2}}).find("rank 2 of 2 does not exist"), std::string::npos);
  EXPECT_NE(why_refused({{0}, {-1}}).find("rank -1 of 2 does not exist"), std::string::npos);
  EXPECT_NE(why_refused({{0}}, 1).find("there is no host 1 of 1"), std::string::npos);
  EXPECT_NE(why_refused({}).find("there is no host 0 of 0"), std::string::npos);
  EXPECT_EQ(why_refused({{1, 0}, {2}}), "");
}

}  // namespace
}  // namespace tutti
