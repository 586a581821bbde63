#include "ddp/buckets.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tutti::ddp {
namespace {

std::vector<std::size_t> parameters_of(const BucketShape& bucket) {
  std::vector<std::size_t> parameters;
  for (const Slot& slot : bucket.slots) parameters.push_back(slot.parameter);
  return parameters;
}

TEST(Buckets, FirstIsSmallAndTheOthersHoldBucketBytes) {
  const std::vector<ParameterShape> parameters(6, {256});  // 1 KiB each
  const auto buckets = assign_buckets(parameters, reverse_order(6), {1024, 2048});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(parameters_of(buckets[0]), (std::vector<std::size_t>{5}));
  EXPECT_EQ(parameters_of(buckets[1]), (std::vector<std::size_t>{4, 3}));
  EXPECT_EQ(parameters_of(buckets[2]), (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(parameters_of(buckets[3]), (std::vector<std::size_t>{0}));
}

TEST(Buckets, SplitByDtypeAndDeviceAndNumberedByLastDue) {
  const std::vector<ParameterShape> parameters = {{10, DType::f32},
                                                  {10, DType::f64},
                                                  {10, DType::f32},
                                                  {10, DType::f32, {Device::Kind::cuda, 1}}};
  const auto buckets = assign_buckets(parameters, reverse_order(4), {});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(parameters_of(buckets[0]), (std::vector<std::size_t>{3}));
  EXPECT_EQ(parameters_of(buckets[1]), (std::vector<std::size_t>{1}));
  EXPECT_EQ(parameters_of(buckets[2]), (std::vector<std::size_t>{2, 0}));
  EXPECT_EQ(buckets[1].dtype, DType::f64);
  EXPECT_EQ(buckets[0].device.kind, Device::Kind::cuda);
}

TEST(Buckets, SlotsBeginOnCacheLinesAndNeverOverlap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<ParameterShape> parameters;
    const std::size_t parameter_count = random() % 40;
    for (std::size_t i = 0; i < parameter_count; ++i) {
      parameters.push_back({random() % 3000, random() % 2 ? DType::f32 : DType::bf16});
    }
    std::vector<std::size_t> order = reverse_order(parameters.size());
    std::shuffle(order.begin(), order.end(), random);
    std::set<std::size_t> seen;
    for (const BucketShape& bucket : assign_buckets(parameters, order, {4096, 20000})) {
      std::size_t end = 0;
      for (const Slot& slot : bucket.slots) {
        EXPECT_EQ(slot.offset * size_of(bucket.dtype) % 64, 0u);
        EXPECT_GE(slot.offset, end);
        EXPECT_EQ(slot.count, parameters[slot.parameter].count);
        EXPECT_EQ(bucket.dtype, parameters[slot.parameter].dtype);
        EXPECT_TRUE(seen.insert(slot.parameter).second);
        end = slot.offset + slot.count;
      }
      EXPECT_EQ(bucket.count, end);
    }
    EXPECT_EQ(seen.size(), parameters.size());
  }
}

TEST(Buckets, NoParametersNoBuckets) { EXPECT_TRUE(assign_buckets({}, {}, {}).empty()); }

}  // namespace
}  // namespace tutti::ddp
