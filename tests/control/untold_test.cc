// What a process has left untold is on the agent's board, whatever board its groups are on.
#include "control/untold.h"

#include <gtest/gtest.h>

#include "control/board/notice.h"

namespace tutti::control {
namespace {

Untold::Failure failure(GroupId group, int rank, int of, ErrorCode code,
                        std::vector<WorldRank> culprits, int world_size, std::string text) {
  return {.group = group,
          .rank = rank,
          .of = WorldRank(of),
          .code = code,
          .culprits = std::move(culprits),
          .world_size = world_size,
          .text = std::move(text)};
}

TEST(Untold, TheFirstIsShownUntilTheProgramIsTold) {
  const net::Fd memory = Board::make(3);
  const Board board(memory);
  Untold untold;
  untold.add(failure(7, 0, 0, ErrorCode::kTimeout, {WorldRank(1)}, 3, "rank 1 did not come"));
  EXPECT_FALSE(read_untold(board, SlotIndex(2))) << "there is no agent yet";
  untold.show_on(memory, SlotIndex(2));
  untold.add(failure(8, 0, 0, ErrorCode::kAborted, {}, 3, "rank 0 aborted"));
  ASSERT_TRUE(read_untold(board, SlotIndex(2)));
  EXPECT_EQ(read_untold(board, SlotIndex(2))->code, ErrorCode::kTimeout);
  EXPECT_EQ(read_untold(board, SlotIndex(2))->culprits, std::vector{WorldRank(1)});
  EXPECT_EQ(read_untold(board, SlotIndex(2))->text, "rank 1 did not come");

  untold.told(7, 1, ErrorCode::kTimeout);  // another rank of this process
  untold.told(7, 0, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_untold(board, SlotIndex(2))->code, ErrorCode::kTimeout);
  untold.told(7, 0, ErrorCode::kTimeout);
  EXPECT_EQ(read_untold(board, SlotIndex(2))->text, "rank 0 aborted");
  untold.told(8, 0, ErrorCode::kAborted);
  EXPECT_FALSE(read_untold(board, SlotIndex(2)));
}

TEST(Untold, OneThatConcernsWhoHasGoneStays) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  Untold untold;
  untold.show_on(memory, SlotIndex(0));
  untold.add(failure(7, 0, 0, ErrorCode::kClosed, {}, 4, "rank 1 left"));
  untold.keep(7, 0);
  untold.told(7, 0, ErrorCode::kClosed);
  ASSERT_TRUE(read_untold(board, SlotIndex(0)));
  EXPECT_TRUE(read_untold(board, SlotIndex(0))->culprits.empty()) << "a world of another size";
}

TEST(Untold, WhatStaysOfAnEarlierWorldIsNotTakenForThatOfALaterOne) {
  Untold untold;
  untold.add(failure(7, 0, 0, ErrorCode::kAborted, {}, 4, "rank 1 aborted"));
  untold.keep(7, 0);
  untold.told(7, 0, ErrorCode::kAborted);
  untold.add(failure(7, 0, 0, ErrorCode::kAborted, {}, 4, "rank 2 aborted"));
  EXPECT_TRUE(untold.is_untold(0, 7, 0));
  untold.told(7, 0, ErrorCode::kAborted);
  EXPECT_FALSE(untold.is_untold(0, 7, 0));
}

TEST(Untold, WhatWasOutlivedIsNoCauseOfWhatComes) {
  Untold untold;
  untold.add(failure(7, 0, 0, ErrorCode::kCollectiveMismatch, {WorldRank(1)}, 4, "they differ"));
  untold.told(7, 0, ErrorCode::kCollectiveMismatch);
  ASSERT_TRUE(untold.last_told(0, WorldRank(0)));
  untold.outlive(0, WorldRank(1));  // another rank of this process
  EXPECT_TRUE(untold.last_told(0, WorldRank(0)));
  untold.outlive(0, WorldRank(0));
  EXPECT_FALSE(untold.last_told(0, WorldRank(0)));
}

TEST(Untold, ADeadlockIsToldByAnyOfItsGroups) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Untold untold;
  untold.show_on(memory, SlotIndex(0));
  const auto add = [&](GroupId group, int rank, int of, const char* text) {
    untold.add(failure(group, rank, of, ErrorCode::kDeadlock, {}, 2, text));
  };
  add(7, 0, 0, "a circle");
  add(8, 1, 0, "a circle");
  add(8, 0, 1, "a circle");  // another rank of this process
  add(9, 0, 1, "another circle");
  untold.told(8, 1, ErrorCode::kDeadlock);
  ASSERT_TRUE(read_untold(board, SlotIndex(0)));
  untold.told(8, 0, ErrorCode::kDeadlock);
  ASSERT_TRUE(read_untold(board, SlotIndex(0)));
  EXPECT_EQ(read_untold(board, SlotIndex(0))->text, "another circle");
  untold.told(9, 0, ErrorCode::kDeadlock);
  EXPECT_FALSE(read_untold(board, SlotIndex(0)));
}

TEST(Untold, ALossIsToldByAnyGroupThatNamesAllOfIt) {
  Untold untold;
  const auto add = [&](GroupId group, std::vector<WorldRank> culprits, std::uint64_t world) {
    Untold::Failure loss = failure(group, 0, 0, ErrorCode::kPeerLost, std::move(culprits), 4, "");
    loss.world = world;
    untold.add(loss);
  };
  add(7, {WorldRank(3)}, 1);
  add(8, {WorldRank(3)}, 1);
  add(9, {WorldRank(2), WorldRank(3)}, 1);
  add(10, {WorldRank(3)}, 2);
  untold.told(7, 0, ErrorCode::kPeerLost);
  EXPECT_FALSE(untold.is_untold(1, 7, 0));
  EXPECT_FALSE(untold.is_untold(1, 8, 0));
  EXPECT_TRUE(untold.is_untold(1, 9, 0)) << "nobody has said that rank 2 is lost";
  EXPECT_TRUE(untold.is_untold(2, 10, 0));
  EXPECT_FALSE(untold.is_untold(1, 11, 0)) << "has not failed";
  add(11, {WorldRank(3)}, 1);
  EXPECT_FALSE(untold.is_untold(1, 11, 0)) << "it fails later than the program was told";
  add(12, {}, 1);
  EXPECT_TRUE(untold.is_untold(1, 12, 0)) << "nobody knows whom it has lost";
}

}  // namespace
}  // namespace tutti::control
