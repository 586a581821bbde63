// What another process has written on the board, by mistake or not, is read and nothing worse.
#include "control/garbage.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "control/garbage_scene.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

TEST(Garbage, InAnyWordIsReadAndNothingWorse) {
  Scene scene;
  const Board& board = scene.board;
  read_everything(board, scene.own);
  const auto spoil = [&](const Stretch& words) {
    for (std::size_t at = 0; at < words.count; ++at) {
      const std::uint64_t before = words.words[at].load();
      for (const std::uint64_t value :
           {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 63,
            std::uint64_t{0x7fffffff7fffffff}, before ^ 0x5555555555555555}) {
        words.words[at].store(value);
        read_everything(board, scene.own);
      }
      words.words[at].store(before);
    }
  };
  Slot& slot = board.slot(SlotIndex(1));
  spoil(stretch(&slot.bell, &slot.lines[2]));
  spoil(words_of(board.header()));
}

TEST(Garbage, InManyWordsAtOnceIsReadAndNothingWorse) {
  Scene scene;
  const Board& board = scene.board;
  const std::vector<Stretch> stretches = scene.stretches();
  const std::vector<std::byte> before(board.data(), board.data() + board.byte_count());
  for (std::uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Garbage garbage(seed);
    for (int i = 0; i < 3; ++i) {
      garbage.spoil(stretches);
      ASSERT_NO_FATAL_FAILURE(read_everything(board, scene.own));
    }
    VotePlace(board, scene.own, 2).take_over(1);
    std::memcpy(board.data(), before.data(), before.size());
  }
}

/// The text of what `Board` says of `memory`.
std::string refusal_of(const net::Fd& memory) {
  try {
    const Board board(memory);
    return "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    return error.what();
  }
}

TEST(Garbage, InTheHeaderIsRefusedInWords) {
  const net::Fd memory = Board::make(2, 5);
  const Board board(memory);
  BoardHeader& header = board.header();
  const auto expect = [&](auto& word, auto value, const char* words) {
    const auto before = word.load();
    word.store(static_cast<decltype(before)>(value));
    const std::string said = refusal_of(memory);
    EXPECT_NE(said.find(words), std::string::npos) << said;
    word.store(before);
  };
  for (const std::uint64_t garbage :
       {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, kBoardMagic ^ 1, kBoardMagic << 8})
    expect(header.magic, garbage, "is not a board");
  for (const std::uint32_t garbage : {0u, 1u, kBoardVersion - 1, kBoardVersion + 1, ~0u})
    expect(header.version, garbage, "use the same Tutti everywhere");
  for (const std::uint32_t garbage : {0u, 1u, 3u, 255u, 256u, 257u, 0x7fffffffu, 0x80000000u, ~0u})
    expect(header.slot_count, garbage, "ranks on this host");
  for (const std::uint32_t garbage : {0u, 1u, 4097u, 0x7fffffffu, 0x80000000u, ~0u})
    expect(header.world_size, garbage, "in the world");
  EXPECT_EQ(refusal_of(memory), "taken");
}

}  // namespace
}  // namespace tutti::control
