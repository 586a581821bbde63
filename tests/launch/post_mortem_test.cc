// What is said of ranks that have ended.
#include "launch/post_mortem.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

namespace tutti::launch {
namespace {

using Lines = std::vector<std::string>;

TEST(PostMortem, ARankWithoutAProcessWasNotStarted) {
  JobReport report{
      .host = "node-0", .lasted = std::chrono::milliseconds(100), .ending = {}, .exit_code = 127};
  agent::Outcome outcome;
  for (const int rank : {0, 1, 2}) {
    const agent::RankExit exit{.rank = rank, .wait_status = W_EXITCODE(127, 0)};
    report.ranks.push_back(
        {.rank = rank, .pid = rank == 2 ? 7 : -1, .exit = exit, .last_lines = {}});
    outcome.add(exit);
  }
  EXPECT_EQ(post_mortem(report, outcome),
            (Lines{"tutti: FAILED after 0.1 s. ROOT CAUSE: rank 0 on node-0: could not be started",
                   "  others: rank 1: could not be started", "  others: rank 2: exit code 127",
                   "tutti: exit code 127"}));
  EXPECT_EQ(reason_of(report, outcome), "rank 0: could not be started after 0.1 s");
}

TEST(PostMortem, WhatSeveralRanksDidHasNoVerbOfOne) {
  JobReport report{
      .host = "node-0", .lasted = std::chrono::milliseconds(100), .ending = {}, .exit_code = 3};
  agent::Outcome outcome;
  for (const int rank : {0, 1, 2}) {
    agent::RankExit exit{.rank = rank, .wait_status = W_EXITCODE(3, 0)};
    if (rank > 0) exit.doing = "has completed no collective yet";
    report.ranks.push_back({.rank = rank, .pid = 7, .exit = exit, .last_lines = {}});
    outcome.add(exit);
  }
  const Lines lines = post_mortem(report, outcome);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[1], "  others: ranks 1-2: completed no collective yet; exit code 3");
}

TEST(PostMortem, ARestartSaysThatTuttiRunEndedTheRankThatWasLate) {
  JobReport report{
      .host = "node-0", .lasted = std::chrono::seconds(7), .ending = {}, .exit_code = 143};
  agent::Outcome outcome;
  agent::RankExit waited{.rank = 0, .wait_status = W_EXITCODE(5, 0)}, late{.rank = 1};
  waited.culprits = {1};
  late.wait_status = W_EXITCODE(0, SIGTERM);
  late.ours = true;
  for (const agent::RankExit& exit : {waited, late}) {
    report.ranks.push_back(
        {.rank = exit.rank, .pid = 7 + exit.rank, .exit = exit, .last_lines = {}});
    outcome.add(exit);
  }
  EXPECT_EQ(reason_of(report, outcome),
            "rank 1 (pid 8) did not do its part, and tutti run ended it after 7.0 s");
}

TEST(PostMortem, ASignalBetweenTwoAttemptsIsSaidBesideTheFailure) {
  const agent::RankExit exit{.rank = 0, .wait_status = W_EXITCODE(3, 0)};
  JobReport report{.host = "node-0", .lasted = std::chrono::milliseconds(100), .ending = {}};
  report.ranks.push_back({.rank = 0, .pid = 7, .exit = exit, .last_lines = {}});
  report.kept_down_by = SIGTERM;
  report.exit_code = 128 + SIGTERM;
  agent::Outcome outcome;
  outcome.add(exit);
  EXPECT_EQ(post_mortem(report, outcome),
            (Lines{"tutti: FAILED after 0.1 s. ROOT CAUSE: rank 0 on node-0 (pid 7): exit code 3",
                   "  not started again: SIGTERM asked the job to end", "tutti: exit code 143"}));
}

}  // namespace
}  // namespace tutti::launch
