// The log of verdicts on a board.
#include "control/board/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control/board/layout.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

using State = BoardLog::State;

/// A rank that has a log on a board of the test.
struct Writer {
  Writer(const Board& board, int rank) : owner(board, SlotIndex(rank)), log(board, owner) {}
  SlotOwner owner;
  BoardLog log;
};

Verdict failure_of(GroupId group, int finder) {
  return {.code = ErrorCode::kTimeout,
          .groups = {group},
          .culprits = {WorldRank(finder), WorldRank(2)},
          .text = "found by " + std::to_string(finder),
          .finder = WorldRank(finder)};
}

/// What rank 1 says of a failure with this code that names this rank.
std::optional<std::string> text_of(const Board& board, GroupId group, ErrorCode code, int named) {
  return read_failure_text(board, SlotIndex(1), group, code, {WorldRank(named)});
}

TEST(Log, AnEntryIsReadAsItWasWritten) {
  const net::Fd memory = Board::make(3);
  const Board board(memory);
  Writer writer(board, 1), reader(board, 0);
  Verdict found;
  EXPECT_EQ(reader.log.read(1, &found), State::open);
  EXPECT_TRUE(writer.log.propose(1, failure_of(77, 1)));
  ASSERT_EQ(reader.log.read(1, &found), State::entered);
  EXPECT_EQ(found.code, ErrorCode::kTimeout);
  EXPECT_EQ(found.groups, std::vector<GroupId>{77});
  EXPECT_EQ(found.culprits, world_ranks({1, 2}));
  EXPECT_EQ(found.text, "found by 1");
  EXPECT_EQ(found.finder, WorldRank(1));
  EXPECT_EQ(reader.log.read(2, &found), State::open);
}

TEST(Log, ARelayEntersWhatWasChosen) {
  const net::Fd memory = Board::make(3);
  const Board board(memory);
  Writer relay(board, 2), reader(board, 0), later(board, 1);
  const Verdict first = failure_of(77, 1);
  Verdict found;
  EXPECT_TRUE(relay.log.enter_chosen(1, nullptr));
  EXPECT_EQ(reader.log.read(1, &found), State::missed);
  EXPECT_TRUE(relay.log.enter_chosen(2, &first));
  EXPECT_FALSE(later.log.enter_chosen(2, nullptr)) << "an earlier relay has";
  ASSERT_EQ(reader.log.read(2, &found), State::entered);
  EXPECT_EQ(found, first);
  for (std::uint64_t number = 3; number < 3 + kChosen; ++number)
    EXPECT_TRUE(relay.log.enter_chosen(number, &first));
  EXPECT_EQ(reader.log.read(2, &found), State::missed) << "its place was used again";
  EXPECT_EQ(reader.log.read(2 + kChosen, &found), State::entered);
}

TEST(Log, AnEntryMayTouchSeveralGroups) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer writer(board, 1), reader(board, 0);
  Verdict verdict = failure_of(5, 1);
  for (GroupId group = 6; verdict.groups.size() < kVerdictGroups; ++group)
    verdict.groups.push_back(group);
  ASSERT_TRUE(writer.log.propose(1, verdict));
  Verdict found;
  ASSERT_EQ(reader.log.read(1, &found), State::entered);
  EXPECT_EQ(found.groups, verdict.groups);
  EXPECT_FALSE(found.is_loss());
  EXPECT_TRUE(found.fails(5 + kVerdictGroups - 1));
  EXPECT_FALSE(found.fails(5 + kVerdictGroups));
  EXPECT_EQ(text_of(board, 7, ErrorCode::kTimeout, 1), "found by 1");
  EXPECT_FALSE(text_of(board, 7, ErrorCode::kSystem, 1)) << "the group has failed with another one";
  EXPECT_FALSE(text_of(board, 7, ErrorCode::kTimeout, 0)) << "the same";
  ASSERT_TRUE(writer.log.propose(2, failure_of(9, 1)));
  ASSERT_EQ(reader.log.read(2, &found), State::entered);
  EXPECT_EQ(found.groups, std::vector<GroupId>{9}) << "nothing is left of the entry before";
}

TEST(Log, TheSecondToProposeAnEntryIsToldSo) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer first(board, 0), second(board, 1);
  EXPECT_TRUE(first.log.propose(1, failure_of(5, 0)));
  EXPECT_FALSE(second.log.propose(1, failure_of(5, 1)));
  Verdict found;
  ASSERT_EQ(second.log.read(1, &found), State::entered);
  EXPECT_EQ(found.finder, WorldRank(0));
  EXPECT_FALSE(text_of(board, 5, ErrorCode::kTimeout, 1))
      << "nobody reads a verdict that was not chosen";
  EXPECT_TRUE(second.log.propose(2, failure_of(6, 1)));
  EXPECT_EQ(text_of(board, 6, ErrorCode::kTimeout, 1), "found by 1");
}

