// What the tests of `tutti run` share.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "e2e/launched_job.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/process_tree.h"

namespace tutti::e2e {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
inline const std::string kRank = TUTTI_TEST_RANK;

inline Words run(int ranks, const Words& rest) {
  Words words = {"run", "-n", std::to_string(ranks)};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

/// Every test is a subreaper and must end without a descendant.
class Launcher : public ::testing::Test {
 protected:
  void SetUp() override { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  void TearDown() override {
    EXPECT_TRUE(is_childless_within(20s)) << "processes were left";
    net::kill_everything_below();
  }
};

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline bool is_alive(pid_t pid) { return ::kill(pid, 0) == 0; }

/// Whether nothing is left within a second; later nothing may be.
inline bool is_childless_soon() {
  const auto began = Clock::now();
  EXPECT_TRUE(is_childless_within(20s));
  return Clock::now() - began < 1s;
}

inline bool becomes(pid_t pid, char state) {
  Deadline deadline = Deadline::after(20s);
  for (;;) {
    const auto stat = net::stat_of(pid);
    if (stat && stat->state == state) return true;
    if (net::pause(2ms, deadline) == net::PollResult::expired) return false;
  }
}

inline char state_of(pid_t pid) {
  const auto stat = net::stat_of(pid);
  return stat ? stat->state : '\0';
}

/// All of them stand still at one moment: guard and keeper go on by themselves within a second.
inline bool stop_all(const std::vector<pid_t>& pids) {
  Deadline deadline = Deadline::after(20s);
  do {
    for (const pid_t pid : pids) ::kill(pid, SIGSTOP);
    if (std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return state_of(pid) == 'T'; }))
      return true;
  } while (net::pause(2ms, deadline) != net::PollResult::expired);
  return false;
}

/// Its parent may have reaped it.
inline bool ends(pid_t pid) {
  Deadline deadline = Deadline::after(20s);
  while (state_of(pid) != 'Z' && state_of(pid) != '\0') {
    if (net::pause(2ms, deadline) == net::PollResult::expired) return false;
  }
  return true;
}

}  // namespace tutti::e2e
