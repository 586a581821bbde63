// A host's vote on its board: it outlives its relay, and one that was overtaken changes nothing.
#include "control/hosts/vote_place.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "control/board/layout.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

/// A rank that may be the relay of a host of a world of three hosts.
struct Candidate {
  Candidate(const net::Fd& memory, const Board& board, int slot)
      : owner(board, SlotIndex(slot), net::Fd(::dup(memory.get()))), place(board, owner, 3) {}
  SlotOwner owner;
  VotePlace place;
};

struct TwoRanks {
  net::Fd memory = Board::make(2, 6);
  Board board{memory};
  Candidate first{memory, board, 0}, second{memory, board, 1};
};

HostVote with_entry(HostVote vote, const std::string& text) {
  vote.vote.number += 1;
  vote.vote.promised = vote.vote.accepted = {};
  vote.entries.push_back({{.code = ErrorCode::kAborted, .groups = {7}, .text = text}, {}});
  return vote;
}

TEST(VotePlace, TheFirstRelayBeginsWithTheFirstVote) {
  TwoRanks ranks;
  EXPECT_FALSE(VoteBytes::relay_on(ranks.board));
  const auto vote = ranks.second.place.take_over(1);
  ASSERT_TRUE(vote);
  HostVote expected = first_vote(3);
  expected.term = 1;
  EXPECT_EQ(*vote, expected);
  EXPECT_EQ(VoteBytes::relay_on(ranks.board), SlotIndex(1));
}

TEST(VotePlace, TheNextRelayGoesOnWithWhatWasWritten) {
  TwoRanks ranks;
  HostVote vote = *ranks.first.place.take_over(1);
  vote.vote.promised = vote.vote.accepted = {4, 2};
  vote.vote.value = {{.code = ErrorCode::kTimeout, .groups = {9}, .text = "late"}, {}};
  ASSERT_TRUE(ranks.first.place.write(vote));
  auto taken = ranks.second.place.take_over(1);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->term, 2u);
  taken->term = vote.term;
  EXPECT_EQ(*taken, vote);
}

TEST(VotePlace, WhoWasOvertakenWritesNothing) {
  TwoRanks ranks;
  const HostVote old = *ranks.first.place.take_over(1);
  const HostVote taken = *ranks.second.place.take_over(1);
  EXPECT_FALSE(ranks.first.place.write(with_entry(old, "too late")));
  EXPECT_TRUE(ranks.second.place.write(with_entry(taken, "in time")));
  EXPECT_FALSE(ranks.first.place.write(with_entry(old, "again")));
  const auto back = ranks.first.place.take_over(1);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->term, 3u);
  ASSERT_EQ(back->entries.size(), 1u);
  EXPECT_EQ(back->entries[0].verdict.text, "in time");
}

TEST(VotePlace, OldEntriesMakeRoom) {
  TwoRanks ranks;
  HostVote vote = *ranks.first.place.take_over(1);
  const std::string text(16'000, 'x');
  for (int i = 0; i < 20; ++i) vote = with_entry(vote, text);
  vote.entries.front().verdict = {.code = ErrorCode::kPeerLost, .culprits = {WorldRank(5)}};
  ASSERT_TRUE(ranks.first.place.write(vote));
  const auto taken = ranks.second.place.take_over(1);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->vote.number, 20u);
  EXPECT_LT(taken->entries.size(), 20u);
  EXPECT_GT(taken->entries.size(), 4u);
  EXPECT_EQ(taken->lost_before, world_ranks({5}));
}

TEST(VotePlace, AVoteThatDoesNotFitIsRefused) {
  TwoRanks ranks;
  HostVote vote = *ranks.first.place.take_over(1);
  vote.lost_before = std::vector<WorldRank>(kVoteBytes / 4, WorldRank(1));
  EXPECT_THROW(ranks.first.place.write(vote), Error);
  EXPECT_TRUE(ranks.second.place.take_over(1));
}

TEST(VotePlace, ABoardThatHoldsNoVoteMakesNoRelay) {
  TwoRanks ranks;
  ASSERT_TRUE(ranks.first.place.take_over(1));
  const std::uint64_t good = ranks.board.header().vote.load();
  for (const std::uint64_t bad : {~std::uint64_t{0}, good ^ 1, good | std::uint64_t{0xff} << 20}) {
    ranks.board.header().vote.store(bad);
    EXPECT_FALSE(ranks.second.place.take_over(1)) << std::hex << bad;
  }
  ranks.board.header().vote.store(good);
  auto& place = ranks.board.relay_area(SlotIndex(0)).votes[1];
  place.byte_count.store(kVoteBytes + 1);
  EXPECT_FALSE(ranks.second.place.take_over(1));
  place.byte_count.store(3);
  EXPECT_FALSE(ranks.second.place.take_over(1));
}

}  // namespace
}  // namespace tutti::control
