// Every row of the table of endings, and what the ranks and the post-mortem say.
#include "e2e/endings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "e2e/launched_job.h"

namespace tutti::e2e {
namespace {

std::vector<std::string> told_lines(const std::string& out) {
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(out))
    if (line.find("told by ") != std::string::npos) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

class Endings : public ::testing::TestWithParam<Ending> {};

TEST_P(Endings, IsAsTheTableSays) {
  const Ending& row = GetParam();
  // exit() in a callback frees nothing of what runs the callback; that is no leak.
  const bool keeps = std::string_view(row.way) == "exit in callback";
  const std::string leaks = keeps ? "LSAN_OPTIONS=detect_leaks=0" : "LSAN_OPTIONS=detect_leaks=1";
  LaunchedJob job({"run", "-n", "3", "env", leaks, TUTTI_ENDINGS_RANK, row.way});
  EXPECT_EQ(job.wait_exit(30s), row.code) << job.err();
  EXPECT_EQ(told_lines(job.out()), row.told) << job.out();
  const std::size_t root = job.err().find("ROOT CAUSE: ");
  if (row.root.empty()) {
    EXPECT_EQ(root, std::string::npos) << job.err();
  } else {
    ASSERT_NE(root, std::string::npos) << job.err();
    EXPECT_TRUE(job.err().substr(root + 12).starts_with(row.root)) << job.err();
  }
  if (row.kind == Ending::Kind::orderly) {
    EXPECT_EQ(job.err().find("] tutti: "), std::string::npos) << "a line of a rank: " << job.err();
  }
}

std::string name_of_row(const ::testing::TestParamInfo<Ending>& row) {
  return std::regex_replace(row.param.way, std::regex("[^a-zA-Z0-9]+"), "_");
}

INSTANTIATE_TEST_SUITE_P(Table, Endings, ::testing::ValuesIn(endings()), name_of_row);

/// Without pids, ports and line numbers.
std::string plain(const std::string& text) {
  std::string same = std::regex_replace(text, std::regex("pid \\d+ on [^ ,)]+"), "pid P on HOST");
  same = std::regex_replace(same, std::regex("after \\d+\\.\\d s"), "after T s");
  return std::regex_replace(same, std::regex("endings_rank.cc:\\d+"), "endings_rank.cc:L");
}

TEST(EndingsText, OneCollectiveTooFewSaysHowManyEachRankCalled) {
  LaunchedJob job({"run", "-n", "3", TUTTI_ENDINGS_RANK, "fewer"});
  EXPECT_EQ(job.wait_exit(30s), 1);
  // Rank 0 or 2 finds it first; the other may not have called its second yet.
  const std::string err = std::regex_replace(
      plain(job.err()), std::regex("2 by rank [02], 1 by ranks [0-2, -]+\\. Every"),
      "2 by ranks 0, 2, 1 by rank 1. Every");
  const auto why = [](const std::string& finder) {
    return "rank 1 (pid P on HOST) left the group after 1 collective, while rank " + finder +
           " is in all_reduce #2(f32 x 1000, sum) at endings_rank.cc:L. Collectives called so "
           "far: 2 by ranks 0, 2, 1 by rank 1. Every rank must call the same operations before it "
           "leaves";
  };
  const bool by_0 = err.find(why("0")) != std::string::npos;
  const std::string text = why(by_0 ? "0" : "2");
  // Whole from whoever is first; the launcher folds what the others say in the same words.
  bool is_said = false;
  for (const std::string rank : {"0", "1", "2"}) {
    is_said = is_said || err.find("[" + rank + "] tutti: rank " + rank + ": group world (rank " +
                                  rank + "): " + text + "\n") != std::string::npos;
  }
  EXPECT_TRUE(is_said) << job.err();
  EXPECT_NE(err.find("tutti: FAILED after T s. ROOT CAUSE: " + text +
                     "\n  ranks 0, 2: exit code 0\n  rank 1: exit code 0 (its program was not told "
                     "that a group had failed)\ntutti: exit code 1\n"),
            std::string::npos)
      << job.err();
}

}  // namespace
}  // namespace tutti::e2e
