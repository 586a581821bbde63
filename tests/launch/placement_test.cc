#include "launch/placement.h"

#include <gtest/gtest.h>

#include "tutti/error.h"

namespace tutti::launch {
namespace {

TEST(Placement, OneHostCountsUp) {
  const std::vector<Binding> bindings = {{{0}, 1, 1}, {{1}, 1, 1}, {{5}, 1, 1}};
  const Placement placement = place_on_host({4, 5, 7}, "here", bindings);
  ASSERT_EQ(placement.ranks.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    const Place& place = placement.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(place.rank, rank == 2 ? 7 : rank + 4);
    EXPECT_EQ(place.local_rank, rank);
    EXPECT_EQ(place.host, "here");
    EXPECT_EQ(place.binding.threads, bindings[static_cast<std::size_t>(rank)].threads);
  }
}

TEST(RankEnvironment, AreTorchruns) {
  const Placement placement = place_on_host({0, 1, 2, 3}, "here", std::vector<Binding>(4));
  const Environment variables =
      rank_variables({{"HOME", "/h"}, {"RANK", "77"}}, placement, 2,
                     {"@tutti-x", "127.0.0.1", 29500, "job-7", "default", 1, 3});
  const Environment wanted = {{"HOME", "/h"},
                              {"RANK", "2"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "2"},
                              {"LOCAL_WORLD_SIZE", "4"},
                              {"GROUP_RANK", "0"},
                              {"GROUP_WORLD_SIZE", "1"},
                              {"ROLE_NAME", "default"},
                              {"ROLE_RANK", "2"},
                              {"ROLE_WORLD_SIZE", "4"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_RUN_ID", "job-7"},
                              {"TORCHELASTIC_RESTART_COUNT", "1"},
                              {"TORCHELASTIC_MAX_RESTARTS", "3"},
                              {"TUTTI_AGENT", "@tutti-x"},
                              {"TUTTI_RUN_AROUND", ""}};
  EXPECT_EQ(variables, wanted);
  const Environment under_mpirun = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(rank_variables(under_mpirun, placement, 0, {}).at("TUTTI_RUN_AROUND"),
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2;");
}

TEST(RankEnvironment, NothingOfAnOuterTorchrunIsInherited) {
  // What torchrun 2.x gives its workers, one of which is tutti run.
  const Environment outer = {{"TORCHELASTIC_RUN_ID", "outer"},
                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                             {"TORCHELASTIC_MAX_RESTARTS", "3"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic/0/error.json"},
                             {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM"},
                             {"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "3"},
                             {"LOCAL_WORLD_SIZE", "8"},
                             {"GROUP_RANK", "2"},
                             {"GROUP_WORLD_SIZE", "4"},
                             {"ROLE_NAME", "trainer"},
                             {"ROLE_RANK", "3"},
                             {"ROLE_WORLD_SIZE", "8"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29400"}};
  const Placement placement = place_on_host({0, 1}, "here", std::vector<Binding>(2));
  EXPECT_EQ(
      rank_variables(outer, placement, 1,
                     {"@tutti-x", "127.0.0.1", 29500, "job-7", "default", 1, 3}),
      rank_variables({}, placement, 1, {"@tutti-x", "127.0.0.1", 29500, "job-7", "default", 1, 3}));
  EXPECT_NE(master_port(outer), 29400) << "torchrun's own store listens there";
  EXPECT_EQ(master_port({{"MASTER_PORT", "29400"}}), 29400);
  const Environment setting = {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}, {"MASTER_PORT", "29400"}};
  EXPECT_EQ(master_port(setting), 29400) << "a setting of the user's tells of no torchrun";
  EXPECT_TRUE(rank_variables(setting, placement, 1, {}).contains("TORCHELASTIC_ENABLE_FILE_TIMER"));
  for (const char* const odd : {"70000", "abc", "-1", "29400 "})
    EXPECT_THROW(master_port({{"MASTER_PORT", odd}}), Error) << odd;
}

TEST(ThreadDefaults, SharesCoresAndSaysSoOnce) {
  const ThreadDefaults defaults = thread_defaults({}, 8, 3);
  EXPECT_EQ(defaults.added,
            (Environment{{"OMP_NUM_THREADS", "2"}, {"OMP_WAIT_POLICY", "PASSIVE"}}));
  EXPECT_NE(defaults.notice.find("OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE"), std::string::npos);
  EXPECT_NE(defaults.notice.find("8 cores, 3 ranks"), std::string::npos);
}

TEST(ThreadDefaults, NeverLessThanOneAndNeverOverWhatIsSet) {
  EXPECT_EQ(thread_defaults({}, 2, 4).added.at("OMP_NUM_THREADS"), "1");
  const ThreadDefaults set =
      thread_defaults({{"OMP_NUM_THREADS", "5"}, {"OMP_WAIT_POLICY", "ACTIVE"}}, 2, 4);
  EXPECT_TRUE(set.added.empty());
  EXPECT_EQ(set.notice, "");
}

}  // namespace
}  // namespace tutti::launch
