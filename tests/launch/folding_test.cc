// Lines that several ranks print: without a clock.
#include "launch/folding.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/of_rank.h"
#include "base/rank_list.h"

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;
using Clock = Folding::Clock;

const Clock::time_point kBegin = Clock::time_point(1h);

std::string text_of(const std::vector<Folding::Folded>& lines) {
  std::string text;
  for (const auto& each : lines) text += fmt::format("{}:{} ", format_ranks(each.ranks), each.line);
  return text;
}

TEST(Folding, WhatAllSayIsShownAtOnce) {
  Folding folding(3);
  for (const int rank : {2, 0}) folding.add(rank, Stream::out, "a", kBegin);
  EXPECT_EQ(text_of(folding.take(kBegin)), "");
  EXPECT_EQ(folding.next_due(), kBegin + Folding::kMoment);
  folding.add(1, Stream::out, "a", kBegin);
  EXPECT_EQ(text_of(folding.take(kBegin)), "0-2:a ");
  EXPECT_EQ(folding.next_due(), Clock::time_point::max());
}

TEST(Folding, OthersGetAMoment) {
  Folding folding(3);
  folding.add(0, Stream::out, "a", kBegin);
  folding.add(2, Stream::out, "a", kBegin + 100ms);
  EXPECT_EQ(text_of(folding.take(kBegin + 199ms)), "");
  EXPECT_EQ(text_of(folding.take(kBegin + 200ms)), "0, 2:a ");
}

TEST(Folding, LinesBetweenDoNotKeepEqualOnesApart) {
  Folding folding(2);
  for (const int rank : {0, 1}) {
    folding.add(rank, Stream::out, "begin", kBegin);
    folding.add(rank, Stream::out, fmt::format("own {}", rank), kBegin);
    folding.add(rank, Stream::out, "end", kBegin);
  }
  EXPECT_EQ(text_of(folding.take(kBegin)), "0-1:begin ");
  EXPECT_EQ(text_of(folding.take(kBegin + 200ms)), "1:own 1 0:own 0 0-1:end ");
}

TEST(Folding, StreamsAreTwo) {
  Folding folding(2);
  folding.add(0, Stream::out, "a", kBegin);
  folding.add(1, Stream::err, "a", kBegin);
  EXPECT_EQ(text_of(folding.take(kBegin + 1s)), "1:a 0:a ")
      << "a rank that has said nothing yet may come first";
}

TEST(Folding, ARankThatSaysItTwiceIsShownTwice) {
  Folding folding(2);
  folding.add(0, Stream::out, "a", kBegin);
  folding.add(0, Stream::out, "a", kBegin);
  folding.add(1, Stream::out, "a", kBegin);
  EXPECT_EQ(text_of(folding.take(kBegin + 1s)), "0-1:a 0:a ");
}

/// A rank that prints on and on holds no line of another one up.
TEST(Folding, NoLineWaitsLongerThanItsMoment) {
  Folding folding(2);
  folding.add(1, Stream::out, "old", kBegin);
  std::string shown;
  for (int i = 0; i < 300; ++i) {
    const Clock::time_point now = kBegin + i * 1ms;
    folding.add(0, Stream::out, fmt::format("new {}", i), now);
    shown += text_of(folding.take(now));
    if (now >= kBegin + Folding::kMoment) {
      ASSERT_NE(shown.find("1:old "), std::string::npos) << i;
    }
  }
}

TEST(Folding, ManyWaitingLinesAreNotKept) {
  Folding folding(2);
  for (std::size_t i = 0; i < Folding::kMost + 10; ++i) {
    folding.add(0, Stream::out, std::to_string(i), kBegin);
  }
  EXPECT_EQ(folding.take(kBegin).size(), 10u);
}

TEST(Folding, NothingIsLostAndEachRankKeepsItsOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    Folding folding(ranks);
    std::vector<std::vector<std::string>> said(static_cast<std::size_t>(ranks)), shown = said;
    Clock::time_point now = kBegin;
    const auto take = [&](Clock::time_point until) {
      for (const auto& each : folding.take(until))
        for (const int rank : each.ranks) of_rank(shown, rank).push_back(each.line);
    };
    for (int i = 0; i < 200; ++i) {
      const int rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
      const std::string line = std::to_string(random() % 4);
      folding.add(rank, Stream::out, line, now);
      of_rank(said, rank).push_back(line);
      now += (random() % 30) * 1ms;
      take(now);
    }
    take(Clock::time_point::max());
    ASSERT_EQ(shown, said) << round;
  }
}

}  // namespace
}  // namespace tutti::launch
