#include "ddp/parameter_set.h"

#include <gtest/gtest.h>

#include <set>

namespace tutti::ddp {
namespace {

using Names = std::vector<std::string>;

TEST(ParameterSet, ChangesNameTheParameters) {
  const Names names = {"a.weight", "a.bias", "b.weight"};
  EXPECT_EQ(change_of(names, {1, 1, 0}, {1, 1, 0}), "");
  EXPECT_EQ(change_of(names, {1, 1, 0}, {1, 0, 0}), "a.bias is trained no more");
  EXPECT_EQ(change_of(names, {1, 1, 0}, {0, 0, 1}),
            "a.weight, a.bias are trained no more; b.weight is trained from now on");
}

TEST(ParameterSet, LongListsAreCut) {
  const Names names = {"layer.0.weight", "layer.0.bias", "layer.1.weight", "layer.1.bias"};
  EXPECT_EQ(listed(names, 80), "layer.0.weight, layer.0.bias, layer.1.weight, layer.1.bias");
  EXPECT_EQ(listed(names, 45), "layer.0.weight, layer.0.bias and 2 more");
  EXPECT_EQ(listed(names, 5), "layer.0.weight and 3 more") << "one name is always there";
  EXPECT_EQ(listed({}, 80), "");
}

TEST(ParameterSet, WhatTheModelHasIsComparedByNameAndTensor) {
  const int a = 0, b = 0, c = 0;
  const std::vector<NamedParameter> before = {{"a", &a}, {"b", &b}};
  const auto change = [&](const std::vector<NamedParameter>& after) {
    return change_of(before, after);
  };
  EXPECT_EQ(change(before), "");
  EXPECT_EQ(change({{"a", &a}, {"b", &b}, {"c", &c}}), "c was added");
  EXPECT_EQ(change({{"b", &b}}), "a was removed");
  EXPECT_EQ(change({{"a", &c}, {"b", &b}}), "a was replaced");
  EXPECT_EQ(change({{"b", &a}, {"c", &c}}), "c was added; a was removed; b was replaced");
}

TEST(ParameterSet, EverySetAndSeedHasItsDigest) {
  const std::set<std::uint64_t> digests = {digest({1, 0}), digest({0, 1}),    digest({1, 1}),
                                           digest({1}),    digest({1, 0}, 7), digest({})};
  EXPECT_EQ(digests.size(), 6u);
  EXPECT_EQ(digest({1, 0}), digest({1, 0}));
}

TEST(ParameterSet, PartsAndWholes) {
  ParameterSet set = {1, 0, 0};
  EXPECT_TRUE(contains({1, 1, 0}, set));
  EXPECT_FALSE(contains({0, 1, 1}, set));
  add(set, {0, 0, 1});
  EXPECT_EQ(set, (ParameterSet{1, 0, 1}));
  EXPECT_EQ(count_of(set), 2u);
}

}  // namespace
}  // namespace tutti::ddp
