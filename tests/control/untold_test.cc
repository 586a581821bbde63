// What a process has left untold is on the agent's board, whatever board its groups are on.
#include "control/untold.h"

#include <gtest/gtest.h>

namespace tutti::control {
namespace {

TEST(Untold, TheFirstIsShownUntilTheProgramIsTold) {
  const net::Fd memory = Board::make(3);
  const Board board(memory);
  Untold untold;
  untold.add({7, 0, ErrorCode::kTimeout, {WorldRank(1)}, 3, "rank 1 did not come", false});
  EXPECT_FALSE(read_untold(board, SlotIndex(2))) << "there is no agent yet";
  untold.show_on(memory, SlotIndex(2));
  untold.add({8, 0, ErrorCode::kAborted, {}, 3, "rank 0 aborted", false});
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
  untold.add({7, 0, ErrorCode::kClosed, {}, 4, "rank 1 left", false});
  untold.keep(7, 0);
  untold.told(7, 0, ErrorCode::kClosed);
  ASSERT_TRUE(read_untold(board, SlotIndex(0)));
  EXPECT_TRUE(read_untold(board, SlotIndex(0))->culprits.empty()) << "a world of another size";
}

}  // namespace
}  // namespace tutti::control
