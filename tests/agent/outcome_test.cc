#include "agent/outcome.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

namespace tutti::agent {
namespace {

int exit_status(int code) { return W_EXITCODE(code, 0); }
int kill_status(int signal_number) { return W_EXITCODE(0, signal_number); }

TEST(Outcome, AllZeroIsZero) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = 0});
  outcome.add({.rank = 1, .wait_status = 0});
  EXPECT_FALSE(outcome.failed());
  EXPECT_EQ(outcome.root_cause(), std::nullopt);
  EXPECT_EQ(outcome.exit_code({}), 0);
}

TEST(Outcome, FirstAbnormalExitIsTheRootCause) {
  Outcome outcome;
  outcome.add({.rank = 2, .wait_status = exit_status(7)});
  outcome.add({.rank = 0, .wait_status = exit_status(1)});
  EXPECT_EQ(outcome.root_cause(), 2);
  EXPECT_EQ(outcome.exit_code({}), 7);
}

TEST(Outcome, WhoseLastWordsAreOfALossIsNotTheRootCauseWhereAnotherFailed) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = exit_status(1), .error = "kPeerLost: rank 1 was lost"});
  EXPECT_EQ(outcome.root_cause(), 0) << "nobody else is known to have failed";
  outcome.add({.rank = 1, .wait_status = exit_status(5)});
  EXPECT_EQ(outcome.root_cause(), 1);
  EXPECT_EQ(outcome.exit_code({}), 5);
}

TEST(Outcome, SignalGives128Plus) {
  Outcome outcome;
  outcome.add({.rank = 1, .wait_status = kill_status(SIGKILL)});
  EXPECT_EQ(outcome.exit_code({}), 137);
  EXPECT_EQ(describe_signal(SIGSEGV), "SIGSEGV");
}

TEST(Outcome, VictimsThatExitBeforeTheirCulpritAreNotTheRootCause) {
  Outcome outcome;
  for (const int victim : {0, 1, 3}) {
    outcome.add({.rank = victim, .wait_status = exit_status(1), .culprits = {2}});
  }
  EXPECT_TRUE(outcome.failed());
  EXPECT_EQ(outcome.root_cause(), std::nullopt);  // rank 2 is still dying
  outcome.add({.rank = 2, .wait_status = kill_status(SIGKILL)});
  EXPECT_EQ(outcome.root_cause(), 2);
  EXPECT_EQ(outcome.exit_code({}), 137);
}

TEST(Outcome, CulpritThatLeftWithZeroIsNamedAndTheCodeIsAVictims) {
  Outcome outcome;
  outcome.add({.rank = 1, .wait_status = 0});
  outcome.add({.rank = 0, .wait_status = exit_status(5), .culprits = {1}});
  EXPECT_EQ(outcome.root_cause(), 1);
  EXPECT_EQ(outcome.exit_code({}), 5);
}

TEST(Outcome, OfRanksThatAVictimBlamesTheOneThatIsNoVictimIsTheRootCause) {
  Outcome outcome;
  outcome.add({.rank = 2, .wait_status = exit_status(5), .culprits = {4}});
  outcome.add({.rank = 0, .wait_status = exit_status(5), .culprits = {2, 3}});
  outcome.add({.rank = 3, .wait_status = 0});
  EXPECT_EQ(outcome.root_cause(), 3);
}

TEST(Outcome, WhomAVictimBlamesMayBeAVictimItself) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = exit_status(5), .culprits = {2}});
  outcome.add({.rank = 2, .wait_status = exit_status(6), .culprits = {4}});
  outcome.add({.rank = 4, .wait_status = 0});
  EXPECT_EQ(outcome.root_cause(), 4);
  EXPECT_EQ(outcome.exit_code({}), 5);
}

TEST(Outcome, VictimsThatBlameEachOtherDoNotHideOneOfThem) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = exit_status(5), .culprits = {1}});
  outcome.add({.rank = 1, .wait_status = exit_status(6), .culprits = {0}});
  EXPECT_EQ(outcome.root_cause(), 1);
  EXPECT_EQ(outcome.exit_code({}), 6);
}

TEST(Outcome, BlamingOneselfIsNotBeingAVictim) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = exit_status(4), .culprits = {0, 1}});
  EXPECT_EQ(outcome.root_cause(), 0);
}

