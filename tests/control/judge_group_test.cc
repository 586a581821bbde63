// The judges of a group as a whole: agreement, goodbyes, failures, meetings; in made-up situations.
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "control/scene.h"

namespace tutti::control {
namespace {

const std::vector<int> kSizes = {2, 3, 5, 8, 64, 1000};

// ---- agreement ---------------------------------------------------------------------------------

TEST(JudgeAgreement, ThoseThatDoTheSameAgree) {
  for (const int size : kSizes)
    for (const std::uint64_t seq : {0u, 1u, 3u, 4u, 5u, 100u}) {
      Scene scene(size);
      scene.all_enter(seq);
      EXPECT_FALSE(find_disagreement(scene.facts)) << size << " ranks, #" << seq;
      EXPECT_FALSE(disagreement_at(scene.facts, seq == 0 ? 1 : seq));
    }
}

TEST(JudgeAgreement, TheSmallerSideIsNamedAndOfEqualsBoth) {
  for (const int size : kSizes)
    for (const int wrong : {1, size / 2, size - 1}) {
      if (wrong < 1) continue;
      SCOPED_TRACE(testing::Message() << wrong << " of " << size);
      Scene scene(size);
      for (int member = 0; member < size; ++member)
        scene.enters(member, 2, member >= size - wrong ? 9 : 0);
      const auto finding = find_disagreement(scene.facts);
      ASSERT_NE(as<Disagreement>(finding), nullptr);
      const Disagreement& found = *as<Disagreement>(finding);
      EXPECT_EQ(finding->code, ErrorCode::kCollectiveMismatch);
      EXPECT_EQ(found.seq, 2u);
      EXPECT_TRUE(found.same_past);
      ASSERT_EQ(found.sides.size(), 2u);
      EXPECT_EQ(found.sides[0].members, range(0, size - wrong));
      EXPECT_EQ(found.sides[1].members, range(size - wrong, size));
      EXPECT_EQ(found.sides[1].shown->count, operation(2, 9).count);
      EXPECT_EQ(found.sides[1].shown_by, size - wrong);
      const std::vector<int> culprits = wrong * 2 < size    ? range(size - wrong, size)
                                        : wrong * 2 == size ? range(0, size)
                                                            : range(0, size - wrong);
      EXPECT_EQ(finding->culprits, culprits);
    }
}

TEST(JudgeAgreement, EverySideButOneLargestIsNamed) {
  Scene scene(7);
  const std::vector<std::uint64_t> programs = {0, 1, 0, 2, 0, 1, 3};
  for (int member = 0; member < 7; ++member)
    scene.enters(member, 1, programs[static_cast<std::size_t>(member)]);
  EXPECT_EQ(find_disagreement(scene.facts)->culprits, (std::vector<int>{1, 3, 5, 6}));
}

TEST(JudgeAgreement, TheFirstDifferenceThatIsShownCounts) {
  for (std::uint64_t seq = 1; seq <= 12; ++seq)
    for (std::uint64_t different = 1; different <= seq; ++different) {
      SCOPED_TRACE(testing::Message() << "#" << different << " of " << seq);
      Scene scene(2);
      scene.enters(0, seq);
      scene.enters(1, different - 1).enters(1, different, 5).with_past(5).enters(1, seq, 5);
      const auto finding = find_disagreement(scene.facts);
      ASSERT_TRUE(finding);
      const std::uint64_t oldest = seq < kHistory ? 1 : seq - kHistory + 1;
      const std::uint64_t told = std::max(different, oldest);
      EXPECT_EQ(as<Disagreement>(finding)->seq, told);
      EXPECT_EQ(as<Disagreement>(finding)->same_past, told == 1 || different > oldest);
    }
}

TEST(JudgeAgreement, OneThatIsAheadIsComparedWhereItStillShows) {
  for (std::uint64_t ahead = 0; ahead <= 6; ++ahead) {
    Scene scene(2);
    scene.enters(0, 1).enters(1, 1, 5).with_past(5).enters(1, 1 + ahead, 5);
    EXPECT_EQ(find_disagreement(scene.facts).has_value(), ahead < kHistory) << ahead;
  }
}

TEST(JudgeAgreement, TheLargestNumberThatThereIsIsOneLikeOthers) {
  constexpr std::uint64_t kLargest = ~std::uint64_t{0};
  Scene scene(2);
  for (int member = 0; member < 2; ++member) scene.line(member).entered = kLargest;
  EXPECT_FALSE(find_disagreement(scene.facts));
  for (const std::uint64_t seq : {kLargest - kHistory + 1, kLargest}) {
    for (int member = 0; member < 2; ++member)
      scene.line(member).history[seq % kHistory] = operation(seq, member == 0 ? 0 : 1);
    EXPECT_TRUE(find_disagreement(scene.facts)) << seq;
    scene.line(1).history = {};
  }
}

TEST(JudgeLoss, NobodyIsLostToAGroupThatWasClosed) {
  Scene scene(2);
  scene.leaves(0, LineState::closed).absent(1);
  EXPECT_EQ(lost_to(scene.facts, {1}), std::vector<int>{});
  scene.line(0).state = LineState::closing;
  EXPECT_EQ(lost_to(scene.facts, {1}), std::vector<int>{1});
}

TEST(JudgeAgreement, WhatWasSeenElsewhereStandsForALineThatHasMovedOn) {
  for (const int size : kSizes) {
    SCOPED_TRACE(size);
    Scene scene(size);
    scene.all_enter(1);
    scene.line(size - 1).history = {};
    const Sighting sighting = {size - 1, operation(1, 6)};
    const auto finding = disagreement_at(scene.facts, 1, sighting);
    ASSERT_TRUE(finding);
    EXPECT_EQ(as<Disagreement>(finding)->sides.back().members, std::vector<int>{size - 1});
    EXPECT_EQ(as<Disagreement>(finding)->sides.back().shown_by, size - 1);
    EXPECT_FALSE(disagreement_at(scene.facts, 1, {size - 1, operation(2, 6)})) << "another seq";
    EXPECT_FALSE(disagreement_at(scene.facts, 1)) << "nothing was seen";
  }
}

TEST(JudgeAgreement, ALineCountsMoreThanWhatWasSeen) {
  Scene scene(2);
  scene.all_enter(1);
  EXPECT_FALSE(disagreement_at(scene.facts, 1, {1, operation(1, 6)}));
}

TEST(JudgeAgreement, AKnownDifferenceIsToldEvenIfNobodyShowsItAnyMore) {
  for (const bool was_seen : {true, false})
    for (const int rank : {0, 1, 2}) {
      Scene scene(3, rank);
      const int peer = (rank + 1) % 3;
      Sighting sighting{.member = peer};
      if (was_seen) sighting.shown = operation(9, 1);
      const Finding finding = disagreement_with(scene.facts, operation(9), sighting);
      const auto& found = std::get<Disagreement>(finding.what);
      EXPECT_EQ(finding.culprits, (std::vector<int>{std::min(rank, peer), std::max(rank, peer)}));
      EXPECT_EQ(found.seq, 9u);
      ASSERT_EQ(found.sides.size(), 2u);
      EXPECT_EQ(found.sides[0].members, std::vector<int>{rank});
      EXPECT_EQ(found.sides[1].shown.has_value(), was_seen);
      EXPECT_FALSE(found.same_past);
    }
}

/// The peer was seen in #`seen`, and its line shows nothing any more; this rank is in #2.
Disagreement disagreement_where_seen(std::uint64_t seen) {
  Scene scene(2);
  scene.all_enter(2);
  scene.line(1).history = {};
  const Finding finding = disagreement_with(scene.facts, operation(2), {1, operation(seen, 6)});
  return std::get<Disagreement>(finding.what);
}

TEST(JudgeAgreement, ThePeerMayHaveBeenSeenInAnOperationThatThisRankHasEnded) {
  const Disagreement found = disagreement_where_seen(1);
  EXPECT_EQ(found.seq, 1u);
  ASSERT_EQ(found.sides.size(), 2u);
  EXPECT_EQ(found.sides[0].shown->seq, 1u);
  EXPECT_EQ(found.sides[1].shown->seq, 1u);
}

TEST(JudgeAgreement, OfALaterOperationNothingIsSaidAboutThisOne) {
  const Disagreement found = disagreement_where_seen(3);
  EXPECT_EQ(found.seq, 2u);
  ASSERT_EQ(found.sides.size(), 2u);
  EXPECT_EQ(found.sides[0].shown->seq, 2u);
  EXPECT_FALSE(found.sides[1].shown.has_value());
}

TEST(JudgeAgreement, AnEarlierDifferenceComesBeforeTheOneThatWasSeen) {
  Scene scene(2);
  scene.enters(0, 2).enters(1, 1, 3).with_past(3).enters(1, 2, 3);
  const Finding finding = disagreement_with(scene.facts, operation(2), {1, operation(2, 3)});
  EXPECT_EQ(std::get<Disagreement>(finding.what).seq, 1u);
}

// ---- goodbyes ----------------------------------------------------------------------------------

TEST(JudgeGoodbye, EqualOnesEndWell) {
  for (const int size : kSizes)
    for (const std::uint64_t seq : {0u, 1u, 7u}) {
      Scene scene(size);
      scene.all_enter(seq);
      for (int member = 0; member < size; ++member) scene.leaves(member);
      EXPECT_FALSE(compare_goodbyes(scene.facts));
    }
}

TEST(JudgeGoodbye, OneThatIsStillThereIsNotCompared) {
  Scene scene(3);
  scene.all_enter(2).leaves(0).leaves(1);
  scene.enters(2, 3);
  EXPECT_FALSE(compare_goodbyes(scene.facts));
  scene.absent(2);
  EXPECT_FALSE(compare_goodbyes(scene.facts)) << "it has made room, so it has compared";
}

TEST(JudgeGoodbye, OneThatLeavesForAFailureIsNotCompared) {
  // Its host has told it of a death that the log does not have yet.
  for (const int size : kSizes) {
    Scene scene(size);
    scene.all_enter(2);
    scene.enters(size - 1, 3);
    for (int member = 0; member < size; ++member) scene.leaves(member);
    ASSERT_TRUE(compare_goodbyes(scene.facts));
    scene.fails(size - 1, ErrorCode::kPeerLost, {0}, "");
    EXPECT_FALSE(compare_goodbyes(scene.facts));
  }
}

TEST(JudgeGoodbye, MoreCallsOfOneAreToldAsFewerOfTheOther) {
  for (const int size : kSizes)
    for (const int rank : {0, size - 1})
      for (const std::uint64_t more : {1u, 2u, 3u, 9u}) {
        SCOPED_TRACE(testing::Message() << more << " more, rank " << rank << " of " << size);
        Scene scene(size, rank);
        scene.all_enter(2).enters(size - 1, 2 + more);
        for (int member = 0; member < size; ++member) scene.leaves(member);
        const auto finding = compare_goodbyes(scene.facts);
        ASSERT_NE(as<UnequalCalls>(finding), nullptr);
        const UnequalCalls& found = *as<UnequalCalls>(finding);
        EXPECT_EQ(finding->code, ErrorCode::kCollectiveMismatch);
        EXPECT_EQ(found.extra, 3u);
        EXPECT_EQ(found.more, size - 1);
        EXPECT_EQ(found.fewer, rank == 0 ? 0 : found.fewer);
        EXPECT_NE(found.fewer, size - 1);
        EXPECT_EQ(finding->culprits, std::vector<int>{found.fewer});
        EXPECT_EQ(found.shown.has_value(), more <= kHistory) << "as long as it is shown";
        EXPECT_EQ(found.calls.back(), 2 + more);
      }
}

TEST(JudgeGoodbye, AnOtherPastIsToldAtItsFirstDifference) {
  for (std::uint64_t different = 1; different <= 6; ++different)
    for (const std::uint64_t more : {0u, 1u}) {
      SCOPED_TRACE(testing::Message() << "#" << different << ", " << more << " more");
      Scene scene(2);
      scene.enters(0, 6);
      scene.enters(1, different - 1).enters(1, different, 5).with_past(5).enters(1, 6 + more, 5);
      scene.leaves(0).leaves(1);
      const auto finding = compare_goodbyes(scene.facts);
      ASSERT_TRUE(finding);
      const std::uint64_t oldest = 3 + more;
      EXPECT_EQ(as<Disagreement>(finding)->seq, std::max(different, oldest));
    }
}

// ---- failures that others tell -----------------------------------------------------------------

TEST(JudgeFailure, TheFirstWithATextIsTakenOver) {
  for (const int size : kSizes)
    for (const int told : {1, size - 1}) {
      Scene scene(size);
      EXPECT_FALSE(find_failure(scene.facts));
      for (int member = 1; member < size; ++member)
        scene.fails(member, ErrorCode::kAborted, {0}, member >= told ? "enough" : "");
      const auto found = find_failure(scene.facts);
      ASSERT_TRUE(found);
      EXPECT_EQ(found->member, told);
      EXPECT_EQ(found->failure.text, "enough");
      EXPECT_EQ(found->failure.culprits, std::vector<int>{0});
    }
}

TEST(JudgeFailure, OneWithoutATextIsBetterThanNone) {
  Scene scene(4, 1);
  scene.fails(1, ErrorCode::kTimeout, {3}, "own");
  EXPECT_FALSE(find_failure(scene.facts)) << "the own one is no news";
  scene.fails(2, ErrorCode::kPeerLost, {3}, "").fails(3, ErrorCode::kTimeout, {0}, "");
  EXPECT_EQ(find_failure(scene.facts)->member, 2);
  EXPECT_EQ(find_failure(scene.facts)->failure.code, ErrorCode::kPeerLost);
}

TEST(JudgeFailure, ALossThatNamesThisRankIsThatOfAHostThatHasParted) {
  Scene scene(3, 1);
  scene.fails(0, ErrorCode::kPeerLost, {1, 2}, "out of reach");
  EXPECT_FALSE(find_failure(scene.facts));
  scene.fails(2, ErrorCode::kPeerLost, {0}, "out of reach");
  EXPECT_EQ(find_failure(scene.facts)->member, 2);
  scene.fails(0, ErrorCode::kTimeout, {1}, "late");
  EXPECT_EQ(find_failure(scene.facts)->member, 0) << "only losses are of one side";
}

TEST(JudgeFailure, ALossIsNoneForAGroupThatTheLostHadLeft) {
  for (const int size : kSizes)
    for (const LineState state : {LineState::meeting, LineState::open, LineState::closing,
                                  LineState::closed, LineState::gave_up, LineState::gone}) {
      Scene scene(size);
      scene.line(size - 1).state = state;
      const bool is_loss = !has_left(state);
      EXPECT_EQ(lost_to(scene.facts, {size - 1}),
                is_loss ? std::vector<int>{size - 1} : std::vector<int>{});
      scene.absent(size - 1);
      EXPECT_EQ(lost_to(scene.facts, {size - 1}), std::vector<int>{size - 1});
    }
}

TEST(JudgeFailure, OneThatHasGoneWellNeverHearsOfADisagreement) {
  for (const ErrorCode code : {ErrorCode::kCollectiveMismatch, ErrorCode::kClosed,
                               ErrorCode::kTimeout, ErrorCode::kPeerLost, ErrorCode::kAborted}) {
    const bool concerns = code == ErrorCode::kCollectiveMismatch || code == ErrorCode::kClosed;
    Scene scene(3);
    scene.all_enter(1).leaves(1, LineState::closed);
    EXPECT_FALSE(comes_too_late(scene.facts, code)) << "its group is still there";
    scene.leaves(1, LineState::gone);
    EXPECT_EQ(comes_too_late(scene.facts, code), concerns);
    scene.fails(1, ErrorCode::kTimeout, {}, "");
    EXPECT_FALSE(comes_too_late(scene.facts, code)) << "it has failed as well";
    scene.absent(1);
    EXPECT_FALSE(comes_too_late(scene.facts, code));
    scene.of(1).has_left_world = true;
    EXPECT_EQ(comes_too_late(scene.facts, code), concerns);
  }
}

TEST(JudgeLine, IsKeptUntilAllHaveCompared) {
  for (const LineState state :
       {LineState::meeting, LineState::open, LineState::closing, LineState::closed,
        LineState::gave_up, LineState::gone, LineState::gone_after_gave_up, LineState::unmade}) {
    Scene scene(3);
    for (int member = 0; member < 3; ++member) scene.leaves(member, LineState::gone);
    EXPECT_FALSE(is_line_needed(scene.facts));
    scene.line(2).state = state;
    const bool reads = state < LineState::closed;
    EXPECT_EQ(is_line_needed(scene.facts), reads);
    scene.of(2).has_left_world = true;
    EXPECT_FALSE(is_line_needed(scene.facts));
    scene.of(2).has_left_world = false;
    scene.of(2).is_lost = true;
    EXPECT_FALSE(is_line_needed(scene.facts));
    scene.of(2).is_lost = false;
    scene.absent(2);
    EXPECT_FALSE(is_line_needed(scene.facts));
  }
}

TEST(JudgeLine, OfAGroupThatCouldNotBeMadeIsKeptForWhoComesYet) {
  Scene scene(3);
  for (int member = 0; member < 2; ++member) scene.leaves(member, LineState::unmade);
  scene.absent(2);
  EXPECT_TRUE(is_line_needed(scene.facts));
  scene.of(2).has_left_world = true;
  EXPECT_FALSE(is_line_needed(scene.facts));
  scene.of(2).has_left_world = false;
  scene.of(2).is_lost = true;
  EXPECT_FALSE(is_line_needed(scene.facts));
  Scene all(3);
  for (int member = 0; member < 3; ++member) all.leaves(member, LineState::unmade);
  EXPECT_FALSE(is_line_needed(all.facts)) << "all have come, and heard";
  all.absent(2);
  EXPECT_FALSE(is_line_needed(all.facts, {2})) << "it has made room since";
}

// ---- meetings ----------------------------------------------------------------------------------

constexpr GroupId kGroup = 77, kParent = 5;

/// A group of ranks 0 to size - 1 of the world, made by rank 0, to which nobody else has come.
struct Making {
  explicit Making(int size) : scene(size) {
    for (int member = 1; member < size; ++member) scene.absent(member);
    for (int member = 0; member < size; ++member) question.world_ranks.emplace_back(member);
    clock.began = kStart;
    clock.next_line = kStart + 30s;
    clock.deadline = Deadline::after(100s);
    clock.deadline.start(kStart);
  }
  MeetingLook look_after(std::chrono::nanoseconds waited) {
    return look_at_meeting(question, scene.facts, clock, kStart + waited);
  }
  /// `member` makes another group that awaits rank 0 as well.
  MeetingFacts& meets_elsewhere(int member) {
    scene.of(member).meetings = {{.group = 88,
                                  .asked_of = kParent,
                                  .members = {WorldRank(0), WorldRank(member)},
                                  .looks = 1}};
    return scene.of(member).meetings[0];
  }

