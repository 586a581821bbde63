// What the relay of a host tells of its ranks: where it finds no memory, and while one leaves.
#include "control/hosts/reporter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "control/board/layout.h"
#include "control/board/own_line.h"
#include "control/board/owner.h"
#include "control/hosts/view.h"
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
  board.slot(SlotIndex(1)).news.fetch_add(1);
  reporter.mark_told();
  refuse_own_memory(until);
  bool is_told = true;
  try {
    (void)reporter.news();
  } catch (const std::bad_alloc&) {
    is_told = false;
  }
  refuse_own_memory(0);
  reporter.show_told();
  EXPECT_LT(board.told_of(SlotIndex(1)), board.news_of(SlotIndex(1))) << "refused at " << until;
  EXPECT_EQ(told(reporter.news()), (Told{{0, 1}, {0, 2}, {1, 0}})) << "refused at " << until;
  EXPECT_EQ(reporter.news().size(), 3u) << "refused at " << until;
  reporter.mark_told();
  reporter.show_told();
  EXPECT_EQ(board.told_of(SlotIndex(1)), board.news_of(SlotIndex(1))) << "refused at " << until;
  EXPECT_TRUE(reporter.news().empty());
  return is_told;
}

TEST(ReporterMemory, WhatWasRefusedMemoryIsToldByTheNextCall) {
  std::size_t until = 1;
  while (!tells(until) && !HasFailure()) ++until;
  EXPECT_GT(until, 3u) << "none was refused";
}

/// Rank 0 of a host, alone in its group; a rank of another host sees what it is told of it.
struct Leaver {
  Leaver() {
    line = owner.open_line(1, 0, {});
    line->set_state(LineState::open);
  }
  void leave() {
    line->say_goodbye(5, 77);
    line->set_state(LineState::closed);
    owner.slot().state.store(RankState::left);
  }
  void tell_news() {
    for (const Report& report : reporter.news()) view.take(report);
    reporter.mark_told();
  }
  /// The other rank must not know that it has left without its last line.
  bool is_known_to_have_left() {
    const MemberFacts facts = view.facts_of(1, WorldRank(0));
    if (facts.has_left_world) {
      EXPECT_TRUE(facts.line && facts.line->state == LineState::closed);
      EXPECT_TRUE(facts.line && facts.line->goodbye_chain == 77);
    }
    return facts.has_left_world;
  }

  const net::Fd memory = Board::make(1, 2);
  const Board board{memory};
  const Roster roster{{{"host-a", world_ranks({0})}, {"host-b", world_ranks({1})}}, 0};
  Reporter reporter{board, roster};
  View view;
  SlotOwner owner{board, SlotIndex(0)};
  std::optional<OwnLine> line;
};

TEST(Reporter, AnAnswerTellsNoLeaveBeforeTheLastLines) {
  Leaver leaver;
  leaver.tell_news();
  leaver.leave();
  leaver.view.take(leaver.reporter.answer({.rank = WorldRank(0), .group = 2, .asked = 1}));
  EXPECT_FALSE(leaver.is_known_to_have_left());
  leaver.tell_news();
  EXPECT_TRUE(leaver.is_known_to_have_left());
}

TEST(Reporter, NewsTellNoLeaveBeforeTheLastLines) {
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    Leaver leaver;
    leaver.tell_news();
    std::atomic<bool> goes{false};
    std::thread rank([&] {
      while (!goes) {
      }
      for (std::atomic<int> i{0}; i < round % 60 * 10;) ++i;
      leaver.leave();
    });
    goes = true;
    do leaver.tell_news();
    while (!leaver.is_known_to_have_left());
    rank.join();
  }
}

TEST(Reporter, WhatAllOthersHaveHeardStandsOnTheBoard) {
  Leaver leaver;
  leaver.tell_news();
  leaver.leave();
  leaver.owner.slot().news.fetch_add(1);
  const std::uint64_t news = leaver.board.news_of(SlotIndex(0));
  leaver.reporter.show_told();
  EXPECT_LT(leaver.board.told_of(SlotIndex(0)), news) << "it has not been read";
  (void)leaver.reporter.news();
  leaver.reporter.show_told();
  EXPECT_LT(leaver.board.told_of(SlotIndex(0)), news) << "it has not been told";
  leaver.tell_news();
  leaver.reporter.show_told();
  EXPECT_EQ(leaver.board.told_of(SlotIndex(0)), news);
  leaver.board.show_told(SlotIndex(0), news - 1);
  EXPECT_EQ(leaver.board.told_of(SlotIndex(0)), news) << "a relay that was overtaken";
}

}  // namespace
}  // namespace tutti::control
