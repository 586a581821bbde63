// Which ranks say something else than most.
#include "base/odd_ranks.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

void expect_odd(const std::vector<std::string>& said, int usual, const std::vector<int>& odd) {
  const OddRanks found = odd_ranks(said);
  EXPECT_EQ(found.usual, usual);
  EXPECT_EQ(found.odd, odd);
}

TEST(OddRanks, AreThoseThatDifferFromMost) {
  expect_odd({"a"}, 0, {});
  expect_odd({"a", "a", "a"}, 0, {});
  expect_odd({"b", "a", "a"}, 1, {0});
  expect_odd({"a", "b", "a", "c", "a"}, 0, {1, 3});
  expect_odd({"c", "b", "a", "b"}, 1, {0, 2});
}

TEST(OddRanks, OfAsManyAreThoseWithoutTheLowest) {
  expect_odd({"b", "a"}, 0, {1});
  expect_odd({"a", "b", "b", "a"}, 0, {1, 2});
  expect_odd({"c", "b", "a"}, 0, {1, 2});
}

}  // namespace
}  // namespace tutti
