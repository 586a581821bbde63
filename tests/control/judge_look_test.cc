// The judge of long waits, in made-up situations.
#include <gtest/gtest.h>

#include "control/scene.h"

namespace tutti::control {
namespace {

using Verdict = Patience::Verdict;

const std::vector<int> kSizes = {2, 3, 5, 8, 64, 1000};

/// Some members of a group of that size: the ends, the middle.
std::vector<int> some_of(int size) {
  std::vector<int> members = {0, size - 1};
  for (const int each : {1, size / 2})
    if (each != 0 && each != size - 1) members.push_back(each);
  return members;
}

std::vector<int> others_of(int size, int member) {
  std::vector<int> members = range(0, member);
  for (int each = member + 1; each < size; ++each) members.push_back(each);
  return members;
}

// ---- collectives: who is missing ---------------------------------------------------------------

TEST(JudgeLook, OneThatHasNotEnteredIsNamedWhenItsTimeHasPassed) {
  for (const int size : kSizes)
    for (const int late : some_of(size)) {
      SCOPED_TRACE(testing::Message() << late << " of " << size);
      Scene scene(size, late == 0 ? 1 : 0);
      for (const int member : others_of(size, late)) scene.enters(member, 1);
      Wait wait(collective_at(1));
      const Look early = wait.look_after(5ms, scene);
      EXPECT_FALSE(early.finding);
      EXPECT_EQ(early.verdict, Verdict::keep_waiting);
      EXPECT_EQ(early.next, kStart + 10ms);
      EXPECT_FALSE(wait.look_after(9999ms, scene).finding);
      const Look due = wait.look_after(10s, scene);
      ASSERT_NE(as<NotEntered>(due.finding), nullptr);
      EXPECT_EQ(due.finding->code, ErrorCode::kTimeout);
      EXPECT_EQ(due.finding->culprits, std::vector<int>{late});
      EXPECT_EQ(due.verdict, Verdict::keep_waiting) << "the abort word ends the wait";
    }
}

TEST(JudgeLook, ThoseFurthestBehindAreNamedOrAllIfTheRequestSaysSo) {
  for (const int size : {3, 5, 64, 1000})
    for (const bool names_all : {false, true}) {
      SCOPED_TRACE(testing::Message() << size << (names_all ? ", all" : ""));
      Scene scene(size);
      scene.enters(0, 3);
      scene.enters(1, 2);  // waits for the others, say
      for (int member = 2; member < size; ++member) scene.enters(member, 1);
      Request request = collective_at(3);
      request.names_all = names_all;
      Wait wait(request);
      const Look due = wait.look_after(10s, scene);
      ASSERT_TRUE(due.finding);
      EXPECT_EQ(due.finding->culprits, range(names_all ? 1 : 2, size));
    }
}

TEST(JudgeLook, AMemberThatHasNotMadeTheGroupHasEnteredNothing) {
  Scene scene(3);
  scene.all_enter(1).absent(2);
  Wait wait(collective_at(1));
  EXPECT_EQ(wait.look_after(10s, scene).finding->culprits, std::vector<int>{2});
}

TEST(JudgeLook, AClockOfTheOperationOutlivesOneOfItsWaits) {
  Scene scene(2);
  scene.enters(0, 1);
  Wait first(collective_at(1), 1);
  EXPECT_FALSE(first.look_after(9s, scene).finding);
  Wait second(collective_at(1), 1);
  second.arrive = first.arrive;
  second.clock = {};
  second.clock.begin(second.request, kStart + 9s, 30s);
  EXPECT_TRUE(second.look_after(10s, scene).finding);
}

TEST(JudgeLook, ANewOperationHasANewClock) {
  Scene scene(2);
  scene.all_enter(1).enters(0, 2);
  Wait wait(collective_at(2), 1);
  wait.arrive = {1, Deadline::after(1s)};
  EXPECT_FALSE(wait.look_after(2s, scene).finding);
}

TEST(JudgeLook, WithoutADeadlineNobodyIsEverLate) {
  Scene scene(2);
  scene.enters(0, 1);
  Request request = collective_at(1);
  request.arrive = request.stall = Deadline();
  Wait wait(request, 1);
  for (const auto waited : {5ms, 1000ms, 100'000ms, 1'000'000'000ms})
    EXPECT_FALSE(wait.look_after(waited, scene).finding);
}

TEST(JudgeLook, AWaitThatIsShortAsksNobody) {
  for (const bool is_late : {true, false}) {
    SCOPED_TRACE(is_late ? "late" : "under way");
    Scene scene(3);
    scene.all_enter(1);
    if (is_late) scene.line(2) = {};
    Wait wait(collective_at(1));
    for (const auto waited : {5ms, 15ms, 49ms})
      EXPECT_TRUE(wait.look_after(waited, scene).ask.empty()) << waited.count();
    EXPECT_EQ(wait.look_after(50ms, scene).ask, is_late ? std::vector{2} : others_of(3, 0));
  }
}

TEST(JudgeLook, OldNewsOfAMemberIsAskedForBeforeItIsNamed) {
  for (const int size : {2, 64})
    for (const bool is_late : {true, false}) {
      SCOPED_TRACE(testing::Message() << size << (is_late ? ", late" : ", stalled"));
      Scene scene(size);
      scene.all_enter(1);
      if (is_late) scene.line(size - 1) = {};
      scene.of(size - 1).asked = kStart + 5ms;
      Wait wait(collective_at(1));
      wait.look_after(5ms, scene);
      const Look due = wait.look_after(30s, scene);
      EXPECT_FALSE(due.finding);
      EXPECT_EQ(due.ask, std::vector<int>{size - 1});
      scene.of(size - 1).asked = kStart + 29s;
      EXPECT_FALSE(wait.look_after(31s, scene).finding) << "asked before it was due";
      scene.of(size - 1).asked = kStart + 30s;
      const Look asked = wait.look_after(32s, scene);
      ASSERT_TRUE(asked.finding);
      EXPECT_TRUE(asked.ask.empty());
      EXPECT_EQ(as<NotEntered>(asked.finding) != nullptr, is_late);
    }
}

TEST(JudgeLook, WhoDoesNotAnswerIsNamedByWhatWasKnownAndThatIsSaid) {
  for (const bool is_late : {true, false}) {
    Scene scene(3);
    scene.all_enter(1);
    if (is_late) scene.line(2) = {};
    scene.of(2).asked = kStart + 5ms;
    Wait wait(collective_at(1));
    wait.look_after(5ms, scene);
    EXPECT_FALSE(wait.look_after(30s, scene).finding);
    EXPECT_FALSE(wait.look_after(30s + kAnswerComes - 1ms, scene).finding);
    const Look look = wait.look_after(30s + kAnswerComes, scene);
    ASSERT_TRUE(look.finding);
    EXPECT_EQ(look.finding->silent, std::vector<int>{2});
    EXPECT_EQ(as<NotEntered>(look.finding) != nullptr, is_late);
  }
}

// ---- collectives: does anything move -----------------------------------------------------------

TEST(JudgeLook, NothingMovesOnceAllAreIn) {
  for (const int size : kSizes)
    for (const int ended : some_of(size)) {
      SCOPED_TRACE(testing::Message() << ended << " of " << size);
      Scene scene(size, ended == 0 ? 1 : 0);
      scene.all_enter(1).ends(ended);
      Wait wait(collective_at(1));
      EXPECT_FALSE(wait.look_after(5ms, scene).finding);
      EXPECT_FALSE(wait.look_after(4900ms, scene).finding);
      const Look due = wait.look_after(5006ms, scene);
      ASSERT_NE(as<Stalled>(due.finding), nullptr);
      EXPECT_EQ(due.finding->code, ErrorCode::kTimeout);
      std::vector<int> expected = others_of(size, scene.facts.rank);
      std::erase(expected, ended);
      EXPECT_EQ(due.finding->culprits, expected) << "neither this rank nor one that has ended it";
    }
}

TEST(JudgeLook, AnyBytesKeepTheOperationAlive) {
  for (const int size : kSizes)
    for (const int mover : some_of(size)) {
      SCOPED_TRACE(testing::Message() << mover << " of " << size);
      Scene scene(size);
      scene.all_enter(1);
      Wait wait(collective_at(1));
      for (int second = 0; second < 60; second += 4) {
        scene.line(mover).progress += 1;
        EXPECT_FALSE(wait.look_after(std::chrono::seconds(second), scene).finding);
      }
      EXPECT_TRUE(wait.look_after(62s, scene).finding);
    }
}

TEST(JudgeLook, TheOneThatHasMovedLeastKeepsTheOperationAliveToo) {
  Scene scene(3);
  scene.all_enter(1);
  scene.line(0).progress = 1000;
  Wait wait(collective_at(1));
  for (int second = 0; second < 60; second += 4) {
    scene.line(1).progress += 1;
    EXPECT_FALSE(wait.look_after(std::chrono::seconds(second), scene).finding);
  }
}

TEST(JudgeLook, AnAnswerFromBeforeTheLastBytesIsOldNews) {
  Scene scene(2);
  scene.all_enter(1);
  scene.of(1).asked = kStart;
  Wait wait(collective_at(1));
  EXPECT_FALSE(wait.look_after(5ms, scene).finding);
  EXPECT_EQ(wait.look_after(6s, scene).ask, std::vector<int>{1}) << "nothing seems to have moved";
  scene.of(1).asked = kStart + 6100ms;
  scene.line(1).progress += 1;
  EXPECT_FALSE(wait.look_after(6200ms, scene).finding);
  const Look due = wait.look_after(12s, scene);
  EXPECT_FALSE(due.finding) << "that answer was of the first question";
  EXPECT_EQ(due.ask, std::vector<int>{1});
  scene.of(1).asked = kStart + 12s;
  EXPECT_TRUE(wait.look_after(12100ms, scene).finding);
}

TEST(JudgeLook, TheClockOfStallsBeginsWhenAllAreIn) {
  Scene scene(2);
  scene.enters(0, 1);
  Wait wait(collective_at(1));
  EXPECT_FALSE(wait.look_after(9s, scene).finding);
  scene.enters(1, 1);
  EXPECT_FALSE(wait.look_after(9900ms, scene).finding);
  EXPECT_FALSE(wait.look_after(14800ms, scene).finding);
  EXPECT_NE(as<Stalled>(wait.look_after(14901ms, scene).finding), nullptr);
}

TEST(JudgeLook, AWaitForOneNamesThatOne) {
  for (const int awaited : {0, 1, 2, 4}) {
    Scene scene(5, 3);
    scene.all_enter(1);
    Wait wait(collective_at(1), awaited);
    wait.look_after(0s, scene);
    EXPECT_EQ(wait.look_after(6s, scene).finding->culprits, std::vector<int>{awaited});
  }
}

// ---- collectives: who has left -----------------------------------------------------------------

TEST(JudgeLook, OneThatHasLeftIsNamedOnTheSecondLook) {
  for (const int size : kSizes)
    for (const int gone : some_of(size))
      for (const LineState state : {LineState::closing, LineState::closed, LineState::gave_up,
                                    LineState::gone, LineState::gone_after_gave_up}) {
        SCOPED_TRACE(testing::Message() << gone << " of " << size);
        Scene scene(size, gone == 0 ? 1 : 0);
        for (const int member : others_of(size, gone)) scene.enters(member, 3);
        scene.enters(gone, 2).leaves(gone, state);
        Wait wait(collective_at(3));
        const Look first = wait.look_after(5ms, scene);
        EXPECT_FALSE(first.finding);
        EXPECT_EQ(first.next, kStart + 6ms) << "its last data may just have come";
        const Look second = wait.look_after(6ms, scene);
        ASSERT_NE(as<LeftEarly>(second.finding), nullptr);
        EXPECT_EQ(second.finding->code, ErrorCode::kClosed);
        EXPECT_EQ(second.finding->culprits, std::vector<int>{gone});
        const LeftEarly& found = *as<LeftEarly>(second.finding);
        EXPECT_EQ(found.last, 2u);
        CallCounts calls(static_cast<std::size_t>(size), 3);
        calls[static_cast<std::size_t>(gone)] = 2;
        EXPECT_EQ(found.calls, calls);
      }
}

// What is known of ranks on other hosts may be thousands of collectives old.
TEST(JudgeLook, OnesOnOtherHostsAreAskedHowManyCollectivesTheyHaveCalled) {
  for (const bool answers : {true, false}) {
    Scene scene(4, 1);
    for (const int member : {1, 2, 3}) scene.enters(member, member == 1 ? 6 : 1);
    scene.enters(0, 5).leaves(0);
    for (const int member : {0, 2, 3}) scene.of(member).asked = Clock::time_point{};
    Wait wait(collective_at(6));
    wait.look_after(5ms, scene);
    const Look second = wait.look_after(6ms, scene);
    EXPECT_FALSE(second.finding);
    EXPECT_EQ(second.ask, (std::vector{2, 3}));
    for (const int member : {2, 3}) {
      if (!answers && member == 3) continue;
      scene.enters(member, 5);
      scene.of(member).asked = kStart + 6ms;
    }
    const Look third = wait.look_after(answers ? 7ms : 255ms, scene);
    EXPECT_EQ(as<LeftEarly>(third.finding) != nullptr, answers);
    const Look last = wait.look_after(256ms, scene);
    ASSERT_NE(as<LeftEarly>(last.finding), nullptr);
    const auto of_three = answers ? std::optional<std::uint64_t>(5) : std::nullopt;
    EXPECT_EQ(as<LeftEarly>(last.finding)->calls, (CallCounts{5, 6, 5, of_three}));
  }
}

TEST(JudgeLook, OneThatHasDoneItsPartMayLeave) {
  for (const int size : kSizes) {
    Scene scene(size);
    scene.all_enter(1).leaves(size - 1);
    Wait wait(collective_at(1));
    wait.look_after(5ms, scene);
    EXPECT_FALSE(wait.look_after(6ms, scene).finding);
    EXPECT_FALSE(wait.clock.peer_left);
  }
}

TEST(JudgeLook, OneThatMadeRoomHasLeftTheWorldOrNot) {
  for (const bool has_left_world : {true, false}) {
    Scene scene(3);
    scene.all_enter(1).absent(1);
    scene.of(1).has_left_world = has_left_world;
    Wait wait(collective_at(1));
    wait.look_after(5ms, scene);
    const Look second = wait.look_after(6ms, scene);
    EXPECT_EQ(as<LeftEarly>(second.finding) != nullptr, has_left_world);
  }
}

TEST(JudgeLook, AWaitForOneAsksNothingOfTheOthers) {
  Scene scene(4);
  scene.enters(0, 1).enters(1, 1).leaves(3);
  Wait wait(collective_at(1), 1);
  wait.look_after(5ms, scene);
  EXPECT_FALSE(wait.look_after(6ms, scene).finding);
}

// ---- the order of blame ------------------------------------------------------------------------

TEST(JudgeLook, ADisagreementComesBeforeAnythingElse) {
  for (const int size : {2, 3, 64, 1000}) {
    SCOPED_TRACE(size);
    Scene scene(size);
    scene.all_enter(1);
    scene.line(size - 1) = {};
    scene.enters(size - 1, 1, 7).leaves(size - 1);
    Wait wait(collective_at(1));
    const Look due = wait.look_after(60s, scene);
    ASSERT_NE(as<Disagreement>(due.finding), nullptr);
    EXPECT_EQ(due.finding->code, ErrorCode::kCollectiveMismatch);
  }
}

TEST(JudgeLook, OneThatLeftComesBeforeOneThatIsLate) {
  Scene scene(3);
  scene.enters(0, 1).leaves(2);
  Wait wait(collective_at(1));
  wait.look_after(59s, scene);
  EXPECT_EQ(wait.look_after(60s, scene).finding->culprits, std::vector<int>{2});
}

// ---- messages ----------------------------------------------------------------------------------

TEST(JudgeLook, AMessageGivesUpAndTheGroupGoesOn) {
  for (const Op op : {Op::send, Op::recv})
    for (const int size : kSizes) {
      Scene scene(size);
      Wait wait(message_of(op, size - 1), size - 1);
      EXPECT_EQ(wait.look_after(5ms, scene).verdict, Verdict::keep_waiting);
      const Look last = wait.look_after(10004ms, scene);
      EXPECT_EQ(last.verdict, Verdict::keep_waiting);
      EXPECT_EQ(last.next, kStart + 10005ms) << "and not later";
      const Look due = wait.look_after(10005ms, scene);
      EXPECT_EQ(due.verdict, Verdict::give_up);
      EXPECT_FALSE(due.finding);
    }
}

TEST(JudgeLook, AMessageThatIsMatchedMustMove) {
  for (const Op op : {Op::send, Op::recv}) {
    Scene scene(3);
    Wait wait(message_of(op, 1), 1);
    EXPECT_FALSE(wait.look_after(9s, scene).finding);
    wait.clock.matched = true;
    EXPECT_FALSE(wait.look_after(9100ms, scene).finding);
    scene.line(1).progress += 1;
    EXPECT_FALSE(wait.look_after(14s, scene).finding);
    const Look due = wait.look_after(19001ms, scene);
    ASSERT_NE(as<Stalled>(due.finding), nullptr);
    EXPECT_EQ(due.finding->culprits, std::vector<int>{1});
  }
}

TEST(JudgeLook, AMessageToOneThatLeftIsUnmatched) {
  for (const Op op : {Op::send, Op::recv})
    for (const int size : kSizes)
      for (const int peer : {0, size - 1}) {
        Scene scene(size, peer == 0 ? 1 : 0);
        scene.all_enter(5).leaves(peer);
        Wait wait(message_of(op, peer), peer);
        EXPECT_FALSE(wait.look_after(5ms, scene).finding);
        const Look due = wait.look_after(6ms, scene);
        ASSERT_NE(as<LeftUnmatched>(due.finding), nullptr);
        EXPECT_EQ(as<LeftUnmatched>(due.finding)->member, peer);
        EXPECT_EQ(due.finding->code, ErrorCode::kClosed);
        EXPECT_EQ(due.finding->culprits, std::vector<int>{peer});
      }
}

TEST(JudgeLook, OneThatSaysGoodbyeMayStillSendWhatItHolds) {
  for (const int from : {1, kAnyRank})
    for (const bool is_matched : {true, false}) {
      Scene scene(2);
      scene.leaves(1);
      Wait wait(message_of(Op::recv, from), is_matched ? 1 : from);
      bool& comes = is_matched ? wait.clock.matched : wait.clock.more_comes;
      wait.look_after(5ms, scene);
      comes = true;
      for (int look = 0; look < 3; ++look) EXPECT_FALSE(wait.look_after(6ms, scene).finding);
      if (is_matched) {
        scene.leaves(1, LineState::gave_up);
      } else {
        comes = false;
      }
      EXPECT_FALSE(wait.look_after(7ms, scene).finding) << "its last may just have come";
      EXPECT_NE(as<LeftUnmatched>(wait.look_after(8ms, scene).finding), nullptr);
    }
}

TEST(JudgeLook, WhatWasSentBeforeAGoodbyeMayComeAfterIt) {
  for (const Op op : {Op::recv, Op::send})
    for (const LineState state : {LineState::closing, LineState::closed, LineState::gone}) {
      Scene scene(2);
      scene.leaves(1, state);
      Wait wait(message_of(op, 1), 1);
      wait.clock.in_flight = true;
      for (int look = 5; look < 8; ++look)
        EXPECT_FALSE(wait.look_after(std::chrono::milliseconds(look), scene).finding);
      wait.clock.in_flight = false;
      EXPECT_FALSE(wait.look_after(8ms, scene).finding) << "its last may just have come";
      EXPECT_NE(as<LeftUnmatched>(wait.look_after(9ms, scene).finding), nullptr);
    }
}

TEST(JudgeLook, AMessageThatIsHeldHasItsTime) {
  Scene scene(2);
  scene.leaves(1);
  Wait wait(message_of(Op::recv, 1), 1);
  wait.clock.more_comes = true;
  wait.look_after(5ms, scene);
  EXPECT_EQ(wait.look_after(10005ms, scene).verdict, Verdict::give_up);
}

TEST(JudgeLook, AMessageFromAnyRankComesFromTheLastThatIsThere) {
  for (const int size : kSizes)
    for (const int stays : {-1, 1}) {
      SCOPED_TRACE(testing::Message() << size << ", stays " << stays);
      Scene scene(size);
      for (int member = 1; member < size; ++member)
        if (member != stays) scene.leaves(member);
      Wait wait(message_of(Op::recv, kAnyRank), kAnyRank);
      wait.look_after(5ms, scene);
      const Look due = wait.look_after(6ms, scene);
      EXPECT_EQ(as<LeftUnmatched>(due.finding) != nullptr, stays < 0);
      if (stays < 0) {
        EXPECT_EQ(as<LeftUnmatched>(due.finding)->member, -1);
      }
    }
}

TEST(JudgeLook, AMessageHasNoPartInTheDisagreementsOfCollectives) {
  Scene scene(3);
  scene.enters(0, 1).enters(1, 1, 7).enters(2, 1);
  Wait wait(message_of(Op::recv, 1), 1);
  EXPECT_FALSE(wait.look_after(5ms, scene).finding);
}

// ---- lines that say who is awaited -------------------------------------------------------------

TEST(JudgeLook, LinesComeAtDoublingTimes) {
  Scene scene(3);
  scene.enters(0, 1).enters(1, 1);
  Request request = collective_at(1);
  request.arrive = Deadline();
  for (const bool is_message : {false, true}) {
    Wait wait(is_message ? message_of(Op::recv, 2) : request, is_message ? 2 : -1);
    wait.clock.arrive = Deadline();
    std::vector<int> said;
    for (int second = 1; second <= 300; ++second) {
      const Look found = wait.look_after(std::chrono::seconds(second), scene);
      if (found.awaited.empty()) continue;
      EXPECT_EQ(found.awaited, std::vector<int>{2});
      said.push_back(second);
    }
    EXPECT_EQ(said, (std::vector<int>{30, 60, 120, 240}));
  }
}

TEST(JudgeLook, AnyRankMeansAllOthers) {
  for (const int size : kSizes) {
    Scene scene(size, 1);
    Wait wait(message_of(Op::recv, kAnyRank), kAnyRank);
    wait.clock.arrive = Deadline();
    EXPECT_EQ(wait.look_after(30s, scene).awaited, others_of(size, 1));
  }
}

TEST(JudgeLook, PausesGrowToATenthOfASecondAndStopAtWhatIsDue) {
  Scene scene(2);
  scene.enters(0, 1);
  Wait wait(collective_at(1));
  auto waited = 5ms;
  std::vector<std::chrono::milliseconds> pauses;
  while (waited < 10s) {
    const Look found = wait.look_after(waited, scene);
    ASSERT_GT(found.next, kStart + waited);
    const auto pause =
        std::chrono::duration_cast<std::chrono::milliseconds>(found.next - (kStart + waited));
    pauses.push_back(pause);
    waited += pause;
  }
  EXPECT_EQ(waited, 10s) << "the last look is when the time has passed";
  EXPECT_EQ(pauses[0], 5ms);
  EXPECT_EQ(pauses[1], 10ms);
  EXPECT_EQ(*std::max_element(pauses.begin(), pauses.end()), 100ms);
}

}  // namespace
}  // namespace tutti::control
