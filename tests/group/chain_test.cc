// The chain differs as soon as ranks disagree in anything that counts, and in nothing else.
#include "group/chain.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace tutti::group {
namespace {

Request base() {
  Request request;
  request.op = Op::all_reduce;
  request.dtype = DType::f32;
  request.count = 100;
  request.root = -1;
  return request;
}

const Purpose kOnePurpose{1, "one"}, kOtherPurpose{2, "one"}, kSamePurpose{1, "another text"};

TEST(Chain, EveryDisagreementChangesIt) {
  const std::vector<std::function<void(Request&)>> changes = {
      [](Request& r) { r.op = Op::reduce; },
      [](Request& r) { r.dtype = DType::f64; },
      [](Request& r) { r.count = 101; },
      [](Request& r) { r.reduce = ReduceOp::avg; },
      [](Request& r) { r.reduce = ReduceOp::premul_sum(0.5); },
      [](Request& r) { r.reduce = ReduceOp::premul_sum(0.25); },
      [](Request& r) { r.root = 0; },
      [](Request& r) { r.root = 1; },
      [](Request& r) { r.where.purpose = &kOnePurpose; },
      [](Request& r) { r.where.purpose = &kOtherPurpose; },
  };
  std::set<std::uint64_t> chains = {chain_next(chain_seed(1), base())};
  for (const auto& change : changes) {
    Request request = base();
    change(request);
    EXPECT_TRUE(chains.insert(chain_next(chain_seed(1), request)).second);
  }
  EXPECT_TRUE(chains.insert(chain_next(chain_seed(2), base())).second) << "another group";
}

TEST(Chain, OrderCountsAndADifferenceStays) {
  Request first = base(), second = base();
  second.op = Op::broadcast;
  second.root = 0;
  std::uint64_t one = chain_next(chain_next(chain_seed(7), first), second);
  std::uint64_t other = chain_next(chain_next(chain_seed(7), second), first);
  for (int more = 0; more < 100; ++more) {
    EXPECT_NE(one, other);
    one = chain_next(one, first);
    other = chain_next(other, first);
  }
}

TEST(Chain, WhatMayDifferBetweenRanksDoesNotCount) {
  Request here = base(), there = base();
  float value = 0;
  here.input = value;
  here.where = {"train.cc", 1, &kOnePurpose};
  there.where = {"train.cc", 2, &kSamePurpose};
  there.arrive = Deadline::after(std::chrono::seconds(5));
  EXPECT_EQ(chain_next(chain_seed(7), here), chain_next(chain_seed(7), there));
}

TEST(GroupIds, DependOnParentRanksOrderAndTimes) {
  const std::vector<int> ranks = {0, 1}, swapped = {1, 0}, more = {0, 1, 2};
  std::set<GroupId> ids = {5};
  EXPECT_TRUE(ids.insert(child_id(5, ranks, 1)).second);
  EXPECT_TRUE(ids.insert(child_id(5, ranks, 2)).second);
  EXPECT_TRUE(ids.insert(child_id(5, swapped, 1)).second);
  EXPECT_TRUE(ids.insert(child_id(5, more, 1)).second);
  EXPECT_TRUE(ids.insert(child_id(6, ranks, 1)).second);
  EXPECT_EQ(child_id(5, ranks, 1), child_id(5, ranks, 1));
}

/// Groups of a group, of its survivors, and of those again: no two lists of what was asked for may
/// run into the same words.
TEST(GroupIds, AreUniqueAmongSurvivorsToo) {
  const std::vector<std::vector<int>> all = {{0},    {1},       {2},       {3},       {0, 1},
                                             {1, 0}, {2, 1, 0}, {1, 0, 2}, {3, 2, 1}, {0, 1, 2, 3}};
  std::set<GroupId> ids;
  std::vector<GroupId> parents = {1000};
  for (int generation = 0; generation < 2; ++generation) {
    std::vector<GroupId> children;
    for (const GroupId parent : parents)
      for (const GroupId asked_of : {parent, survivors_of(parent)})
        for (const auto& ranks : all)
          for (std::uint64_t times = 1; times <= 4; ++times)
            children.push_back(child_id(asked_of, ranks, times));
    for (const GroupId id : children) EXPECT_TRUE(ids.insert(id).second);
    parents = children;
  }
}

}  // namespace
}  // namespace tutti::group
