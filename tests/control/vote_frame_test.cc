// Frames of the vote as bytes: there and back, and whatever else may come.
#include "control/hosts/vote_frame.h"

#include <gtest/gtest.h>

#include <random>

namespace tutti::control {
namespace {

constexpr int kHosts = 9;

Entry some_entry(std::mt19937_64& random) {
  Entry entry;
  entry.verdict.code = static_cast<ErrorCode>(random() % 12);
  for (auto groups = random() % (kVerdictGroups + 1); groups > 0; --groups)
    entry.verdict.groups.push_back(random());
  for (auto left = random() % 4; left > 0; --left)
    entry.verdict.culprits.emplace_back(static_cast<int>(random() % 1000));
  entry.verdict.text = std::string(random() % 40, 'x');
  entry.verdict.finder = WorldRank(static_cast<int>(random() % 1000) - 1);
  for (auto left = random() % 3; left > 0; --left)
    entry.out.insert(static_cast<int>(random() % kHosts));
  return entry;
}

VoteFrame some_frame(std::mt19937_64& random) {
  VoteFrame frame;
  frame.term = random();
  frame.vote.number = random() % 1000 + 300;
  if (random() % 4 > 0) {
    frame.vote.accepted = {random() % 9, static_cast<int>(random() % kHosts)};
    frame.vote.value = some_entry(random);
  }
  frame.vote.promised = {10, static_cast<int>(random() % kHosts)};
  for (int host = 0; host < kHosts; ++host) {
    const auto state = random() % 4;
    if (state == 0) frame.hosts.insert(host);
    if (state > 1) frame.vote.cut_off.insert(host);
    if (state > 2) frame.vote.gone.insert(host);
  }
  if (random() % 2 > 0) frame.want = some_entry(random);
  for (auto left = random() % 5; left > 0; --left) frame.entries.push_back(some_entry(random));
  for (auto left = random() % 5; left > 0; --left)
    frame.lost_before.emplace_back(static_cast<int>(random() % 1000));
  return frame;
}

TEST(VoteFrame, ThereAndBack) {
  std::mt19937_64 random(1);
  EXPECT_EQ(decode_vote_frame(encode(VoteFrame{}), kHosts), VoteFrame{});
  for (int round = 0; round < 1000; ++round) {
    const VoteFrame frame = some_frame(random);
    EXPECT_EQ(decode_vote_frame(encode(frame), kHosts), frame);
  }
}

TEST(VoteFrame, WhatIsCutOrTooLongIsNone) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 50; ++round) {
    const std::string bytes = encode(some_frame(random));
    for (std::size_t length = 0; length < bytes.size(); ++length)
      EXPECT_FALSE(decode_vote_frame(std::string_view(bytes).substr(0, length), kHosts));
    EXPECT_FALSE(decode_vote_frame(bytes + '\0', kHosts));
  }
}

TEST(VoteFrame, WhatMakesNoSenseIsNone) {
  const auto is_taken = [](const auto& change) {
    VoteFrame frame;
    frame.vote.number = 2;
    frame.vote.promised = {1, 3};
    change(frame);
    return decode_vote_frame(encode(frame), kHosts).has_value();
  };
  EXPECT_TRUE(is_taken([](VoteFrame&) {}));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.promised.host = kHosts; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.promised.host = -2; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.promised = {1, -1}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.promised.round = ~std::uint64_t{0}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.accepted = {2, 3}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.number = ~std::uint64_t{0}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.cut_off = {kHosts}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.vote.gone = {1}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.hosts = {5000}; }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) { it.entries.resize(3); }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) {
    it.want = Entry{{ErrorCode{77}, {}, {}, "", WorldRank(0)}, {}};
  }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) {
    it.want = Entry{{ErrorCode::kPeerLost, {}, {WorldRank(-1)}, "", WorldRank(0)}, {}};
  }));
  EXPECT_FALSE(is_taken([](VoteFrame& it) {
    it.want = Entry{{ErrorCode::kPeerLost, {}, {}, "", WorldRank(-2)}, {}};
  }));
}

TEST(VoteFrame, ATextThatIsTooLongIsCut) {
  VoteFrame frame;
  frame.want.emplace().verdict.text.assign(kMostEntryText + 1, 'x');
  const auto decoded = decode_vote_frame(encode(frame), kHosts);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->want->verdict.text.size(), kMostEntryText);
}

/// What comes out of any bytes can be given to a host: it goes on or takes no notice.
TEST(VoteFrame, AnyBytesAreTakenOrRefused) {
  std::mt19937_64 random(3);
  int taken = 0;
  HostVote host = first_vote(kHosts);
  VoteMemory memory;
  std::vector<HostFacts> facts(kHosts);
  const std::optional<Entry> want;
  for (int round = 0; round < 30000; ++round) {
    std::string bytes = encode(some_frame(random));
    for (auto left = random() % 4; left > 0; --left)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto frame = decode_vote_frame(bytes, kHosts);
    if (!frame) continue;
    ++taken;
    if (taken % 50 == 0) {
      host = first_vote(kHosts);
      memory = {};
    }
    const int from = 1 + static_cast<int>(random() % (kHosts - 1));
    step_vote(host, memory,
              {0, Clock::time_point(std::chrono::milliseconds(round)), facts, want, from, &*frame});
    EXPECT_FALSE(host.vote.cut_off.contains(0));
  }
  EXPECT_GT(taken, 5000);
}

}  // namespace
}  // namespace tutti::control
