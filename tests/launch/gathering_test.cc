// Who waits in init, and whether in vain: without processes and without a clock.
#include "launch/gathering.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;
using Clock = Gathering::Clock;

constexpr int kWell = 0;
const int kFailed = W_EXITCODE(3, 0);

class GatheringTest : public testing::Test {
 protected:
  Clock::time_point at(Clock::duration since) const { return begin_ + since; }

  Gathering ranks_{4};
  const Clock::time_point begin_ = Clock::time_point(1h);
};

TEST_F(GatheringTest, NobodyWaitsBeforeTheFirstHasJoined) {
  ranks_.ended(0, kWell);
  ranks_.ended(1, kFailed);
  EXPECT_FALSE(ranks_.judge(at(1h)));
  EXPECT_FALSE(ranks_.say_who_is_missing(at(1h)));
  EXPECT_EQ(ranks_.next_event(), Clock::time_point::max());
}

TEST_F(GatheringTest, WhoEndsWellWithoutHavingJoinedIsLostAtOnce) {
  ranks_.joined(1, at(0s));
  ranks_.joined(3, at(0s));
  ranks_.ended(2, kWell);
  const auto reason = ranks_.judge(at(1s));
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(*reason,
            "rank 2 ended without having joined in init_process_group (exit code 0); ranks 1, 3 "
            "wait for it");
  EXPECT_EQ(ranks_.lost_rank(), 2);
  EXPECT_TRUE(ranks_.awaited_by(1).empty()) << "for rank 0, which is slow";
  EXPECT_FALSE(ranks_.judge(at(2s))) << "it is said once";
}

TEST_F(GatheringTest, WhomTheyAwaitedWhenAllWereAskedToEndDoesNotDependOnWhoEndsFirst) {
  for (const int rank : {0, 1, 3}) ranks_.joined(rank, at(0s));
  EXPECT_EQ(ranks_.awaited_by(0), std::vector{2});
  ranks_.asked_to_end();
  for (const int rank : {2, 0, 1, 3}) ranks_.ended(rank, SIGTERM);
  for (const int rank : {0, 1, 3}) EXPECT_EQ(ranks_.awaited_by(rank), std::vector{2});
  EXPECT_TRUE(ranks_.awaited_by(2).empty());
}

TEST_F(GatheringTest, WhoComesAfterAllWereAskedToEndIsAwaitedNoMore) {
  ranks_.joined(0, at(0s));
  ranks_.asked_to_end();
  ranks_.joined(2, at(1s));
  EXPECT_EQ(ranks_.awaited_by(0), (std::vector{1, 3}));
  EXPECT_EQ(ranks_.awaited_by(2), (std::vector{1, 3}));
}

TEST_F(GatheringTest, WhoFailedGetsAMoment) {
  ranks_.joined(0, at(0s));
  ranks_.joined(1, at(0s));
  ranks_.ended(1, kFailed);
  EXPECT_FALSE(ranks_.judge(at(1s)));
  EXPECT_EQ(ranks_.next_event(), at(1s + 300ms));
  EXPECT_FALSE(ranks_.judge(at(1s + 299ms)));
  const auto reason = ranks_.judge(at(1s + 300ms));
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(*reason,
            "rank 1 left init_process_group before the world was complete (exit code 3); rank 0 "
            "waits for it");
}

TEST_F(GatheringTest, NobodyIsLostOnceNobodyWaits) {
  ranks_.joined(0, at(0s));
  ranks_.ended(1, W_EXITCODE(0, SIGKILL));
  EXPECT_FALSE(ranks_.judge(at(0s)));
  ranks_.ended(0, kFailed);  // it has found out for itself
  EXPECT_FALSE(ranks_.judge(at(10s)));
  EXPECT_EQ(ranks_.lost_rank(), -1);
}

TEST_F(GatheringTest, WhoHasMetAndEndsIsNotLost) {
  for (int rank = 0; rank < 4; ++rank) ranks_.joined(rank, at(0s));
  ranks_.met(0);
  ranks_.ended(0, kWell);
  EXPECT_FALSE(ranks_.judge(at(10s))) << "the others come out of init in a moment";
  EXPECT_TRUE(ranks_.has_met(0));
  EXPECT_FALSE(ranks_.has_met(1));
}

TEST_F(GatheringTest, TheFirstToEndIsTheLostOne) {
  ranks_.joined(3, at(0s));
  ranks_.ended(2, kWell);
  ranks_.ended(0, kWell);
  ASSERT_TRUE(ranks_.judge(at(0s)));
  EXPECT_EQ(ranks_.lost_rank(), 2);
}

TEST_F(GatheringTest, MissingRanksAreSaidEveryTenSeconds) {
  ranks_.joined(0, at(0s));
  EXPECT_EQ(ranks_.next_event(), at(10s));
  EXPECT_FALSE(ranks_.say_who_is_missing(at(9s)));
  EXPECT_EQ(ranks_.say_who_is_missing(at(12s)),
            "tutti: waiting 12 s: 3 of 4 ranks missing: 1-3 (started, not in init)");
  EXPECT_FALSE(ranks_.say_who_is_missing(at(13s)));
  for (int rank = 1; rank < 4; ++rank) ranks_.joined(rank, at(14s));
  EXPECT_FALSE(ranks_.say_who_is_missing(at(22s))) << "all are here";
}

}  // namespace
}  // namespace tutti::launch
