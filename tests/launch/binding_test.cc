// Which cores each rank gets: on made-up machines, as hwloc describes them.
#include "launch/binding.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/rank_list.h"
#include "launch/refusal.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

/// On made-up machines: where Tutti was built with hwloc, which makes them up.
class BindingTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      topology_of("core:1 pu:1");
    } catch (const Error&) {
      GTEST_SKIP() << "built without hwloc";
    }
  }
};

/// "0-1 | 2-3": the hardware threads of each rank.
std::string map_of(const Topology& topology, int ranks, BindTo to, MapBy by) {
  std::string text;
  for (const Binding& binding : bind_ranks(topology, ranks, to, by)) {
    text += (text.empty() ? "" : " | ") + format_ranks(binding.threads);
  }
  return text;
}

struct Golden {
  const char* machine;
  int ranks;
  BindTo to;
  MapBy by;
  const char* map;
};

constexpr auto kNone = BindTo::none, kCore = BindTo::core, kNuma = BindTo::numa;
constexpr auto kSlot = MapBy::slot, kByNuma = MapBy::numa;

const Golden kGolden[] = {
    {"core:1 pu:1", 1, kNone, kSlot, "0"},
    {"core:1 pu:1", 3, kNone, kSlot, "0 | 0 | 0"},
    {"core:1 pu:1", 1, kCore, kSlot, "0"},
    {"core:1 pu:1", 2, kNuma, kSlot, "0 | 0"},
    {"core:4 pu:1", 1, kNone, kSlot, "0-3"},
    {"core:4 pu:1", 2, kNone, kByNuma, "0-3 | 0-3"},
    {"core:4 pu:1", 4, kCore, kSlot, "0 | 1 | 2 | 3"},
    {"core:4 pu:1", 2, kCore, kSlot, "0 | 1"},
    {"core:4 pu:1", 3, kCore, kByNuma, "0 | 1 | 2"},
    {"core:4 pu:1", 8, kNuma, kSlot, "0-3 | 0-3 | 0-3 | 0-3 | 0-3 | 0-3 | 0-3 | 0-3"},
    {"core:2 pu:2", 2, kCore, kSlot, "0-1 | 2-3"},
    {"core:2 pu:2", 1, kCore, kSlot, "0-1"},
    {"core:2 pu:2", 2, kNuma, kSlot, "0-3 | 0-3"},
    {"core:2 pu:4", 2, kCore, kByNuma, "0-3 | 4-7"},
    {"numa:2 core:2 pu:1", 4, kCore, kSlot, "0 | 1 | 2 | 3"},
    {"numa:2 core:2 pu:1", 4, kCore, kByNuma, "0 | 2 | 1 | 3"},
    {"numa:2 core:2 pu:1", 2, kCore, kByNuma, "0 | 2"},
    {"numa:2 core:2 pu:1", 2, kNuma, kSlot, "0-1 | 0-1"},
    {"numa:2 core:2 pu:1", 2, kNuma, kByNuma, "0-1 | 2-3"},
    {"numa:2 core:2 pu:1", 3, kNuma, kByNuma, "0-1 | 2-3 | 0-1"},
    {"numa:2 core:2 pu:1", 4, kNuma, kSlot, "0-1 | 0-1 | 2-3 | 2-3"},
    {"numa:2 core:2 pu:1", 8, kNuma, kSlot, "0-1 | 0-1 | 0-1 | 0-1 | 2-3 | 2-3 | 2-3 | 2-3"},
    {"numa:2 core:2 pu:1", 8, kNuma, kByNuma, "0-1 | 2-3 | 0-1 | 2-3 | 0-1 | 2-3 | 0-1 | 2-3"},
    {"numa:2 core:2 pu:1", 5, kNuma, kSlot, "0-1 | 0-1 | 0-1 | 2-3 | 2-3"},
    {"numa:2 core:2 pu:1", 2, kNone, kByNuma, "0-3 | 0-3"},
    {"numa:2 core:2 pu:2", 4, kCore, kByNuma, "0-1 | 4-5 | 2-3 | 6-7"},
    {"numa:2 core:2 pu:2", 2, kNuma, kByNuma, "0-3 | 4-7"},
    {"numa:4 core:1 pu:1", 4, kNuma, kByNuma, "0 | 1 | 2 | 3"},
    {"numa:4 core:2 pu:1", 4, kCore, kByNuma, "0 | 2 | 4 | 6"},
    {"numa:4 core:2 pu:1", 6, kCore, kByNuma, "0 | 2 | 4 | 6 | 1 | 3"},
    {"numa:4 core:2 pu:1", 4, kNuma, kSlot, "0-1 | 0-1 | 2-3 | 2-3"},
    {"pack:2 numa:2 core:2 pu:1", 4, kNuma, kByNuma, "0-1 | 2-3 | 4-5 | 6-7"},
    {"pack:2 core:2 pu:1", 2, kNuma, kByNuma, "0-3 | 0-3"},
};

