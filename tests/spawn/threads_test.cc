// Spawned ranks that are threads: also under TSan.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "base/rank_thread.h"
#include "spawn/ways.h"
#include "tutti/init.h"
#include "tutti/spawn.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

TEST(SpawnThreads, RanksMakeTheirWorlds) {
  std::atomic<int> sum{0};
  Spawned ranks = spawn(3,
                        [&](int rank) {
                          auto world = init_process_group();
                          auto again = init_process_group();
                          auto part = world.new_group({2, 0});
                          const int all = again.all_reduce_value(rank);
                          if (rank != 1) sum += part.all_reduce_value(all);
                        },
                        {.start = Start::thread});
  ranks.join(60s);
  EXPECT_EQ(sum, 12);
  EXPECT_EQ(ranks.pid(0), ::getpid());
  EXPECT_EQ(ranks.exit_code(2), 0);
}

TEST(SpawnThreads, TheFirstToFailIsNamed) {
  for (const auto& [way, code] : {std::pair{"error", ErrorCode::kUnsupported},
                                  {"throws", ErrorCode::kPeerLost},
                                  {"returns", ErrorCode::kPeerLost},
                                  {"waits", ErrorCode::kTimeout}}) {
    const bool hangs = code == ErrorCode::kTimeout;
    const ways::Result result = ways::attempt(Start::thread, way, hangs ? 10s : 60s, 30s);
    EXPECT_EQ(result.code, code) << result.text;
    EXPECT_EQ(result.culprits, std::vector<int>{ways::kCulprit}) << result.text;
    EXPECT_GT(result.exit_codes.at(ways::kCulprit), 0);
  }
}

TEST(SpawnThreads, WhoComesToTheDoorFirstDoesNotMatter) {
  for (int i = 0; i < 200; ++i) {
    const ways::Result result = ways::attempt(Start::thread, "error", 60s, 30s);
    ASSERT_EQ(result.culprits, std::vector<int>{ways::kCulprit}) << result.text;
  }
}

TEST(SpawnThreads, OneThatWaitsForTheOthersInInitIsEnded) {
  Spawned ranks = spawn(2,
                        [](int rank) {
                          if (rank == 0) throw std::runtime_error("not today");
                          init_process_group();
                        },
                        {.start = Start::thread});
  try {
    ranks.join(60s);
    ADD_FAILURE() << "it ended well";
  } catch (const Error& error) {
    EXPECT_EQ(error.context().culprits, std::vector<int>{0}) << error.what();
    EXPECT_NE(std::string(error.what()).find("threw: not today"), std::string::npos);
  }
}

TEST(SpawnThreads, OneThatCannotBeEndedIsLeftAndSaid) {
  const auto is_released = std::make_shared<std::atomic<bool>>(false);  // rank 1 may end late
  Spawned ranks = spawn(2,
                        [is_released](int rank) {
                          while (rank == 1 && !*is_released) std::this_thread::sleep_for(1ms);
                        },
                        {.start = Start::thread, .grace = 50ms});
  while (!ranks.exit_code(0)) std::this_thread::sleep_for(1ms);
  try {
    ranks.join(200ms);
    ADD_FAILURE() << "it ended well";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_NE(std::string(error.what()).find("is left: the threads of rank 1"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(ranks.exit_code(1), std::nullopt);
  *is_released = true;
}

TEST(Recall, FailsWhatIsKnownAndWhatComesLater) {
  const auto recall = std::make_shared<Recall>();
  int failed = 0;
  const auto fail = [&](const std::string& reason) { failed += reason == "over" ? 1 : 100; };
  Recall::Entry stays = Recall::add(recall, fail);
  { const Recall::Entry leaves = Recall::add(recall, fail); }
  recall->recall("over");
  EXPECT_EQ(failed, 1);
  recall->recall("again");
  EXPECT_EQ(failed, 1);
  const Recall::Entry late = Recall::add(recall, fail);
  EXPECT_EQ(failed, 2);
  stays = {};
  Recall::add(nullptr, fail);
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace tutti
