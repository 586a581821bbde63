#include "ddp/static_graph.h"

#include <gtest/gtest.h>

namespace tutti::ddp {
namespace {

using Gradient = StaticGraph::Gradient;
using Places = std::vector<std::size_t>;

TEST(StaticGraph, TheFirstBackwardIsTheRuleForLaterOnes) {
  StaticGraph graph(4);
  graph.begin();
  EXPECT_FALSE(graph.is_known());
  for (const std::size_t parameter : {2, 0, 2, 1}) {  // 2 twice, 3 never
    EXPECT_EQ(graph.count(parameter), Gradient::not_last);
  }
  EXPECT_EQ(graph.by_last_gradient(), (Places{3, 0, 2, 1}));
  graph.learn();
  EXPECT_TRUE(graph.is_known());
  EXPECT_TRUE(graph.is_unused(3));
  EXPECT_FALSE(graph.is_unused(2));

  graph.begin();
  EXPECT_EQ(graph.count(1), Gradient::last);  // another order is no other graph
  EXPECT_EQ(graph.count(2), Gradient::not_last);
  EXPECT_EQ(graph.count(2), Gradient::last);
  EXPECT_EQ(graph.count(2), Gradient::too_many);
  EXPECT_EQ(graph.now(2), 3u);
  EXPECT_EQ(graph.learned(2), 2u);
  EXPECT_EQ(graph.count(3), Gradient::too_many);
}

TEST(StaticGraph, WhatIsMissingIsNamedWithItsNumbers) {
  const std::vector<std::string> names = {"a", "b", "c"};
  StaticGraph graph(3);
  graph.begin();
  for (const std::size_t parameter : {0, 1, 1}) graph.count(parameter);
  graph.learn();
  graph.begin();
  graph.count(1);
  EXPECT_EQ(graph.missing(names),
            (std::vector<std::string>{"a (0 instead of 1)", "b (1 instead of 2)"}));
  graph.count(0);
  graph.count(1);
  EXPECT_TRUE(graph.missing(names).empty());
}

TEST(StaticGraph, OneThatIsForgottenIsLearnedAnew) {
  StaticGraph graph(1);
  graph.begin();
  graph.learn();  // unused
  EXPECT_TRUE(graph.is_unused(0));
  graph.forget();
  graph.begin();
  EXPECT_FALSE(graph.is_known());
  EXPECT_EQ(graph.count(0), Gradient::not_last);
  graph.learn();
  graph.begin();
  EXPECT_EQ(graph.count(0), Gradient::last);
}

}  // namespace
}  // namespace tutti::ddp
