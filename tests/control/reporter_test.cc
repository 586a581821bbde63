// Where the relay of a host finds no memory for the news of its ranks.
#include "control/hosts/reporter.h"

#include <gtest/gtest.h>

#include <new>
#include <set>
#include <utility>

#include "control/board/layout.h"
#include "control/board/own_line.h"
#include "control/board/owner.h"
#include "refused_memory.h"

namespace tutti::control {
namespace {

/// The groups of a rank; 0: that it has left.
using Told = std::set<std::pair<int, GroupId>>;

Told told(const std::vector<Report>& reports) {
  Told told;
  for (const Report& report : reports) told.emplace(report.rank.value, report.group);
  return told;
}

/// Of one host with two ranks: rank 0 makes a group and another one fails, rank 1 leaves. Whether
/// all is told where memory was refused at the `until`th time; else the next call must tell it.
bool tells(std::size_t until) {
  const net::Fd memory = Board::make(2, 3);
  const Board board(memory);
  const Roster roster({{"host-a", world_ranks({0, 1})}, {"host-b", world_ranks({2})}}, 0);
  Reporter reporter(board, roster);
  SlotOwner owner(board, SlotIndex(0)), other(board, SlotIndex(1));
  EXPECT_TRUE(owner.open_line(1, 0, {}) && other.open_line(1, 0, {}));
  EXPECT_EQ(told(reporter.news()), (Told{{0, 1}, {1, 1}}));
  EXPECT_TRUE(owner.open_line(2, 1, {}));
  owner.publish_failure(OwnLine(*board.find_line(SlotIndex(0), 1)), ErrorCode::kAborted, {});
  board.slot(SlotIndex(1)).state.store(RankState::left);
  reporter.mark_told();
  refuse_own_memory(until);
  bool is_told = true;
  try {
    (void)reporter.news();
  } catch (const std::bad_alloc&) {
    is_told = false;
  }
  refuse_own_memory(0);
  EXPECT_EQ(told(reporter.news()), (Told{{0, 1}, {0, 2}, {1, 0}})) << "refused at " << until;
  EXPECT_EQ(reporter.news().size(), 3u) << "refused at " << until;
  reporter.mark_told();
  EXPECT_TRUE(reporter.news().empty());
  return is_told;
}

TEST(ReporterMemory, WhatWasRefusedMemoryIsToldByTheNextCall) {
  std::size_t until = 1;
  while (!tells(until) && !HasFailure()) ++until;
  EXPECT_GT(until, 3u) << "none was refused";
}

}  // namespace
}  // namespace tutti::control
