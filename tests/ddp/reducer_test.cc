#include "ddp/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <thread>

namespace tutti::ddp {
namespace {

/// Stands where the group would: records what is asked of it, fails where told to.
struct Recorder {
  std::vector<std::size_t> launched, waited, dropped;
  int fail_launch = -1, fail_wait = -1;
  ReducerActions actions() {
    return {[this](std::size_t bucket) {
              if (static_cast<int>(bucket) == fail_launch)
                throw std::runtime_error("launch failed");
              launched.push_back(bucket);
            },
            [this](std::size_t bucket) {
              waited.push_back(bucket);
              if (static_cast<int>(bucket) == fail_wait) throw std::runtime_error("wait failed");
            },
            [this](std::size_t bucket) { dropped.push_back(bucket); }};
  }
};

std::vector<BucketShape> one_bucket_each(std::size_t parameter_count) {
  return assign_buckets(std::vector<ParameterShape>(parameter_count, {16}),
                        reverse_order(parameter_count), {1, 1});
}

TEST(Reducer, LaunchesInIndexOrderWhateverTheOrderOfMarks) {
  Recorder record;
  Reducer reducer(4, record.actions());
  reducer.set_buckets(one_bucket_each(4));  // bucket b holds parameter 3 - b
  EXPECT_EQ(reducer.mark_ready(0), Reducer::Mark::accepted);
  reducer.mark_ready(2);
  EXPECT_TRUE(record.launched.empty());
  reducer.mark_ready(3);
  EXPECT_EQ(record.launched, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(reducer.missing(), (std::vector<std::size_t>{1}));
  EXPECT_FALSE(reducer.all_ready());
  reducer.mark_ready(1);
  EXPECT_EQ(record.launched, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_TRUE(reducer.all_ready());
  reducer.finish();
  EXPECT_EQ(record.waited, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_FALSE(reducer.in_step());
  EXPECT_EQ(reducer.observed_order(), (std::vector<std::size_t>{0, 2, 3, 1}));
}

TEST(Reducer, OnlyTheFirstFinishedStepIsObserved) {
  Recorder record;
  Reducer reducer(2, record.actions());
  reducer.set_buckets(one_bucket_each(2));
  reducer.mark_ready(1);
  reducer.reset();  // an aborted step counts for nothing
  for (std::size_t parameter : {0, 1}) reducer.mark_ready(parameter);
  reducer.finish();
  for (std::size_t parameter : {1, 0}) reducer.mark_ready(parameter);
  reducer.finish();
  EXPECT_EQ(reducer.observed_order(), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(reducer.finished_steps(), 2u);
}

TEST(Reducer, ASecondMarkIsReportedAndChangesNothing) {
  Recorder record;
  Reducer reducer(2, record.actions());
  reducer.set_buckets(assign_buckets(std::vector<ParameterShape>(2, {16}), reverse_order(2), {}));
  EXPECT_EQ(reducer.mark_ready(1), Reducer::Mark::accepted);
  EXPECT_EQ(reducer.mark_ready(1), Reducer::Mark::repeated);
  EXPECT_TRUE(record.launched.empty());
}

TEST(Reducer, AFailedWaitIsThrownAfterAllWereWaitedForAndLeavesNothingStale) {
  Recorder record;
  Reducer reducer(3, record.actions());
  reducer.set_buckets(one_bucket_each(3));
  record.fail_wait = 1;
  for (std::size_t parameter : {2, 1, 0}) reducer.mark_ready(parameter);
  EXPECT_THROW(reducer.finish(), std::runtime_error);
  EXPECT_EQ(record.waited, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(reducer.finished_steps(), 0u);
  record.fail_wait = -1;
  for (std::size_t parameter : {2, 1, 0}) {
    EXPECT_EQ(reducer.mark_ready(parameter), Reducer::Mark::accepted);
  }
  EXPECT_NO_THROW(reducer.finish());
}

TEST(Reducer, AFailedLaunchIsResetDroppingOnlyWhatWasLaunched) {
  Recorder record;
  Reducer reducer(3, record.actions());
  reducer.set_buckets(one_bucket_each(3));
  record.fail_launch = 1;
  reducer.mark_ready(2);
  EXPECT_THROW(reducer.mark_ready(1), std::runtime_error);
  reducer.reset();
  EXPECT_EQ(record.dropped, (std::vector<std::size_t>{0}));
  EXPECT_TRUE(record.waited.empty());
  EXPECT_FALSE(reducer.in_step());
  EXPECT_EQ(reducer.missing().size(), 3u);
}

TEST(Reducer, MarksFromSeveralThreadsLaunchEveryBucketOnceInOrder) {
  constexpr std::size_t kParameters = 64;
  Recorder record;
  Reducer reducer(kParameters, record.actions());
  reducer.set_buckets(one_bucket_each(kParameters));
  for (unsigned step = 0; step < 50; ++step) {
    std::vector<std::size_t> order = reverse_order(kParameters);
    std::shuffle(order.begin(), order.end(), std::mt19937(step));
    record.launched.clear();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < kParameters; i += 4) reducer.mark_ready(order[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(reducer.all_ready());
    ASSERT_EQ(record.launched.size(), kParameters);
    ASSERT_TRUE(std::is_sorted(record.launched.begin(), record.launched.end()));
    reducer.finish();
  }
}

}  // namespace
}  // namespace tutti::ddp