TEST_F(BindingTest, IsAsItWasOnMadeUpMachines) {
  static_assert(std::size(kGolden) >= 30);
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(map_of(topology_of(golden.machine), golden.ranks, golden.to, golden.by), golden.map)
        << golden.ranks << " ranks on " << golden.machine;
  }
}

TEST_F(BindingTest, UsesOnlyWhatTheProcessMayUse) {
  const Topology topology = topology_of("numa:2 core:2 pu:2", {1, 5, 6, 7});
  EXPECT_EQ(topology.cores.size(), 3u);
  EXPECT_EQ(map_of(topology, 3, kCore, kSlot), "1 | 5 | 6-7");
  EXPECT_EQ(map_of(topology, 2, kNuma, kByNuma), "1 | 5-7");
  EXPECT_EQ(map_of(topology, 1, kNone, kSlot), "1, 5-7");
}

TEST_F(BindingTest, CountsWhoShares) {
  const auto bindings = bind_ranks(topology_of("numa:2 core:2 pu:2"), 3, kNuma, kByNuma);
  EXPECT_EQ(bindings[0].sharers, 2);
  EXPECT_EQ(bindings[1].sharers, 1);
  EXPECT_EQ(bindings[1].core_count, 2);
}

TEST_F(BindingTest, MoreRanksThanCoresAreRefused) {
  EXPECT_EQ(refusal_of([] { bind_ranks(topology_of("core:2 pu:2"), 3, kCore, kSlot); }),
            "--bind-to core: 3 ranks, and 2 cores that may be used here; bind to numa or none, or "
            "start fewer");
}

TEST(BindingWords, AreMpiruns) {
  EXPECT_EQ(parse_bind_to("--bind-to", "numa"), kNuma);
  for (const char* const by : {"slot", "core", "node"})
    EXPECT_EQ(parse_map_by("--map-by", by), kSlot) << by;
  EXPECT_EQ(refusal_of([] { parse_bind_to("--bind-to", "socket"); }),
            "--bind-to socket: give none, core or numa");
  EXPECT_EQ(refusal_of([] { parse_map_by("--map-by", "socket"); }),
            "--map-by socket: give slot, core, node or numa");
}

/// Open MPI's, that ask for what there is not.
TEST(BindingWords, AreRefusedWithTheWayOut) {
  EXPECT_EQ(refusal_of([] { parse_bind_to("--bind-to", "hwthread"); }),
            "--bind-to hwthread: a rank gets a core with all its hardware threads: give core");
  EXPECT_EQ(refusal_of([] { parse_bind_to("--bind-to", "core:overload-allowed"); }),
            "--bind-to core:overload-allowed: a core is for one rank: give core; more ranks than "
            "cores are bound to numa or none");
  EXPECT_EQ(refusal_of([] { parse_map_by("--map-by", "core:PE=1"); }),
            "--map-by core:PE=1: give core alone; --bind-to core gives each rank a core, "
            "--oversubscribe allows more ranks than slots");
  EXPECT_EQ(refusal_of([] { parse_map_by("--map-by", "ppr:2:node"); }),
            "--map-by ppr:2:node: give slot, core, node or numa");
}

TEST(Topology, OfThisHostIsWhatThisProcessMayUse) {
  for (const BindTo to : {kNone, kCore}) {
    const Topology topology = topology_of_this_host(to);
    ASSERT_FALSE(topology.cores.empty());
    for (const Core& core : topology.cores) EXPECT_FALSE(core.threads.empty());
  }
  EXPECT_EQ(map_of(topology_of_this_host(kNone), 1, kNone, kSlot),
            map_of(topology_of_this_host(kCore), 1, kNone, kSlot));
}

}  // namespace
}  // namespace tutti::launch