  Scene scene;
  MeetingQuestion question = {.group = kGroup, .asked_of = kParent};
  MeetingClock clock;
};

TEST(JudgeMeeting, WhoIsElsewhereIsAskedBeforeItIsNamed) {
  Making making(3);
  making.scene.of(2).asked = kStart;
  EXPECT_EQ(making.look_after(1s).ask, (std::vector<int>{1, 2}));
  const MeetingLook due = making.look_after(100s);
  EXPECT_FALSE(due.finding);
  EXPECT_EQ(due.ask, std::vector<int>{2});
  EXPECT_GT(due.next, kStart + 100s) << "else it goes round in circles";
  Making silent = making;
  making.scene.of(2).asked = kStart + 100s;
  const MeetingLook answered = making.look_after(101s);
  ASSERT_TRUE(answered.finding);
  EXPECT_EQ(answered.finding->culprits, (std::vector<int>{1, 2}));
  EXPECT_TRUE(answered.finding->silent.empty());
  EXPECT_FALSE(silent.look_after(100s + kAnswerComes - 1ms).finding);
  const MeetingLook given_up = silent.look_after(100s + kAnswerComes);
  ASSERT_TRUE(given_up.finding);
  EXPECT_EQ(given_up.finding->silent, std::vector<int>{2});
}

TEST(JudgeMeeting, EndsWhenAllHaveCome) {
  for (const int size : kSizes) {
    Making making(size);
    for (int member = 1; member < size; ++member) making.scene.of(member).line.emplace();
    const MeetingLook found = making.look_after(200s);
    EXPECT_FALSE(found.finding) << "however late";
    EXPECT_FALSE(found.ends_with_parent);
  }
}

TEST(JudgeMeeting, NamesAllWhoHaveNotCome) {
  for (const int size : kSizes) {
    SCOPED_TRACE(size);
    Making making(size);
    making.scene.of(1).line.emplace();
    if (size == 2) making.scene.absent(1);
    EXPECT_FALSE(making.look_after(99s).finding);
    const MeetingLook due = making.look_after(100s);
    ASSERT_NE(as<NotCome>(due.finding), nullptr);
    EXPECT_EQ(due.finding->code, ErrorCode::kTimeout);
    EXPECT_EQ(due.finding->culprits, range(size == 2 ? 1 : 2, size));
  }
}

TEST(JudgeMeeting, SaysNowAndThenWhoIsAwaited) {
  Making making(3);
  making.clock.deadline = Deadline();
  std::vector<int> said;
  for (int second = 1; second < 300; ++second) {
    const MeetingLook found = making.look_after(std::chrono::seconds(second));
    EXPECT_EQ(found.next, kStart + std::chrono::seconds(second) + 20ms);
    if (!found.awaited.empty()) said.push_back(second);
  }
  EXPECT_EQ(said, (std::vector<int>{30, 60, 120, 240}));
}

TEST(JudgeMeeting, OneThatLeftTheWorldWillNotCome) {
  for (const int size : kSizes) {
    Making making(size);
    making.scene.of(size - 1).has_left_world = true;
    const MeetingLook found = making.look_after(5ms);
    ASSERT_NE(as<LeftWorld>(found.finding), nullptr);
    EXPECT_EQ(found.finding->code, ErrorCode::kClosed);
    EXPECT_EQ(found.finding->culprits, std::vector<int>{size - 1});
    making.question.parent_failed = true;
    EXPECT_TRUE(making.look_after(6ms).ends_with_parent) << "it may have gone because of that";
    EXPECT_FALSE(making.look_after(7ms).finding);
  }
}

TEST(JudgeMeeting, OneThatClosedTheParentWillNotCome) {
  for (const int size : kSizes) {
    Making making(size);
    making.question.left_parent = {size - 1};
    EXPECT_FALSE(making.look_after(99ms).finding) << "it may be about to say more";
    const MeetingLook found = making.look_after(100ms);
    ASSERT_NE(as<LeftParent>(found.finding), nullptr);
    EXPECT_EQ(found.finding->code, ErrorCode::kClosed);
    EXPECT_EQ(found.finding->culprits, std::vector<int>{size - 1});
    making.question.parent_failed = true;
    EXPECT_TRUE(making.look_after(101ms).ends_with_parent) << "it may have gone because of that";
  }
  Making making(2);
  making.scene.of(1).line.emplace();
  making.question.left_parent = {1};
  EXPECT_FALSE(making.look_after(200ms).finding) << "it has come, and may have gone on since";
}

TEST(JudgeMeeting, OneThatCameAndLeftHasCome) {
  Making making(2);
  making.scene.of(1).line.emplace();
  making.scene.of(1).has_left_world = true;
  EXPECT_FALSE(making.look_after(5ms).finding);
}

TEST(JudgeMeeting, TwoThatAwaitEachOtherElsewhereAreTold) {
  for (const int size : kSizes) {
    SCOPED_TRACE(size);
    const int member = size - 1;
    Making making(size);
    for (int come = 1; come < member; ++come) making.scene.of(come).line.emplace();
    MeetingFacts& other = making.meets_elsewhere(member);
    EXPECT_FALSE(making.look_after(20ms).finding) << "it may not have looked at what has happened";
    other.looks = 2;
    EXPECT_FALSE(making.look_after(40ms).finding) << "that look began before";
    other.looks = 3;
    const MeetingLook found = making.look_after(60ms);
    ASSERT_NE(as<AskedOtherwise>(found.finding), nullptr);
    EXPECT_EQ(found.finding->code, ErrorCode::kCollectiveMismatch);
    // Of two either may be wrong.
    EXPECT_EQ(found.finding->culprits, (size == 2 ? std::vector{0, 1} : std::vector{member}));
    EXPECT_EQ(as<AskedOtherwise>(found.finding)->group, 88u);
  }
}

/// What is told where `here` of `size` members, rank 0 among them, have come, and `there` make
/// another group, which all of them wait for there.
MeetingLook look_at_askers(int size, const std::vector<int>& here, const std::vector<int>& there,
                           std::chrono::nanoseconds after) {
  Making making(size);
  for (const int member : here) making.scene.of(member).line.emplace();
  for (const int member : there)
    making.meets_elsewhere(member).members = making.question.world_ranks;
  making.look_after(after - 1ms);
  for (const int member : there) making.scene.of(member).meetings[0].looks += 2;
  return making.look_after(after);
}

TEST(JudgeMeeting, TheSmallerSideOfThoseWhoAskedIsNamedByAll) {
  struct Case {
    int size;
    std::vector<int> here, there, culprits;
  };
  for (const Case& each : {
           Case{3, {0, 1}, {2}, {2}},
           Case{3, {0}, {1, 2}, {0}},
           Case{4, {0, 2}, {1, 3}, {0, 1, 2, 3}},
           Case{4, {0, 1, 3}, {2}, {2}},
           Case{5, {0, 4}, {1, 2, 3}, {0, 4}},
       }) {
    const auto found = look_at_askers(each.size, each.here, each.there, 20ms).finding;
    ASSERT_TRUE(found);
    EXPECT_EQ(found->culprits, each.culprits);
  }
  for (const int size : {64, 1000}) {
    std::vector<int> others(static_cast<std::size_t>(size - 1));
    std::iota(others.begin(), others.end(), 1);
    EXPECT_EQ(look_at_askers(size, {0}, others, 20ms).finding->culprits, std::vector<int>{0});
    const int last = std::exchange(others.back(), 0);
    EXPECT_EQ(look_at_askers(size, others, {last}, 20ms).finding->culprits, std::vector<int>{last});
  }
}

TEST(JudgeMeeting, WhoHasAskedForNeitherYetIsAwaitedAWhile) {
  const MeetingLook early = look_at_askers(4, {0}, {1}, 499ms);
  EXPECT_FALSE(early.finding);
  EXPECT_TRUE(early.is_disputed) << "this wait is no part of a deadlock";
  const MeetingLook found = look_at_askers(4, {0}, {1}, 500ms);
  ASSERT_TRUE(found.finding);
  EXPECT_EQ(found.finding->culprits, (std::vector<int>{0, 1}));
}

TEST(JudgeMeeting, AtTheDeadlineNobodyIsAwaitedMore) {
  Making making(4);
  making.clock.deadline = Deadline::after(200ms);
  making.clock.deadline.start(kStart);
  MeetingFacts& other = making.meets_elsewhere(1);
  other.members = making.question.world_ranks;
  making.look_after(20ms);
  other.looks += 2;
  EXPECT_FALSE(making.look_after(199ms).finding);
  EXPECT_NE(as<AskedOtherwise>(making.look_after(200ms).finding), nullptr)
      << "and not that it is late";
}

TEST(JudgeMeeting, WhoMakesTheSmallerGroupLeavesItToTheOthersFirst) {
  Making making(2);
  MeetingFacts& other = making.meets_elsewhere(1);
  other.members = {WorldRank(0), WorldRank(1), WorldRank(2)};
  making.look_after(10ms);
  other.looks += 2;
  const MeetingLook early = making.look_after(999ms);
  EXPECT_FALSE(early.finding);
  EXPECT_TRUE(early.is_disputed);
  EXPECT_NE(as<AskedOtherwise>(making.look_after(1000ms).finding), nullptr);
}

TEST(JudgeMeeting, WhoHasLeftTheParentIsNotAwaitedToAsk) {
  Making making(3);
  making.question.left_parent = {2};
  MeetingFacts& other = making.meets_elsewhere(1);
  other.members = making.question.world_ranks;
  making.look_after(10ms);
  other.looks += 2;
  const MeetingLook found = making.look_after(20ms);
  ASSERT_NE(as<AskedOtherwise>(found.finding), nullptr);
  EXPECT_EQ(found.finding->culprits, (std::vector<int>{0, 1}));
  EXPECT_EQ(found.ask, (std::vector<int>{1, 2})) << "it may be told, and go on, meanwhile";
}

/// A third group awaits a member that has come here: it fails, too.
TEST(JudgeMeeting, AllGroupsThatAwaitWhoHasComeFailOfIt) {
  Making making(5);
  for (const int member : {1, 2}) making.scene.of(member).line.emplace();
  making.meets_elsewhere(3);
  MeetingFacts& third = making.meets_elsewhere(4);
  third.group = 99;
  third.members = {WorldRank(4), WorldRank(1)};
  making.look_after(10ms);
  making.scene.of(3).meetings[0].looks += 2;
  EXPECT_FALSE(making.look_after(20ms).finding) << "rank 4 may be about to come";
  Making late = making;
  const MeetingLook without = late.look_after(500ms);
  ASSERT_NE(as<AskedOtherwise>(without.finding), nullptr);
  EXPECT_EQ(as<AskedOtherwise>(without.finding)->groups, std::vector<GroupId>{88});
  EXPECT_EQ(without.finding->culprits, std::vector<int>{3});
  third.looks += 2;
  const MeetingLook found = making.look_after(40ms);
  ASSERT_NE(as<AskedOtherwise>(found.finding), nullptr);
  EXPECT_EQ(as<AskedOtherwise>(found.finding)->groups, (std::vector<GroupId>{88, 99}));
  EXPECT_EQ(found.finding->culprits, (std::vector<int>{3, 4}));
}

/// Who has come here and is awaited there finds it.
TEST(JudgeMeeting, AMeetingThatAwaitsAnotherMemberIsForThatOneToFind) {
  Making making(3);
  making.scene.of(1).line.emplace();
  MeetingFacts& other = making.meets_elsewhere(2);
  other.members = {WorldRank(2), WorldRank(1)};
  making.look_after(10ms);
  other.looks += 2;
  EXPECT_FALSE(making.look_after(40ms).finding);
  EXPECT_FALSE(making.look_after(600ms).finding) << "whoever else may come";
}

TEST(JudgeMeeting, LooksCountFromWhereThatMeetingWasFirstSeen) {
  Making making(2);
  making.meets_elsewhere(1).looks = 50;
  EXPECT_FALSE(making.look_after(20ms).finding);
  making.scene.of(1).meetings[0].group = 99;
  making.scene.of(1).meetings[0].looks = 90;
  EXPECT_FALSE(making.look_after(40ms).finding) << "another meeting";
  making.scene.of(1).meetings[0].looks = 92;
  EXPECT_TRUE(making.look_after(60ms).finding);
}

TEST(JudgeMeeting, OtherMeetingsThatDoNotConcernThisRankAreNone) {
  struct Case {
    const char* name;
    void (*change)(Making&, MeetingFacts&);
  };
  for (const Case& each : {
           Case{"of another parent", [](Making&, MeetingFacts&other) { other.asked_of = 6; }},
           Case{"without this rank",
                [](Making&, MeetingFacts&other) {
                  other.members = {WorldRank(1), WorldRank(2)};
                }},
           Case{"the same group", [](Making&, MeetingFacts&other) { other.group = kGroup; }},
           Case{"this is a world",
                [](Making&making, MeetingFacts&) { making.question.asked_of = 0; }},
           Case{"it has come here as well",
                [](Making&making, MeetingFacts&) { making.scene.of(1).line.emplace(); }},
       }) {
    Making making(2);
    MeetingFacts& other = making.meets_elsewhere(1);
    each.change(making, other);
    making.look_after(20ms);
    other.looks = 10;
    EXPECT_FALSE(making.look_after(40ms).finding) << each.name;
  }
}

TEST(JudgeMeeting, EndsWithItsParent) {
  for (const int size : kSizes) {
    Making making(size);
    making.question.parent_failed = true;
    const MeetingLook found = making.look_after(200s);
    EXPECT_TRUE(found.ends_with_parent) << "whatever the time";
    EXPECT_FALSE(found.finding);
  }
}

// ---- deaths ------------------------------------------------------------------------------------

TEST(JudgeDeaths, TheLowestLivingRankDecidesAndAnotherOneLater) {
  for (const int size : {1, 2, 3, 64, 256})
    for (const int gone : {0, 1, size / 2, size - 1})
      for (int how = 0; how < 3; ++how) {
        std::vector<RankFacts> ranks(static_cast<std::size_t>(size), RankFacts{.is_running = true});
        for (int rank = 0; rank < gone; ++rank) {
          RankFacts& facts = ranks[static_cast<std::size_t>(rank)];
          if (how == 0) facts.is_running = false;
          if (how == 1) facts.has_ended = true;
          if (how == 2) facts.is_lost = true;
        }
        for (int rank = gone; rank < size; ++rank)
          EXPECT_EQ(due_to_decide(SlotIndex(rank), ranks, kStart),
                    kStart + (rank == gone ? kFreeze : kOvertake))
              << "rank " << rank << " of " << size << ", " << gone << " gone";
      }
}

TEST(JudgeDeaths, AnErrorThatMayFollowAnotherOneWaitsForThat) {
  struct Case {
    ErrorCode own;
    std::chrono::milliseconds waits;
  };
  for (const Case& each : {Case{ErrorCode::kPeerLost, 1500ms},
                           {ErrorCode::kSystem, 500ms},
                           {ErrorCode::kTimeout, 500ms},
                           {ErrorCode::kAborted, 500ms},
                           {ErrorCode::kInvalidArgument, 0ms},
                           {ErrorCode::kUnsupported, 0ms},
                           {ErrorCode::kCollectiveMismatch, 0ms}}) {
    EXPECT_EQ(awaits_cause(each.own, 0ms, false), each.waits > 0ms);
    EXPECT_FALSE(awaits_cause(each.own, each.waits, false));
    if (each.waits > 0ms) {
      EXPECT_TRUE(awaits_cause(each.own, each.waits - 1ms, false));
    }
    EXPECT_TRUE(awaits_cause(each.own, 2999ms, true)) << "the verdict is on its way";
    EXPECT_FALSE(awaits_cause(each.own, 3000ms, true));
  }
}

}  // namespace
}  // namespace tutti::control