TEST(Outcome, ExitsWeCausedNeverAreTheRootCause) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = kill_status(SIGTERM), .ours = true});
  EXPECT_FALSE(outcome.failed());
  EXPECT_EQ(outcome.root_cause(), std::nullopt);
  EXPECT_EQ(outcome.exit_code({.timed_out = true}), 124);
  EXPECT_EQ(outcome.exit_code({.signal_number = SIGINT}), 130);
}

TEST(Outcome, RootCauseWinsOverWhatWeDidAfterwards) {
  Outcome outcome;
  outcome.add({.rank = 1, .wait_status = exit_status(9)});
  outcome.add({.rank = 0, .wait_status = kill_status(SIGKILL), .ours = true});
  EXPECT_EQ(outcome.exit_code({.timed_out = true, .signal_number = SIGINT}), 9);
}

TEST(Outcome, InterruptedRanksThatEndWellGiveZero) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = 0, .ours = true});
  EXPECT_EQ(outcome.exit_code({.signal_number = SIGINT}), 0);
}

TEST(Outcome, FailedRendezvousIsThree) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = 0});
  outcome.add({.rank = 1, .wait_status = kill_status(SIGTERM), .ours = true});
  EXPECT_EQ(outcome.exit_code({.rendezvous_failed = true}), 3);
}

TEST(Outcome, WhoLeavesARendezvousIsTheRootCauseAndNotWhoeverWasTold) {
  Outcome outcome;
  outcome.add({.rank = 1, .wait_status = 0});
  outcome.add({.rank = 0, .wait_status = exit_status(1), .culprits = {1}});
  EXPECT_EQ(outcome.root_cause(), 1);
  EXPECT_EQ(outcome.exit_code({.rendezvous_failed = true}), 3);
}

UntoldFailure untold(ErrorCode code, std::vector<int> culprits, std::string text) {
  return {code, std::move(culprits), std::move(text)};
}

TEST(Outcome, AnUntoldFailureFailsAJobWhoseCodesAreAllZero) {
  Outcome outcome;
  outcome.add({.rank = 0, .wait_status = 0});
  outcome.add({.rank = 1,
               .wait_status = 0,
               .untold = untold(ErrorCode::kCollectiveMismatch, {1}, "they disagree")});
  EXPECT_TRUE(outcome.failed());
  EXPECT_EQ(outcome.root_cause(), std::nullopt);
  EXPECT_EQ(outcome.why(), "they disagree");
  EXPECT_EQ(outcome.exit_code({}), 1);
  EXPECT_EQ(outcome.exit_code({.timed_out = true}), 124);
  EXPECT_EQ(outcome.exit_code({.signal_number = SIGTERM}), 143);
}

TEST(Outcome, AnUntoldLossIsBlamedOnWhoLeft) {
  Outcome outcome;
  outcome.add({.rank = 1, .wait_status = 0});
  outcome.add({.rank = 0,
               .wait_status = 0,
               .untold = untold(ErrorCode::kPeerLost, {1}, "rank 1 was lost")});
  EXPECT_EQ(outcome.root_cause(), 1);
  EXPECT_EQ(outcome.why(), "");
  EXPECT_EQ(outcome.exit_code({}), 1);
}

TEST(Outcome, AnAbnormalExitIsTheRootCauseOfWhatWentUntold) {
  Outcome outcome;
  outcome.add({.rank = 0,
               .wait_status = 0,
               .untold = untold(ErrorCode::kPeerLost, {1}, "rank 1 was lost")});
  outcome.add({.rank = 1, .wait_status = kill_status(SIGKILL)});
  EXPECT_EQ(outcome.root_cause(), 1);
  EXPECT_EQ(outcome.exit_code({}), 137);
}

TEST(Outcome, TheFirstThatFollowsFromNothingElseIsTheReason) {
  Outcome outcome;
  outcome.add({.rank = 0,
               .wait_status = 0,
               .untold = untold(ErrorCode::kPeerLost, {1}, "rank 1 was lost")});
  outcome.add(
      {.rank = 1, .wait_status = 0, .untold = untold(ErrorCode::kAborted, {1}, "rank 1 aborted")});
  EXPECT_EQ(outcome.why(), "rank 1 aborted");
}

}  // namespace
}  // namespace tutti::agent