TEST(Log, OneOfManyIsChosenForEveryEntry) {
  constexpr int kRanks = 6;
  constexpr std::uint64_t kEntries = 2000;
  const net::Fd memory = Board::make(kRanks);
  const Board board(memory);
  std::vector<std::vector<int>> finders(kRanks);
  std::vector<std::uint64_t> chosen(kRanks), missed(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto self = std::make_unique<Writer>(board, rank);
      const auto at = static_cast<std::size_t>(rank);
      for (std::uint64_t number = 1; number <= kEntries; ++number) {
        if (self->log.propose(number, failure_of(number, rank))) ++chosen[at];
        Verdict found;
        const State state = self->log.read(number, &found);
        ASSERT_NE(state, State::open);
        if (state == State::entered) {
          ASSERT_TRUE(found.fails(number));
          ASSERT_EQ(found.text, "found by " + std::to_string(found.finder.value));
        }
        finders[at].push_back(state == State::entered ? found.finder.value : -1);
        missed[at] += state == State::missed ? 1 : 0;
      }
    });
  for (auto& thread : threads) thread.join();
  std::uint64_t all_chosen = 0;
  for (const std::uint64_t count : chosen) all_chosen += count;
  EXPECT_EQ(all_chosen, kEntries);
  for (std::size_t entry = 0; entry < kEntries; ++entry) {
    int finder = -1;
    for (const auto& found : finders) {
      if (found[entry] < 0) continue;
      if (finder < 0) finder = found[entry];
      EXPECT_EQ(found[entry], finder) << "entry " << entry + 1;
    }
  }
}

TEST(Log, WhoHasSleptTooLongIsToldThatItHasMissedEntries) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer writer(board, 0), sleeper(board, 1);
  const std::uint64_t last = kLogEntries + 10;
  for (std::uint64_t number = 1; number <= last; ++number)
    ASSERT_TRUE(writer.log.propose(number, failure_of(number, 0)));
  Verdict found;
  for (std::uint64_t number = 1; number <= last - kProposals; ++number)
    EXPECT_EQ(sleeper.log.read(number, &found), State::missed) << number;
  for (std::uint64_t number = last - kProposals + 1; number <= last; ++number)
    EXPECT_EQ(sleeper.log.read(number, &found), State::entered) << number;
  EXPECT_EQ(sleeper.log.read(last + 1, &found), State::open);
  EXPECT_FALSE(sleeper.log.propose(3, failure_of(3, 1))) << "far behind";
}

/// Of a reader that has read nothing yet: how many entries it has found, and asked for.
std::pair<int, int> read_all(const BoardLog& log) {
  int entered = 0, asked = 0;
  for (std::uint64_t number = 1;; ++asked) {
    Verdict found;
    const State state = log.read(number, &found);
    if (state == State::open) return {entered, asked};
    entered += state == State::entered ? 1 : 0;
    number = state == State::missed ? log.after_missed(number) : number + 1;
  }
}

TEST(Log, WhoHasSleptVeryLongPassesOverWhatIsGone) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer writer(board, 0), sleeper(board, 1);
  const std::uint64_t last = 1000 * kLogEntries + 10;
  for (std::uint64_t number = 1; number <= last; ++number)
    ASSERT_TRUE(writer.log.propose(number, failure_of(number, 0)));
  const auto [entered, asked] = read_all(sleeper.log);
  EXPECT_EQ(entered, kProposals);
  EXPECT_LE(asked, static_cast<int>(2 * kLogEntries));
}

TEST(Log, OneGarbageWordHidesOneEntry) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer writer(board, 0), reader(board, 1);
  board.header().log[1].store(std::uint64_t{kLogEntries * 1000 + 1} << 32 | 0xfff);
  ASSERT_TRUE(writer.log.propose(2, failure_of(2, 0)));
  EXPECT_EQ(read_all(reader.log).first, 1) << "the entry that follows is read";
}

TEST(Log, GarbageInAllItsWordsIsNoLogWithoutEnd) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer reader(board, 0);
  for (const std::uint64_t step : {0, 1, 1 << 21, 1 << 24, 1 << 30}) {
    for (const std::uint64_t first : {0x10000u, 0x300000u, 0x3f800000u, 0x7fffffffu, 0xffffffffu}) {
      std::uint64_t number = first;
      for (auto& word : board.header().log) word.store((number += step) << 32 | 0xfff);
      EXPECT_LE(read_all(reader.log).second, static_cast<int>(4 * kLogEntries))
          << first << " " << step;
    }
  }
}

TEST(Log, GarbageIsAnEntryThatWasMissedAndNothingWorse) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  Writer writer(board, 0), reader(board, 1);
  Verdict found;
  for (const std::uint64_t word :
       {~std::uint64_t{0}, std::uint64_t{1} << 32 | 0xfffu << 20,
        std::uint64_t{1} << 32 | 1u << 20 | 7u, std::uint64_t{1}, std::uint64_t{1} << 63}) {
    board.header().log[1].store(word);
    EXPECT_NE(reader.log.read(1, &found), State::entered) << word;
    writer.log.propose(1, failure_of(1, 0));
  }
  board.header().log[1].store(0);
  ASSERT_TRUE(writer.log.propose(1, failure_of(1, 0)));
  for (auto& place : board.slot(SlotIndex(0)).proposals) {
    place.failure.store(~0u);
    for (auto& word : place.culprits) word.store(~std::uint64_t{0});
  }
  ASSERT_EQ(reader.log.read(1, &found), State::entered);
  EXPECT_EQ(found.code, ErrorCode::kInternal);
  EXPECT_EQ(found.culprits, world_ranks({0, 1})) << "there are no others";
}

}  // namespace
}  // namespace tutti::control
