// `tutti run` with real processes: exit codes, output, signals, and that nothing is left behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "e2e/launcher_fixture.h"
#include "in_time.h"
#include "net/poller.h"
#include "net/port_holder.h"
#include "net/process_tree.h"
#include "store/client.h"
#include "tutti/error.h"

namespace tutti::e2e {
namespace {

// ---- exit codes -----------------------------------------------------------------------------

TEST_F(Launcher, AllWellIsZeroAndSilent) {
  LaunchedJob job(run(1, {"true"}));
  EXPECT_EQ(job.wait_exit(), 0);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(job.err(), "");
}

TEST_F(Launcher, ReturnsTheRootCausesCode) {
  LaunchedJob job(run(3, {"--failure-grace", "0", kRank, "exit", "7", "1"}));
  EXPECT_EQ(job.wait_exit(), 7);
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1 on ")) << job.err();
  EXPECT_TRUE(has(job.err(), "exit code 7")) << job.err();
  EXPECT_TRUE(has(job.err(), "others: ranks 0, 2: killed by SIGTERM (ended by tutti run)"))
      << job.err();
}

TEST_F(Launcher, KilledRankIs137AndNamed) {
  LaunchedJob job(run(3, {"--failure-grace", "0", kRank, "hold"}));
  ASSERT_TRUE(job.wait_for("ready", 3)) << job.err();
  const std::string line = "[2] ready ";
  const int victim = numbers_after(job.out(), line).at(0);
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  EXPECT_EQ(job.wait_exit(), 137);
  EXPECT_TRUE(has(job.err(), fmt::format("(pid {}): killed by SIGKILL", victim))) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 2 on ")) << job.err();
  EXPECT_TRUE(has(job.err(), fmt::format("    ready {}", victim))) << "its last lines";
}

TEST_F(Launcher, SurvivorsMayEndWellWithinTheFailureGrace) {
  // Rank 1 fails at once; rank 0 sees the gate open afterwards and ends with 0.
  const std::string gate = ::testing::TempDir() + fmt::format("tutti_gate_{}", ::getpid());
  LaunchedJob job(run(2, {"--failure-grace", "20s", "sh", "-c",
                          "if [ $RANK = 1 ]; then echo failing; exit 4; fi; while [ ! -e " + gate +
                              " ]; do sleep 0.01; done; echo done well"}));
  ASSERT_TRUE(job.wait_for("[1] failing"));
  std::ofstream(gate).put('x');
  EXPECT_EQ(job.wait_exit(), 4);
  std::filesystem::remove(gate);
  EXPECT_TRUE(has(job.out(), "[0] done well")) << job.out();
  EXPECT_TRUE(has(job.err(), "others: rank 0: exit code 0")) << job.err();
}

TEST_F(Launcher, TimeoutIs124) {
  LaunchedJob job(run(2, {"--timeout", "100ms", kRank, "hold"}));
  EXPECT_EQ(job.wait_exit(), 124);
  EXPECT_TRUE(has(job.err(), "--timeout 0.1 s is over")) << job.err();
}

TEST_F(Launcher, TimeoutKillsTheDeafAfterTheGrace) {
  for (const char* const timeout : {"100ms", "1s", "10s"}) {  // until it is deaf by then
    LaunchedJob job(run(1, {"--timeout", timeout, "--grace", "100ms", "sh", "-c",
                            "trap '' TERM; echo deaf; while :; do sleep 0.05; done"}));
    EXPECT_EQ(job.wait_exit(), 124);
    if (!has(job.out(), "deaf")) continue;
    EXPECT_TRUE(has(job.err(), "--grace 0.1 s")) << job.err();
    return;
  }
  ADD_FAILURE() << "it was never deaf in time";
}

TEST_F(Launcher, FiftyQuickJobsInARowLeaveNothing) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "tutti_quick_XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::set<fs::path> others;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) others.insert(entry.path());
  std::vector<std::string> agents;
  for (int round = 0; round < 50; ++round) {
    LaunchedJob job({"run", "-n", "1", "env", "TMPDIR=" + folder, TUTTI_COMMAND, "run", "-n", "2",
                     "sh", "-c", fmt::format("echo agent=$TUTTI_AGENT; exit {}", round % 3)});
    ASSERT_EQ(job.wait_exit(), round % 3) << round << job.err();
    const std::size_t at = job.out().find("agent=@tutti-");
    ASSERT_NE(at, std::string::npos) << job.out();
    agents.push_back(job.out().substr(at + 6, std::string("@tutti-").size() + 32));
  }
  std::ifstream sockets("/proc/net/unix");
  const std::string all((std::istreambuf_iterator<char>(sockets)), {});
  for (const std::string& agent : agents) EXPECT_FALSE(has(all, agent));
  EXPECT_TRUE(fs::is_empty(folder));
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    EXPECT_TRUE(others.count(entry.path()) == 1 || !has(entry.path(), "tutti")) << entry.path();
  }
  fs::remove(folder);
}

TEST_F(Launcher, OneRuleForSpans) {
  LaunchedJob job(
      {"run", "--timeout", "60", "--grace", "5", "env", "TUTTI_TIMEOUT=60", TUTTI_COMMAND, "env"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_TRUE(has(job.out(), " 60 ")) << job.out();
  EXPECT_FALSE(has(job.out(), "cannot read")) << job.out();
}

TEST_F(Launcher, NoLauncherIsAroundAPlainRun) {
  LaunchedJob job({"run", "-n", "2", TUTTI_COMMAND, "env"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_TRUE(has(job.out(), "tutti run")) << job.out();
  EXPECT_FALSE(has(job.out(), "ignored")) << job.out();
}

// ---- rendezvous -----------------------------------------------------------------------------

TEST_F(Launcher, NonzeroExitBeforeInitEndsTheJobAndTheOthersAreTold) {
  LaunchedJob job(run(3, {kRank, "meet-unless", "3", "1"}));
  EXPECT_EQ(job.wait_exit(), 3);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(has(job.out(), fmt::format("[{}] told: rank 1 ended without having "
                                           "joined in init_process_group (exit code 3); ",
                                           rank)))
        << job.out() << job.err();
  }
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1")) << job.err();
}

TEST_F(Launcher, ZeroExitBeforeInitIsAFailedRendezvous) {
  LaunchedJob job(run(2, {kRank, "meet-unless", "0", "0"}));
  EXPECT_EQ(job.wait_exit(), 3);
  EXPECT_TRUE(has(job.out(),
                  "[1] told: rank 0 ended without having joined in "
                  "init_process_group (exit code 0); rank 1 waits for it"))
      << job.out();
  EXPECT_TRUE(has(job.err(), "the ranks did not all meet")) << job.err();
}

/// Their boards are not the agent's.
TEST_F(Launcher, RanksThatSayTheyAreOnSeveralHostsMeetAsWell) {
  const auto on_hosts = [](const std::string& does) {
    return std::vector<std::string>{
        "sh", "-c", fmt::format("TUTTI_HOST_ID=host-$RANK exec {} {}", TUTTI_TEST_RANK, does)};
  };
  LaunchedJob good(run(2, on_hosts("openmp")));
  EXPECT_EQ(good.wait_exit(), 0) << good.err();
  EXPECT_FALSE(has(good.err(), "tutti: ")) << good.err();
  LaunchedJob bad(run(2, on_hosts("leave-world 5 1")));
  EXPECT_EQ(bad.wait_exit(), 5) << bad.err();
  EXPECT_TRUE(has(bad.err(), "ROOT CAUSE: rank 1 on ")) << bad.err();
}

TEST_F(Launcher, RanksThatDropRootMeet) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can drop root";
  LaunchedJob job(run(2, {"--timeout", "60s", kRank, "without-root"}));
  EXPECT_EQ(job.wait_exit(90s), 0) << job.err();
}

TEST_F(Launcher, AgentHandsOutTheBoardAndRefusesStrangers) {
  LaunchedJob job(run(2, {"sh", "-c", "echo agent=$TUTTI_AGENT; exec " + kRank + " meet"}));
  ASSERT_TRUE(job.wait_for("ready board=1", 2)) << job.out() << job.err();
  const std::size_t at = job.out().find("agent=@tutti-");
  ASSERT_NE(at, std::string::npos);
  const std::string address = job.out().substr(at + 6, job.out().find('\n', at) - at - 6);
  EXPECT_EQ(address.size(), std::string("@tutti-").size() + 32) << address;
  try {
    // This process started the launcher and does not descend from it.
    store::connect_store(address, {.rank = 0, .world_size = 2}, Deadline::after(5s));
    ADD_FAILURE() << "a stranger was let in";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated) << error.what();
    EXPECT_TRUE(has(error.what(), "was not started by this tutti run")) << error.what();
  }
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(), 143);
  std::ifstream sockets("/proc/net/unix");
  const std::string all((std::istreambuf_iterator<char>(sockets)), {});
  EXPECT_FALSE(has(all, address));
}

/// No socket of ours may get the number of a standard descriptor that the program has closed.
TEST_F(Launcher, RanksWithoutStandardDescriptorsDisturbNobody) {
  for (const std::string closed : {"1>&-", "2>&-", "0<&- 1>&- 2>&-"}) {
    LaunchedJob job(run(3, {"sh", "-c", "exec " + kRank + " prints " + closed}));
    EXPECT_EQ(job.wait_exit(), 0) << closed << ": " << job.err();
  }
}

TEST_F(Launcher, SaysWhoIsMissingAfterTenSeconds) {
  LaunchedJob job(
      run(3, {"sh", "-c", "[ $RANK = 1 ] && exec " + kRank + " hold; exec " + kRank + " meet"}));
  ASSERT_TRUE(job.wait_for("ready board=1", 2)) << job.err();
  EXPECT_TRUE(job.wait_for_error(" s: 1 of 3 ranks missing: 1 (started, not in init)", 40s))
      << job.err();
  EXPECT_TRUE(std::regex_search(job.err(), std::regex("waiting [1-3]\\d s: "))) << job.err();
  job.signal(SIGTERM);
  job.wait_exit();
}

// ---- kill -9 of everybody in turn -----------------------------------------------------------

TEST_F(Launcher, KilledRankLeavesNothing) {
  LaunchedJob job(run(2, {"--failure-grace", "0", "--grace", "200ms", kRank, "tree"}));
  ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
  const std::vector<int> rank_pids = numbers_after(job.out(), "ready ");
  const pid_t rank = *std::min_element(rank_pids.begin(), rank_pids.end());
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  EXPECT_EQ(job.wait_exit(10s), 137) << job.err();
}

TEST_F(Launcher, KilledLauncherLeavesNothing) {
  expect_once_in_time([](bool& is_in_time) {
    LaunchedJob job(run(2, {kRank, "tree"}));
    ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
    const auto began = Clock::now();
    job.signal(SIGKILL);
    EXPECT_EQ(job.wait_exit(20s), 137);
    const bool has_ended_soon = Clock::now() - began < 1s;
    is_in_time = is_childless_soon() && has_ended_soon;
  });
}

TEST_F(Launcher, KilledKeeperLeavesNothing) {
  expect_once_in_time([](bool& is_in_time) {
    LaunchedJob job(run(2, {kRank, "tree"}));
    ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
    const pid_t keeper = job.keeper();
    ASSERT_GT(keeper, 0);
    const auto began = Clock::now();
    ASSERT_EQ(::kill(keeper, SIGKILL), 0);
    EXPECT_EQ(job.wait_exit(20s), 137) << job.err();
    const bool has_ended_soon = Clock::now() - began < 1s;
    EXPECT_TRUE(has(job.err(), fmt::format("the keeper (pid {}) or its guard (pid ", keeper)))
        << job.err();
    EXPECT_TRUE(has(job.err(), "the keeper of the ranks, or its guard, was killed\n")) << job.err();
    EXPECT_FALSE(has(job.err(), "ROOT CAUSE")) << "it was no rank: " << job.err();
    is_in_time = is_childless_soon() && has_ended_soon;
  });
}

TEST_F(Launcher, WhoFailedFirstIsTheCauseThoughGuardOrKeeperIsKilledAfterIt) {
  for (const bool kills_guard : {true, false}) {
    LaunchedJob job(run(3, {"--failure-grace", "60s", "sh", "-c",
                            "echo ready; [ $RANK != 1 ] || exit 3; exec sleep 100"}));
    ASSERT_TRUE(job.wait_for("ready", 3)) << job.err();
    Deadline deadline = Deadline::after(20s);
    // The keeper has reaped the one that failed, and told so.
    while (net::descendants_of(job.keeper()).size() != 2)
      ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
    ASSERT_EQ(::kill(kills_guard ? job.guard() : job.keeper(), SIGKILL), 0);
    EXPECT_EQ(job.wait_exit(20s), 3) << job.err();
    EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1 on ")) << job.err();
    EXPECT_TRUE(has(job.err(), "exit code 3")) << job.err();
    EXPECT_TRUE(has(job.err(), "or its guard (pid ")) << job.err();
    EXPECT_FALSE(has(job.err(), "the keeper of the ranks, or its guard, was killed\n"))
        << job.err();
  }
}

TEST_F(Launcher, KilledGrandchildrenAreNobodysFailure) {
  LaunchedJob job(run(2, {kRank, "tree"}));
  ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
  // Per rank: itself, a session below, one more below that; the deepest are the youngest.
  for (const char* prefix : {"[0] ready ", "[1] ready "}) {
    const std::vector<int> pids = numbers_after(job.out(), prefix);
    ASSERT_EQ(pids.size(), 3u);
    ASSERT_EQ(::kill(*std::max_element(pids.begin(), pids.end()), SIGKILL), 0);
  }
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(10s), 143) << job.err();
}

TEST_F(Launcher, HelpersOfEndedRanksAreEnded) {
  LaunchedJob job(run(2, {"sh", "-c", "setsid sleep 1000 & exit 0"}));
  EXPECT_EQ(job.wait_exit(10s), 0) << job.err();
}

TEST_F(Launcher, SiblingJobIsUntouched) {
  LaunchedJob sibling(run(2, {kRank, "tree"}));
  ASSERT_TRUE(sibling.wait_for("ready", 6));
  for (const bool kill_launcher : {true, false}) {
    LaunchedJob job(run(2, {kRank, "tree"}));
    ASSERT_TRUE(job.wait_for("ready", 6));
    ASSERT_EQ(::kill(kill_launcher ? job.pid() : job.keeper(), SIGKILL), 0);
    EXPECT_EQ(job.wait_exit(20s), 137);
    for (const int pid : numbers_after(job.out(), "ready ")) EXPECT_TRUE(ends(pid)) << pid;
    for (const int pid : numbers_after(sibling.out(), "ready ")) EXPECT_TRUE(is_alive(pid));
    EXPECT_TRUE(is_alive(sibling.keeper()));
  }
  sibling.signal(SIGTERM);
  EXPECT_EQ(sibling.wait_exit(10s), 143);
}

// ---- output and input -----------------------------------------------------------------------

TEST_F(Launcher, LinesOfConcurrentWritersStayWholeAndInOrder) {
  constexpr int kRanks = 4, kLines = 1500;
  LaunchedJob job(run(kRanks, {kRank, "chatter", std::to_string(kLines)}));
  ASSERT_EQ(job.wait_exit(60s), 0) << job.err();
  std::map<int, int> next;
  for (const std::string& line : lines_of(job.out())) {
    ASSERT_TRUE(line.size() > 8 && line[0] == '[' && line.ends_with(" end")) << line.substr(0, 80);
    const int rank = line[1] - '0';
    const int number = std::atoi(line.c_str() + 4);
    ASSERT_EQ(number, next[rank]++) << "rank " << rank;
    ASSERT_EQ(line.size(), fmt::format("[{}] {}  end", rank, number).size() +
                               static_cast<std::size_t>(number * 37 % 5000));
  }
  EXPECT_EQ(next, (std::map<int, int>{{0, kLines}, {1, kLines}, {2, kLines}, {3, kLines}}));
}

TEST_F(Launcher, LinesThatATerminalWroteAreWhole) {
  LaunchedJob job(run(2, {"printf", "A\\r\\r\\nold\\rmac\\r\\rX\\n"}));
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  for (const char* const lines : {"[0] A\n", "[0] X\n", "[1] A\n", "[1] X\n"}) {
    EXPECT_TRUE(has(job.out(), lines)) << job.out();
  }
}

TEST_F(Launcher, LastPartialLineIsPrinted) {
  LaunchedJob job(run(2, {"sh", "-c", "printf 'no end of line'"}));
  EXPECT_EQ(job.wait_exit(), 0);
  std::vector<std::string> lines = lines_of(job.out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (Words{"[0] no end of line", "[1] no end of line"}));
}

TEST_F(Launcher, StreamsStayApartAndNoControlCharactersAppear) {
  LaunchedJob job(run(2, {"sh", "-c", "printf '1%%\\r2%%\\r3%%\\n'; echo oops >&2"}));
  EXPECT_EQ(job.wait_exit(), 0);
  std::vector<std::string> lines = lines_of(job.out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (Words{"[0] 3%", "[1] 3%"}));
  EXPECT_TRUE(has(job.err(), "[0] oops\n") && has(job.err(), "[1] oops\n")) << job.err();
  EXPECT_EQ((job.out() + job.err()).find_first_of("\r\x1b\b"), std::string::npos);
}

TEST_F(Launcher, RanksSeeATerminalWhereTheLauncherHasOne) {
  net::Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const std::string terminal = ::ptsname(master.get());
  const std::string rank_says =
      "test -t 1 && echo out is a terminal; test -t 2 || echo err is not; "
      "printf '10%%\\r90%%\\r'; echo done";
  // The shell gives the launcher a terminal as stdout only.
  LaunchedJob job({"run", "-n", "1", "sh", "-c",
                   fmt::format("exec {} run -n 2 sh -c '{}' > {}", TUTTI_COMMAND,
                               std::regex_replace(rank_says, std::regex("'"), "'\\''"), terminal)});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  ::fcntl(master.get(), F_SETFL, O_NONBLOCK);
  std::string seen, part(4096, '\0');  // a read ends where the terminal's buffers do
  for (ssize_t got; (got = ::read(master.get(), part.data(), part.size())) > 0;) {
    seen.append(part, 0, static_cast<std::size_t>(got));
  }
  for (const char* rank : {"[0]", "[1]"}) {
    EXPECT_TRUE(has(seen, std::string(rank) + " out is a terminal")) << seen;
    EXPECT_TRUE(has(seen, std::string(rank) + " err is not")) << seen;
    EXPECT_TRUE(has(seen, std::string("\r\x1b[K") + rank + " 10%")) << seen;
    EXPECT_TRUE(has(seen, std::string(rank) + " done\r\n")) << seen;
  }
  // The last draft was replaced by the line of its rank.
  EXPECT_TRUE(seen.ends_with(" done\r\n")) << seen;
  EXPECT_TRUE(has(seen, "\r\x1b[K[0] done") || has(seen, "\r\x1b[K[1] done")) << seen;
}

TEST_F(Launcher, StdinGoesToRankZero) {
  LaunchedJob job(run(2, {"cat"}), "two\nlines\n");
  EXPECT_EQ(job.wait_exit(), 0);
  EXPECT_EQ(job.out(), "[0] two\n[0] lines\n");
}

TEST_F(Launcher, TerminalFeedsRankZeroAndItsCtrlCReachesEveryRankOnce) {
  TerminalJob job(
      {TUTTI_COMMAND, "run", "-n", "2", "sh", "-c",
       "if [ $RANK = 0 ]; then read line; echo got $line; fi; exec " + kRank + " listen"});
  job.type("hello\n");
  EXPECT_TRUE(job.wait_for("[0] got hello")) << job.seen();
  EXPECT_TRUE(job.wait_for("[0] ready") && job.wait_for("[1] ready")) << job.seen();
  job.type("\x03");
  EXPECT_TRUE(job.wait_for("[0] heard INT") && job.wait_for("[1] heard INT")) << job.seen();
  job.type("\x03");
  EXPECT_TRUE(job.wait_for("tutti: exit code 130")) << job.seen();
  EXPECT_EQ(job.wait_exit(), 130);
  EXPECT_EQ(numbers_after(job.seen(), "heard INT").size(), 2u) << job.seen();
}

/// As by `ssh -t HOST tutti run ...`: no shell could let it go on.
TEST_F(Launcher, CtrlZStopsNothingWhereNobodyCouldContinueIt) {
  TerminalJob job({TUTTI_COMMAND, "run", "-n", "2", kRank, "listen"});
  ASSERT_TRUE(job.wait_for("[0] ready") && job.wait_for("[1] ready")) << job.seen();
  job.type("\x1a");
  job.type("\x03");
  EXPECT_TRUE(job.wait_for("asking ranks 0-1")) << "the ranks are not stopped: " << job.seen();
  EXPECT_TRUE(job.wait_for("[0] heard INT") && job.wait_for("[1] heard INT")) << job.seen();
  job.type("\x03");
  EXPECT_EQ(job.wait_exit(), 130) << job.seen();
}

TEST_F(Launcher, CtrlZStopsNoRankThereThatHandlesItLate) {
  TerminalJob job({TUTTI_COMMAND, "run", "-n", "1", kRank, "suspend"});
  ASSERT_TRUE(job.wait_for("ready")) << job.seen();
  job.type("\x1a");
  Deadline soon = Deadline::after(5s);
  net::pause(200ms, soon);  // the rank has gone on by then
  job.type("\n");
  EXPECT_TRUE(job.wait_for("went on")) << job.seen();
  EXPECT_EQ(job.wait_exit(), 0) << job.seen();
}

std::vector<pid_t> ranks_below(pid_t root) {
  std::vector<pid_t> ranks = net::descendants_of(root);
  std::erase_if(ranks, [](pid_t pid) { return net::program_of(pid) != "launcher_rank"; });
  return ranks;
}

/// `around` are words that start a shell; `first` is what that does at its beginning.
void expect_stopped_and_continued(Words around, const std::string& first) {
  const bool is_around = !around.empty();
  around.insert(around.end(), {"sh", "-c",
                               fmt::format("{}set -m; {} run -n 2 {} listen; echo job stopped; "
                                           "read line; fg; echo code $?",
                                           first, TUTTI_COMMAND, kRank)});
  TerminalJob shell(around);
  if (!shell.wait_for("[0] ready")) GTEST_SKIP() << "no namespaces here: " << shell.seen();
  ASSERT_TRUE(shell.wait_for("[1] ready")) << shell.seen();
  const pid_t job = shell.foreground();
  shell.type("\x1a");
  ASSERT_TRUE(shell.wait_for("job stopped")) << shell.seen();
  for (const pid_t rank : ranks_below(shell.pid())) EXPECT_TRUE(becomes(rank, 'T')) << rank;
  EXPECT_EQ(ranks_below(shell.pid()).size(), 2u);
  shell.type("\n");
  Deadline deadline = Deadline::after(10s);
  while (shell.foreground() != job) {
    ASSERT_NE(net::pause(2ms, deadline), net::PollResult::expired);
  }
  shell.type("\x03");
  EXPECT_TRUE(shell.wait_for("[0] heard INT") && shell.wait_for("[1] heard INT")) << shell.seen();
  shell.type("\x03");
  EXPECT_TRUE(shell.wait_for("code 130")) << shell.seen();
  const int code = shell.wait_exit();
  EXPECT_TRUE(code == 0 || (is_around && code == 2)) << code << shell.seen();  // with pid 1
}

TEST_F(Launcher, CtrlZStopsAJobThatAShellContinues) { expect_stopped_and_continued({}, ""); }

TEST_F(Launcher, CtrlZStopsAJobWhoseContinuationIsIgnored) {
  expect_stopped_and_continued({}, "trap '' CONT; ");
}

TEST_F(Launcher, CtrlZStopsAJobAlsoWhereProcShowsNobody) {
  if (kNeedsProc) GTEST_SKIP() << "no ASan there";
  expect_stopped_and_continued({"unshare", "-Urpf"}, "");
  expect_stopped_and_continued({"unshare", "-Urm"}, "mount -t tmpfs none /proc || exit 77; ");
}

TEST_F(Launcher, OneRankIsNotPrefixed) {
  LaunchedJob job({"run", "echo", "plain"});
  EXPECT_EQ(job.wait_exit(), 0);
  EXPECT_EQ(job.out(), "plain\n");
}

// ---- signals --------------------------------------------------------------------------------

TEST_F(Launcher, SignalsReachEveryRankOnce) {
  LaunchedJob job(run(2, {kRank, "listen"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  for (const auto& [number, name] : {std::pair{SIGUSR1, "USR1"},
                                     {SIGUSR2, "USR2"},
                                     {SIGHUP, "HUP"},
                                     {SIGQUIT, "QUIT"},
                                     {SIGINT, "INT"}}) {
    job.signal(number);
    EXPECT_TRUE(job.wait_for(std::string("heard ") + name, 2)) << name << job.out();
  }
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(), 0) << "both ended well";
  EXPECT_EQ(numbers_after(job.out(), "heard ").size(), 12u) << job.out();
}

TEST_F(Launcher, SecondInterruptKillsAtOnce) {
  LaunchedJob job(run(2, {kRank, "listen"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGINT);
  ASSERT_TRUE(job.wait_for("heard INT", 2));
  Deadline deadline = Deadline::after(5s);
  net::pause(60ms, deadline);  // two at once count as one
  job.signal(SIGINT);
  EXPECT_EQ(job.wait_exit(5s), 130) << job.err();
  EXPECT_TRUE(has(job.err(), "second SIGINT")) << job.err();
}

/// It signals its child, and then the group in which that is.
TEST_F(Launcher, AnInterruptByTimeoutIsOne) {
  for (int round = 0; round < 5; ++round) {
    LaunchedJob job(LaunchedJob::Command{
        {"timeout", "-s", "INT", "99", TUTTI_COMMAND, "run", "-n", "1", "bash", "-c",
         "trap 'sleep 0.2; echo saved; exit 0' INT; echo ready; sleep 99 & wait"}});
    ASSERT_TRUE(job.wait_for("ready")) << job.err();
    job.signal(SIGALRM);  // the time of timeout is over
    job.wait_exit(10s);
    EXPECT_TRUE(has(job.out(), "saved\n")) << job.err();
    net::kill_everything_below();
  }
}

TEST_F(Launcher, InterruptIs130) {
  LaunchedJob job(run(2, {kRank, "hold"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait_exit(5s), 130) << job.err();
}

TEST_F(Launcher, WhoWasAwaitedIsNamedWhereOthersGaveUp) {
  LaunchedJob close(run(3, {"--failure-grace", "0", kRank, "give-up-close", "-", "2"}));
  EXPECT_EQ(close.wait_exit(), 5) << close.err();
  EXPECT_TRUE(has(close.err(), " gave up close at launcher_rank.cc:")) << close.err();
  EXPECT_TRUE(has(close.err(), " (rank 2 had not left)\n")) << close.err();
  LaunchedJob init(
      run(3, {"--failure-grace", "0", "env", "TUTTI_TIMEOUT=2s", kRank, "give-up-init", "-", "2"}));
  EXPECT_EQ(init.wait_exit(), 5) << init.err();
  EXPECT_TRUE(has(init.err(), " waited in init_process_group for rank 2\n")) << init.err();
}

TEST_F(Launcher, AnInterruptShowsWhatEveryRankDid) {
  LaunchedJob job(run(2, {kRank, "wait-in-vain", "-", "0"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait_exit(5s), 130) << job.err();
  EXPECT_TRUE(has(job.err(), "by SIGINT\n")) << job.err();
  const std::string last = ": last completed barrier #1 at launcher_rank.cc:";
  EXPECT_TRUE(has(job.err(), "  rank 1" + last) || has(job.err(), "  ranks 0-1" + last))
      << job.err();
  if (has(job.err(), "recv")) {  // it may have been hit before it had entered
    EXPECT_TRUE(has(job.err(), "  rank 0: in recv(f32 x 1, from 1, tag 3) at launcher_rank.cc:"))
        << job.err();
  }
}

TEST_F(Launcher, StopAndContinueReachTheRanks) {
  // The test may be in a group that nobody continues.
  LaunchedJob job(
      LaunchedJob::Command{{kRank, "own-group", TUTTI_COMMAND, "run", "-n", "1", kRank, "hold"}});
  ASSERT_TRUE(job.wait_for("ready"));
  const pid_t rank = numbers_after(job.out(), "ready ").at(0);
  const auto state_becomes = [&](pid_t pid, bool stopped) {
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (std::chrono::steady_clock::now() < end) {
      std::ifstream file(fmt::format("/proc/{}/stat", pid));
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      const std::size_t at = text.rfind(')');
      if (at != std::string::npos && (text[at + 2] == 'T') == stopped) return true;
    }
    return false;
  };
  job.signal(SIGTSTP);
  EXPECT_TRUE(state_becomes(rank, true));
  EXPECT_TRUE(state_becomes(job.pid(), true)) << "the launcher stops too";
  job.signal(SIGCONT);
  EXPECT_TRUE(state_becomes(rank, false));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(5s), 143);
}

TEST_F(Launcher, IgnoredHangupStaysIgnored) {
  ::signal(SIGHUP, SIG_IGN);  // as nohup does
  LaunchedJob job(run(1, {kRank, "hold"}));
  ::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(job.wait_for("ready"));
  job.signal(SIGHUP);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(5s), 143);
}

// ---- an uncaught Error ----------------------------------------------------------------------

TEST_F(Launcher, UncaughtErrorIsOneLineAndCodeOne) {
  LaunchedJob job(run(1, {kRank, "uncaught", "error"}));
  EXPECT_EQ(job.wait_exit(), 1) << job.err();
  EXPECT_EQ(job.out(), "printed before the end\n") << "nothing printed is lost";
  EXPECT_EQ(lines_of(job.err()).at(0), "tutti: uncaught tutti::Error kTimeout: made up for a test")
      << job.err();
  EXPECT_TRUE(has(job.err(), "exit code 1\n  kTimeout: made up for a test\n")) << job.err();
  EXPECT_FALSE(has(job.err(), "terminate called")) << job.err();
}

TEST_F(Launcher, OtherExceptionsGoToTheHandlerThatWasThere) {
  LaunchedJob job(run(1, {"sh", "-c", "ulimit -c 0; exec " + kRank + " uncaught other"}));
  EXPECT_EQ(job.wait_exit(), 134) << job.err();
  EXPECT_TRUE(has(job.err(), "not ours")) << job.err();
}

TEST_F(Launcher, AHandlerThatCallsTheOneBeforeItIsCalledOnce) {
  LaunchedJob job(run(1, {"sh", "-c", "ulimit -c 0; exec " + kRank + " uncaught chained"}));
  EXPECT_EQ(job.wait_exit(), 134) << job.err();
  const std::vector<std::string> lines = lines_of(job.err());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "the program's own handler"), 1) << job.err();
  EXPECT_TRUE(has(job.err(), "not ours")) << job.err();
}

TEST_F(Launcher, SurvivorsThatDoNotCatchSayOneLineEachAndAreNotTheRootCause) {
  LaunchedJob job(run(3, {kRank, "leave-world", "5", "1"}));
  EXPECT_EQ(job.wait_exit(), 5) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1 on ")) << job.err();
  EXPECT_TRUE(has(job.err(),
                  "rank 1 last completed all_reduce #1(f32 x 1000, sum) at "
                  "launcher_rank.cc:"))
      << job.err();
  // One of them may not have waited yet when it is told: it has a line of its own then.
  EXPECT_TRUE(has(job.err(), "others: ranks 0, 2: ") ||
              (has(job.err(), "others: rank 0: ") && has(job.err(), "others: rank 2: ")))
      << job.err();
  EXPECT_FALSE(has(job.err(), "terminate called")) << job.err();
}

TEST_F(Launcher, ADisagreementIsTheRootCauseAndNoRankIs) {
  LaunchedJob job(run(3, {kRank, "disagree", "-", "2"}));
  EXPECT_EQ(job.wait_exit(), 1) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: the ranks disagree about operation #2: rank"))
      << job.err();
  EXPECT_TRUE(has(job.err(), " called all_reduce(f32 x 1000, sum) at launcher_rank.cc:"))
      << job.err();
  EXPECT_TRUE(has(job.err(), "rank 2 called broadcast(f32 x 1000, root 1) at launcher_rank.cc:"))
      << job.err();
  EXPECT_FALSE(has(job.err(), "ROOT CAUSE: rank")) << job.err();
}

TEST_F(Launcher, ADeadlockIsTheRootCauseAndNoRankIs) {
  LaunchedJob job(run(3, {kRank, "wait-in-a-ring"}));
  EXPECT_EQ(job.wait_exit(), 1) << job.err();
  EXPECT_TRUE(has(job.err(),
                  "ROOT CAUSE: deadlock: rank 0 waits in recv(f32 x 1, from 1, tag 0) at "
                  "launcher_rank.cc:"))
      << job.err();
  EXPECT_TRUE(has(job.err(), " for rank 1, which waits in recv(f32 x 1, from 2, tag 0) at "))
      << job.err();
  EXPECT_FALSE(has(job.err(), "ROOT CAUSE: rank")) << job.err();
}

TEST_F(Launcher, WhoAbortsIsTheRootCauseAndNotWhoEndsFirst) {
  LaunchedJob job(run(3, {kRank, "give-up", "-", "2"}));
  EXPECT_EQ(job.wait_exit(), 6) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 2 on ")) << job.err();
  EXPECT_TRUE(has(job.err(), ": exit code 6\n  rank 2 aborted the group: enough\n")) << job.err();
}

// A rank that was told in one group unwinds through the next before the first one has got there.
TEST_F(Launcher, WhoseExceptionUnwindsFirstIsTheRootCause) {
  for (const std::string mode : {"idle", "busy"}) {
    for (int round = 0; round < 20; ++round) {
      LaunchedJob job(run(5, {kRank, "unwind", mode, "4"}));
      EXPECT_EQ(job.wait_exit(), 7) << mode << job.err();
      EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 4 on ")) << mode << job.err();
    }
  }
}

// ---- wrong usage ----------------------------------------------------------------------------

struct Misuse {
  Words words;
  std::string says;
};

std::vector<Misuse> misuses() {
  return {
      {{"run", "-n", "0", "true"}, "-n 0"},
      {{"run", "-n", "-3", "true"}, "-n -3"},
      {{"run", "-n", "four", "true"}, "-n four"},
      {{"run", "-n", "1000", "true"}, "-n 1000"},
      {{"run"}, "no program given"},
      {{"run", "-n", "2"}, "no program given"},
      {{"run", "-n"}, "-n needs a value"},
      {{"run", "-n", "2", "--np", "3", "true"},
       "-n 2 and --np 3: that is one option: give it once"},
      {{"run", "-np=2", "--mca", "a", "b", "--nproc_per_node", "3", "true"},
       "-np=2 and --nproc_per_node 3: that is one option"},
      {{"run", "-n", "./train"}, "-n ./train: not a number of ranks"},
      {{"run", "-n", "2", "--grace", "./train"}, "--grace: cannot read \"./train\""},
      {{"run", "--version"}, "--version: tutti --version says it"},
      {{"run", "-V"}, "-V: tutti --version says it"},
      {{"run", "--tune", "f", "true"}, "--tune: it names a file; give variables by -x"},
      {{"run", "-env", "A", "b", "true"}, "--env: give -x NAME=VALUE"},
      {{"run", "--cpus-per-rank", "2", "true"}, "give --bind-to core, numa or none"},
      {{"run", "--ppr", "2", "true"}, "--ppr: give the number of ranks"},
      {{"run", "--stdin", "all", "true"}, "--stdin all: rank 0 reads stdin"},
      {{"run", "--merge-stderr-to-stdout", "true"}, "let the shell do it: tutti run ... 2>&1"},
      {{"run", "."}, "program .: is a directory"},
      {{"run", "--frobnicate", "true"}, "unknown option --frobnicate"},
      {{"run", "--graze", "1", "true"}, "did you mean --grace?"},
      {{"run", "--grace", "soon", "true"},
       "--grace: cannot read \"soon\": give a duration like 30 (seconds), 30s, 500ms, 30min, "
       "1h30min or never"},
      {{"run", "--shutdown-timeout", "soon", "true"}, "--shutdown-timeout: cannot read \"soon\""},
      {{"run", "--nproc_per_node=four", "true"}, "--nproc-per-node four: not a number of ranks"},
      {{"run", "-z", "3", "true"}, "unknown option -z; tutti run --help lists them"},
      {{"run", "-n", "2", "-r", "5", "true"}, "-r 5: cannot read \"5\""},
      {{"run", "-n", "2", "-t", "2:1", "true"}, "-t 2:1: there is no rank 2"},
      {{"run", "-r", "3", "--log-dir", "/proc/none", "true"},
       "cannot make the folder of /proc/none"},
      {{"run", "--output-filename", "/tmp/x:nocopy", "true"},
       "--output-filename /tmp/x:nocopy: leave \":nocopy\" out: "},
      {{"run", "--output-filename", "/tmp/x:nojobid,nocopy", "true"},
       "to keep all in files alone give --redirects 3 --log-dir /tmp/x"},
      {{"run", "-t", "3", "--output-filename", "/tmp/x", "true"}, "give one or the other"},
      {{"run", "-H", "192.0.2.7:2", "true"}, "host 192.0.2.7 is not this one"},
      {{"run", "-n", "3", "-H", "localhost:2", "true"},
       "not enough slots: 3 ranks asked, hosts localhost:2 give 2"},
      {{"run", "-H", "localhost", "--hostfile", "f", "true"}, "both name hosts"},
      {{"run", "--hostfile", "/no/such/file", "true"},
       "/no/such/file: cannot be read: No such file or directory"},
      {{"run", "--hostfile", "/", "true"}, "--hostfile /: cannot be read: Is a directory"},
      {{"run", "--nnodes=2", "true"}, "--nnodes 2: tutti run starts ranks on this host only"},
      {{"run", "--nnodes=1:4", "true"}, "the number of hosts of a job does not change"},
      {{"run", "--node_rank=1", "true"}, "--node-rank 1: of one host"},
      {{"run", "--master-addr", "192.0.2.7", "true"}, "--master-addr 192.0.2.7: is not this host"},
      {{"run", "-x", "MASTER_ADDR=192.0.2.7", "true"},
       "-x MASTER_ADDR 192.0.2.7: is not this host"},
      {{"run", "--standalone", "--rdzv-endpoint", "192.0.2.7:29400", "true"},
       "--standalone means this host, and --rdzv-endpoint 192.0.2.7 another one"},
      {{"run", "--bind-to", "socket", "true"}, "--bind-to socket: give none, core or numa"},
      {{"run", "--map-by", "socket", "true"}, "--map-by socket: give slot, core, node or numa"},
      {{"run", "--max-restarts", "-1", "true"}, "--max-restarts -1: give a number from 0 to"},
      {{"run", "--master-port", "70000", "true"}, "--master-port 70000: give a number from 0 to"},
      {{"run", "--rdzv-backend", "etcd-v2", "true"}, "there is no etcd-v2 here"},
      {{"run", "--run-path", "true"}, "--run-path: name the script itself"},
      {{"run", "-x", "A=1", "-x", "A=2", "true"}, "two values"},
      {{"run", "-m", "--no-python", "x"}, "-m starts a module of Python"},
      {{"run", "-wdir", "/no/such/folder", "true"}, "--wdir /no/such/folder: No such file"},
      {{"run", "-n", "2", "no-such-program"}, "no-such-program: not found in PATH"},
      {{"run", "-n", "2", "/no/such/program"}, "/no/such/program: No such file"},
      {{"run", "-n", "2", "/etc/passwd"}, "not executable"},
      {{"run", "--dry-run", "no-such.py"}, "program no-such.py: No such file"},
      {{"run", "-wdir", "/tmp", "no-such.py"}, "program /tmp/no-such.py: No such file"},
      {{"run", "-n", "2", "/"}, "is a directory"},
      {{"rnu"}, "did you mean tutti run?"},
      {{"frobnicate"}, "unknown command 'frobnicate'"},
      {{}, "Usage: tutti COMMAND"},
      {{"env", "--frob"}, "unknown option --frob"},
  };
}

/// A program may have an option -n; a person may have meant that of `tutti run`.
TEST_F(Launcher, ANumberBehindTheProgramIsHandedToItAndSaidWhereNothingElseSaysHowMany) {
  const std::string note = "tutti run: one rank: -n stands after the program and is handed to it.";
  LaunchedJob late({"run", "echo", "-n", "2"});
  EXPECT_EQ(late.wait_exit(), 0) << late.err();
  EXPECT_EQ(late.out(), "2");
  EXPECT_TRUE(late.err().starts_with(note)) << late.err();
  for (const Words& words :
       {Words{TUTTI_COMMAND, "run", "--", "echo", "-n", "2"},
        {TUTTI_COMMAND, "run", "-H", "localhost:1", "echo", "-n", "2"},
        {"env", "PET_NPROC_PER_NODE=1", TUTTI_COMMAND, "run", "echo", "-n", "2"}}) {
    LaunchedJob job(LaunchedJob::Command{words});
    EXPECT_EQ(job.wait_exit(), 0) << job.err();
    EXPECT_EQ(job.out(), "2");
    EXPECT_EQ(job.err(), "");
  }
}

TEST_F(Launcher, AMissingInterpreterIsNamed) {
  const std::string script = ::testing::TempDir() + fmt::format("tutti_script_{}", ::getpid());
  std::ofstream(script) << "#! /no/such/interpreter -x\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  LaunchedJob job(run(1, {script}));
  EXPECT_EQ(job.wait_exit(), 127);
  std::filesystem::remove(script);
  EXPECT_TRUE(has(job.err(),
                  ": No such file or directory; its first line names "
                  "/no/such/interpreter, which is not there\n"))
      << job.err();
}

TEST_F(Launcher, MisuseIsTwoAndOneClearLine) {
  for (const Misuse& misuse : misuses()) {
    LaunchedJob job(misuse.words);
    EXPECT_EQ(job.wait_exit(), 2) << misuse.says;
    EXPECT_TRUE(has(job.err(), misuse.says)) << job.err();
    EXPECT_FALSE(has(job.err(), "is kept in")) << job.err();
    EXPECT_EQ(job.out(), "");
  }
}

TEST_F(Launcher, AVariableThatIsWrongIsNamedItself) {
  for (const auto& [variable, words, says] :
       {std::tuple{"PET_NPROC_PER_NODE=x", Words{}, "PET_NPROC_PER_NODE x: not a number of ranks"},
        {"PET_NPROC_PER_NODE=1000", {}, "PET_NPROC_PER_NODE 1000: a job has 1 to "},
        {"PET_SHUTDOWN_TIMEOUT=x", {}, "PET_SHUTDOWN_TIMEOUT: cannot read \"x\""},
        {"PET_REDIRECTS=5", {}, "PET_REDIRECTS 5: cannot read \"5\""},
        {"TMPDIR=/proc/none",
         {"-r", "3"},
         "; TMPDIR is /proc/none; name another folder by --log-dir\n"}}) {
    LaunchedJob::Command command{{"env", variable, TUTTI_COMMAND, "run"}};
    command.words.insert(command.words.end(), words.begin(), words.end());
    command.words.push_back("true");
    LaunchedJob job(command);
    EXPECT_EQ(job.wait_exit(), 2) << variable;
    EXPECT_TRUE(has(job.err(), says)) << job.err();
  }
}

TEST_F(Launcher, TheFolderThatTmpdirNamesIsNotMade) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_none_{}", ::getpid());
  LaunchedJob job(LaunchedJob::Command{
      {"env", "TMPDIR=" + folder, TUTTI_COMMAND, "run", "-n", "2", "-r", "3", "true"}});
  EXPECT_EQ(job.wait_exit(), 2);
  EXPECT_EQ(job.err(), fmt::format("tutti run: cannot keep what ranks print in {0}: No such file "
                                   "or directory; TMPDIR is {0}; name another folder by "
                                   "--log-dir\n",
                                   folder));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(Launcher, RankZeroIsWhoReadsStdinAsByMpirun) {
  LaunchedJob job(run(2, {"--stdin", "0", "--map-by", "node", "cat"}), "here\n");
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] here\n");
}

std::set<std::string> words_like(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    found.insert(match->str());
  }
  return found;
}

TEST_F(Launcher, MessagesSuggestOnlyWhatThisBuildHas) {
  std::string known;
  for (const Words& words : {Words{"--help"}, {"run", "--help"}, {"env", "--help"}, {"env"}}) {
    LaunchedJob job(words);
    EXPECT_EQ(job.wait_exit(), 0);
    known += job.out() + "\n";
  }
  std::string said;
  for (const Misuse& misuse : misuses()) {
    LaunchedJob job(misuse.words);
    job.wait_exit();
    std::string text = job.err();
    for (const std::string& word : misuse.words) {  // what was typed is not a suggestion
      for (std::size_t at = text.find(word);
           !word.empty() && at != std::string::npos && word[0] == '-'; at = text.find(word)) {
        text.erase(at, word.size());
      }
    }
    said += text;
  }
  for (const std::string& option : words_like(said, "--[a-z][a-z-]+")) {
    EXPECT_TRUE(has(known, option)) << option;
  }
  for (const std::string& command : words_like(said, "tutti (run|[a-z]+)\\?")) {
    EXPECT_TRUE(has(known, command.substr(0, command.size() - 1))) << command;
  }
  for (const std::string& variable : words_like(said, "TUTTI_[A-Z_]+")) {
    std::string row = variable.substr(6);
    std::transform(row.begin(), row.end(), row.begin(), ::tolower);
    EXPECT_TRUE(has(known, row)) << variable;
  }
}

TEST_F(Launcher, HelpBeginsWithExamples) {
  for (const Words& words : {Words{"--help"}, {"run", "--help"}, {"env", "--help"}}) {
    LaunchedJob job(words);
    EXPECT_EQ(job.wait_exit(), 0);
    EXPECT_TRUE(job.out().starts_with("Examples:\n  tutti ")) << job.out();
  }
}

TEST_F(Launcher, VersionSaysWhatIsBuiltIn) {
  LaunchedJob job(Words{"--version"});
  EXPECT_EQ(job.wait_exit(), 0);
  EXPECT_TRUE(std::regex_search(
      job.out(), std::regex("^tutti \\d+\\.\\d+\\.\\d+ \\(commit \\w+, .+\\)\nbuilt in: native\n"
                            "found beside it: [a-z_ ]+\n$")))
      << job.out();
}

TEST_F(Launcher, BackendsThatCanDoTheSameShareOneMatrix) {
  LaunchedJob job(Words{"backends"});
  EXPECT_EQ(job.wait_exit(), 0);
  const std::vector<std::string> lines = lines_of(job.out());
  const auto barrier = std::count(lines.begin(), lines.end(), "  barrier");
  const auto sections = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.ends_with(":") && line.starts_with("native");
  });
  EXPECT_EQ(sections, 1) << job.out();
  EXPECT_EQ(barrier, 1) << job.out();
}

TEST_F(Launcher, EnvSaysWhoARankIsAndWhy) {
  LaunchedJob job(run(2, {TUTTI_COMMAND, "env"}));
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(
        has(job.out(), fmt::format("[{0}] identity: rank {0} of 2, from tutti run (RANK={0} "
                                   "WORLD_SIZE=2)",
                                   rank)))
        << job.out();
  }
  EXPECT_TRUE(has(job.out(), "[0]   agent: @tutti-")) << job.out();
  EXPECT_TRUE(has(job.out(), "stall_timeout")) << job.out();
}

TEST_F(Launcher, EnvSaysFromWhereOtherHostsAreSpokenWithAndWhy) {
  const auto env = [](const Words& variables) {
    Words words = {"run",    "env",         "-u", "TUTTI_AGENT", "-u", "LOCAL_WORLD_SIZE",
                   "RANK=0", "WORLD_SIZE=2"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(), {TUTTI_COMMAND, "env"});
    LaunchedJob job(words);
    EXPECT_EQ(job.wait_exit(), 0) << job.err();
    return job.out();
  };
  const std::string local = env({"MASTER_ADDR=127.0.0.1", "TUTTI_BACKEND=gloo"});
  EXPECT_TRUE(has(local, "address for other hosts: none: MASTER_ADDR 127.0.0.1 is this host alone"))
      << local;
  EXPECT_TRUE(has(local, "backend: gloo (TUTTI_BACKEND)")) << local;
  EXPECT_TRUE(has(local, "security: opportunistic (default): ")) << local;
  const std::string away_at_auth = env({"MASTER_ADDR=192.0.2.1", "TUTTI_SECURITY=auth"});
  EXPECT_TRUE(has(away_at_auth, "security: auth (TUTTI_SECURITY): keeps out everybody who does"))
      << away_at_auth;
  EXPECT_TRUE(has(local, "algorithms of native between hosts: auto (default); segments of 524288"))
      << local;
  EXPECT_TRUE(has(local, "  broadcast    ring      3 and more ranks, from 1024 KiB\n")) << local;
  EXPECT_TRUE(has(local, "  cores: ")) << local;
  EXPECT_TRUE(has(env({"MASTER_ADDR="}), "none: MASTER_ADDR is not set"));
  EXPECT_TRUE(has(env({"TUTTI_INIT_METHOD=file://job"}), "none: init_method 'file://job': "));
  const std::string by_file = "TUTTI_INIT_METHOD=file:///tmp/job";
  if (!has(env({by_file}), "none: this host has no address but loopback")) {
    const std::string chosen = env({by_file, "TUTTI_SOCKET_IFNAME==lo"});
    EXPECT_TRUE(has(chosen, "127.0.0.1 of lo: TUTTI_SOCKET_IFNAME==lo\n")) << chosen;
    const std::string none = env({by_file, "TUTTI_SOCKET_IFNAME=no_such_one"});
    EXPECT_TRUE(has(none, "none: TUTTI_SOCKET_IFNAME=no_such_one leaves no interface")) << none;
  }
  const std::string away = env({"TUTTI_INIT_METHOD=tcp://[2001:db8::1]:29500"});
  EXPECT_TRUE(has(away, "2001:db8::1 of init_method")) << away;
  LaunchedJob one({"run", TUTTI_COMMAND, "env"});
  EXPECT_EQ(one.wait_exit(), 0) << one.err();
  EXPECT_TRUE(has(one.out(), "none: all ranks are on this host: no port is opened")) << one.out();
}

// One of them gets the board of the agent, on all ranks or on none.
TEST_F(Launcher, WorldsThatMeetAtTheSameMomentAreKeptApart) {
  for (int round = 0; round < 5; ++round) {
    LaunchedJob job(run(3, {kRank, "two-worlds"}));
    ASSERT_EQ(job.wait_exit(), 0) << job.err();
  }
}

TEST_F(Launcher, FailureGraceIsASettingThatTheRanksGet) {
  LaunchedJob given(run(1, {"--failure-grace", "7", "printenv", "TUTTI_FAILURE_GRACE"}));
  EXPECT_EQ(given.wait_exit(), 0) << given.err();
  EXPECT_TRUE(has(given.out(), "7000ms\n")) << given.out();
  LaunchedJob wrong({"run", "env", "TUTTI_FAILURE_GRACE=soon", TUTTI_COMMAND, "run", "true"});
  EXPECT_EQ(wrong.wait_exit(), 2);
  EXPECT_TRUE(has(wrong.err(), "TUTTI_FAILURE_GRACE")) << wrong.err();
}

TEST_F(Launcher, EnvShowsABadIdentityAndPrintsJson) {
  LaunchedJob job({"run", "env", "-u", "TUTTI_AGENT", "RANK=7", "WORLD_SIZE=2", TUTTI_COMMAND,
                   "env", "--json"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  const auto parsed = nlohmann::json::parse(job.out());
  EXPECT_TRUE(has(parsed["identity"]["error"], "RANK=7 is out of range")) << job.out();
  EXPECT_TRUE(std::any_of(parsed["settings"].begin(), parsed["settings"].end(),
                          [](const auto& row) { return row["name"] == "timeout"; }));
}

TEST_F(Launcher, DryRunStartsNothing) {
  LaunchedJob job(run(2, {"--dry-run", "sh", "-c", "echo started"}));
  EXPECT_EQ(job.wait_exit(), 0);
  EXPECT_TRUE(has(job.out(), "rank 1 -> host ")) << job.out();
  EXPECT_TRUE(has(job.out(), "/sh -c 'echo started'\n")) << job.out();
  EXPECT_FALSE(has(job.out(), "[0] started"));
}

/// No other job has it, of those that hold theirs.
std::string free_port() { return std::to_string(net::hold_port(0).port); }

// The original command lines, hosts replaced by this one.
TEST_F(Launcher, TakesMpirunsWords) {
  const std::string show = "echo $RANK of $WORLD_SIZE, $MASTER_ADDR $MASTER_PORT $NCCL_DEBUG";
  const std::string port = free_port();
  LaunchedJob job({"run",
                   "-np",
                   "4",
                   "-H",
                   "localhost:2,127.0.0.1:2",
                   "-x",
                   "MASTER_ADDR=localhost",
                   "-x",
                   "MASTER_PORT=" + port,
                   "-x",
                   "PATH",
                   "-x",
                   "NCCL_DEBUG=INFO",
                   "-mca",
                   "pml",
                   "ob1",
                   "-mca",
                   "btl",
                   "^openib",
                   "sh",
                   "-c",
                   show});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_TRUE(has(job.out(), "[3] 3 of 4, localhost " + port + " INFO")) << job.out();
  EXPECT_EQ(job.err(),
            "tutti run: without meaning here: --mca (Tutti has no components to choose from)\n");
}

TEST_F(Launcher, TakesTheSlotsOfAHostfile) {
  const std::string file = ::testing::TempDir() + fmt::format("tutti_hosts_{}", ::getpid());
  std::ofstream(file) << "# this one\nlocalhost slots=2\n";
  LaunchedJob job({"run", "--hostfile", file, "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_TRUE(has(job.out(), "[1] 2\n")) << job.out();
  std::filesystem::remove(file);
}

TEST_F(Launcher, TakesTorchrunsWordsAndVariables) {
  const std::string show = "echo $RANK of $WORLD_SIZE, $MASTER_ADDR $MASTER_PORT $ROLE_NAME";
  const std::string port = free_port();
  LaunchedJob words({"run", "--nproc_per_node=2", "--nnodes=1", "--node_rank=0",
                     "--master_addr=127.0.0.1", "--master_port=" + port, "--role=trainer",
                     "--no-python", "sh", "-c", show});
  EXPECT_EQ(words.wait_exit(), 0) << words.err();
  EXPECT_TRUE(has(words.out(), "[1] 1 of 2, 127.0.0.1 " + port + " trainer")) << words.out();
  EXPECT_EQ(words.err(), "");

  LaunchedJob variables(LaunchedJob::Command{
      {"env", "PET_NPROC_PER_NODE=3", "PET_STANDALONE=1", TUTTI_COMMAND, "run", "sh", "-c", show}});
  EXPECT_EQ(variables.wait_exit(), 0) << variables.err();
  EXPECT_TRUE(has(variables.out(), "[2] 2 of 3, ")) << variables.out();

  LaunchedJob several(LaunchedJob::Command{{"env", "PET_NNODES=2", TUTTI_COMMAND, "run", "true"}});
  EXPECT_EQ(several.wait_exit(), 2);
  EXPECT_TRUE(has(several.err(), "PET_NNODES 2: tutti run starts ranks on this host only"))
      << several.err();
}

TEST_F(Launcher, TakesTheNumberOfRanksFromSlurmsAllocation) {
  const auto salloc = [](const std::string& nodes, std::vector<std::string> words) {
    std::vector<std::string> command{"env",
                                     "SLURM_JOB_ID=7",
                                     "SLURM_NTASKS=3",
                                     "SLURM_NODELIST=n1",
                                     "SLURM_NNODES=" + nodes,
                                     TUTTI_COMMAND,
                                     "run"};
    command.insert(command.end(), words.begin(), words.end());
    return LaunchedJob::Command{command};
  };
  LaunchedJob plain(salloc("1", {"sh", "-c", "echo $RANK of $WORLD_SIZE"}));
  EXPECT_EQ(plain.wait_exit(), 0) << plain.err();
  EXPECT_TRUE(has(plain.out(), "[2] 2 of 3\n")) << plain.out();
  EXPECT_TRUE(has(plain.err(), "tutti run: 3 ranks: SLURM_NTASKS=3 of Slurm's job 7\n"));
  LaunchedJob counted(salloc("1", {"echo", "-n", "x"}));
  EXPECT_EQ(counted.wait_exit(), 0) << counted.err();
  EXPECT_FALSE(has(counted.err(), "stands after the program")) << counted.err();
  LaunchedJob dry(salloc("1", {"--dry-run", "true"}));
  EXPECT_EQ(dry.wait_exit(), 0) << dry.err();
  EXPECT_TRUE(has(dry.out(), "rank 2 -> host")) << dry.out();
  LaunchedJob told(salloc("2", {"-n", "1", "sh", "-c", "echo $RANK of $WORLD_SIZE"}));
  EXPECT_EQ(told.wait_exit(), 0) << told.err();
  EXPECT_EQ(told.out(), "0 of 1\n") << "-n comes first, also in several nodes";
  LaunchedJob four(LaunchedJob::Command{{"env", "SLURM_JOB_ID=7", "SLURM_STEP_NUM_TASKS=4",
                                         TUTTI_COMMAND, "run", "-n", "1", "true"}});
  EXPECT_EQ(four.wait_exit(), 0) << four.err();
  EXPECT_TRUE(four.err().starts_with("tutti run: srun has started this command 4 times"))
      << four.err();
  LaunchedJob several(salloc("2", {"true"}));
  EXPECT_EQ(several.wait_exit(), 2);
  EXPECT_TRUE(has(several.err(), "Slurm's job 7 has 2 nodes (n1)")) << several.err();
}

TEST_F(Launcher, KeepsWhatRanksPrintAndShowsWhatIsAskedFor) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_logs_{}", ::getpid());
  const std::string say = "echo out $RANK; echo err $RANK >&2; test $RANK != 1 || exit 3";
  LaunchedJob job({"run", "-n", "2", "-r", "0:1,1:3", "-t", "0:2", "--log-dir", folder, "--rdzv-id",
                   "job", "sh", "-c", say});
  EXPECT_EQ(job.wait_exit(), 3) << job.err();
  EXPECT_EQ(job.out(), "") << "stdout is in files";
  EXPECT_TRUE(has(job.err(), "[0] err 0\n")) << job.err();
  EXPECT_FALSE(has(job.err(), "[1] err 1\n")) << job.err();
  EXPECT_TRUE(has(job.err(), "last lines of rank 1:")) << job.err();
  std::string all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    all += std::string(std::istreambuf_iterator<char>(file), {});
    EXPECT_TRUE(has(entry.path().string(), "/attempt_0/")) << entry.path();
  }
  for (const char* const line : {"out 0\n", "err 0\n", "out 1\n", "err 1\n"}) {
    EXPECT_TRUE(has(all, line)) << all;
  }
  std::filesystem::remove_all(folder);
}

TEST_F(Launcher, KeepsFilesInsideOfTheFolderWhateverTheJobIsCalled) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_logs_{}", ::getpid());
  LaunchedJob job({"run", "--log-dir", folder + "/a/b", "--rdzv-id", "../../x/../y", "sh", "-c",
                   "echo $TORCHELASTIC_RUN_ID"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_EQ(job.out(), "../../x/../y\n") << "its name is what it was";
  EXPECT_TRUE(has(job.err(), "kept in " + folder + "/a/b/.._.._x_.._y_")) << job.err();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().filename(), "a") << "and nothing beside it";
  }
  std::filesystem::remove_all(folder);
}

TEST_F(Launcher, APipeAsAFileOfWhatRanksPrintIsRefused) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_logs_{}", ::getpid());
  const std::string pipe = folder + "/1/rank.0/stdout";
  std::filesystem::create_directories(folder + "/1/rank.0");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  LaunchedJob job({"run", "--output-filename", folder, "echo", "hi"});
  EXPECT_EQ(job.wait_exit(), 2);
  EXPECT_EQ(job.err(),
            "tutti run: cannot write " + pipe + ": it is no regular file; name another folder\n");
  EXPECT_TRUE(net::descendants_of(::getpid()).empty()) << "its guard has been waited for";
  std::filesystem::remove_all(folder);
}

TEST_F(Launcher, FoldsEqualLinesAndNamesStreams) {
  bool is_folded = false;  // one that comes more than a moment later has a line of its own
  for (int tries = 0; !is_folded && tries < 20; ++tries) {
    LaunchedJob folded(
        {"run", "-n", "3", "--fold-output", "sh", "-c", "echo same; echo own $RANK"});
    EXPECT_EQ(folded.wait_exit(), 0) << folded.err();
    EXPECT_TRUE(has(folded.out(), "[1] own 1\n")) << folded.out();
    is_folded = has(folded.out(), "[0-2] same\n");
  }
  EXPECT_TRUE(is_folded);
  LaunchedJob tagged({"run", "-n", "1", "--tag-output", "sh", "-c", "echo a; echo b >&2"});
  EXPECT_EQ(tagged.wait_exit(), 0) << tagged.err();
  EXPECT_EQ(tagged.out(), "[0]<stdout> a\n");
  EXPECT_EQ(tagged.err(), "[0]<stderr> b\n");
  LaunchedJob filtered({"run", "-n", "3", "--local-ranks-filter", "1", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(filtered.wait_exit(), 0) << filtered.err();
  EXPECT_EQ(filtered.out(), "[1] 1\n");
}

/// A program that listens at MASTER_PORT, as torch's TCPStore, can; a stranger cannot take it.
TEST_F(Launcher, MasterPortIsKeptForTheJob) {
  const std::string listen =
      "import os, socket\n"
      "place = ('0.0.0.0', int(os.environ['MASTER_PORT']))\n"
      "stranger, store = socket.socket(), socket.socket()\n"
      "try:\n  stranger.bind(place); print('taken by a stranger')\n"
      "except OSError as error: print('refused:', error.strerror)\n"
      "store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
      "store.bind(place); store.listen(); print('listens')\n";
  LaunchedJob job({"run", "-n", "1", "python3", "-c", listen});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_EQ(job.out(), "refused: Address already in use\nlistens\n");

  net::HeldPort held = net::hold_port(0);
  ASSERT_EQ(::listen(held.socket.get(), 1), 0);
  LaunchedJob late({"run", "--master-port", std::to_string(held.port), "true"});
  EXPECT_EQ(late.wait_exit(), 0);
  EXPECT_TRUE(has(late.err(), fmt::format("tutti: MASTER_PORT={}: Address already in use (pid {} (",
                                          held.port, ::getpid())))
      << late.err();
}

TEST_F(Launcher, AMasterPortThatAnotherJobHoldsIsSaid) {
  const net::HeldPort held = net::hold_port(0);
  LaunchedJob late({"run", "--master-port", std::to_string(held.port), "true"});
  EXPECT_EQ(late.wait_exit(), 0);
  EXPECT_TRUE(
      has(late.err(), fmt::format("tutti: MASTER_PORT={}: another job has it, too (pid {} (",
                                  held.port, ::getpid())))
      << late.err();
  const std::string own = free_port();
  for (int round = 0; round < 2; ++round) {  // it goes with the job, and its attempts share it
    LaunchedJob job({"run", "--master-port", own, "--max-restarts", "1", "sh", "-c",
                     "exit $((1 - TORCHELASTIC_RESTART_COUNT))"});
    EXPECT_EQ(job.wait_exit(), 0) << job.err();
    EXPECT_FALSE(has(job.err(), "MASTER_PORT")) << job.err();
  }
}

TEST_F(Launcher, BindsRanksToCores) {
  LaunchedJob one({"run", "-n", "1", "--bind-to", "core", "--report-bindings", "sh", "-c",
                   "grep Cpus_allowed_list /proc/self/status"});
  EXPECT_EQ(one.wait_exit(), 0) << one.err();
  EXPECT_TRUE(has(one.err(), "tutti: rank 0 -> host ")) << one.err();
  EXPECT_TRUE(has(one.err(), " (shared by 1 rank)\n")) << one.err();
  LaunchedJob none({"run", "-n", "1", "-bind-to", "none", "-map-by", "slot", "true"});
  EXPECT_EQ(none.wait_exit(), 0) << none.err();
  EXPECT_EQ(none.err(), "");
  LaunchedJob masked(LaunchedJob::Command{
      {"taskset", "-c", "0", TUTTI_COMMAND, "run", "-n", "2", "--bind-to", "core", "true"}});
  EXPECT_EQ(masked.wait_exit(), 2);
  EXPECT_TRUE(has(masked.err(), "--bind-to core: 2 ranks, and 1 core that may be used here"))
      << masked.err();
}

// ---- restarts --------------------------------------------------------------------------------

TEST_F(Launcher, StartsAllRanksAgainAfterAFailure) {
  LaunchedJob job(
      {"run", "-n", "2", "--max-restarts", "3", "sh", "-c",
       "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; test $RANK = 0 "
       "|| test $TORCHELASTIC_RESTART_COUNT = 2 || kill -9 $$"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  for (const char* const line : {"[0] try 0 of 3", "[1] try 1 of 3", "[0] try 2 of 3"}) {
    EXPECT_TRUE(has(job.out(), line)) << job.out();
  }
  EXPECT_FALSE(has(job.out(), "try 3")) << job.out();
  EXPECT_TRUE(has(job.err(), "killed by SIGKILL after ")) << job.err();
  EXPECT_TRUE(has(job.err(), "; restart 2 of 3\n")) << job.err();
  EXPECT_TRUE(has(job.err(), "it has failed twice within")) << job.err();
  EXPECT_TRUE(has(job.err(), "tutti: ended well after 2 restarts\n")) << job.err();
}

TEST_F(Launcher, TellsWhatAProgramSaysInItsErrorFile) {
  const std::string says =
      R"(echo '{"message": {"message": "ValueError: no data", "extraInfo": 1}}')";
  const Words words = {"run",
                       "-n",
                       "2",
                       "--max-restarts=1",
                       "sh",
                       "-c",
                       "test $RANK = 0 || { " + says + " > $TORCHELASTIC_ERROR_FILE; exit 3; }"};
  LaunchedJob job(words);
  EXPECT_EQ(job.wait_exit(), 3) << job.err();
  EXPECT_TRUE(has(job.err(), "\n  ValueError: no data\n")) << job.err();
  EXPECT_TRUE(has(job.err(), "restart 1: rank 1 (pid ")) << job.err();
  EXPECT_TRUE(has(job.err(), " s: ValueError: no data\n")) << job.err();
  // What an outer launcher has given is not this job's.
  LaunchedJob inner({"run", "-n", "1", "env", "TORCHELASTIC_ERROR_FILE=/outer", TUTTI_COMMAND,
                     "run", "-n", "2", "sh", "-c", "echo file=$TORCHELASTIC_ERROR_FILE"});
  EXPECT_EQ(inner.wait_exit(), 0) << inner.err();
  EXPECT_TRUE(has(inner.out(), "file=/proc/")) << inner.out();
  EXPECT_FALSE(has(inner.out(), "/outer")) << inner.out();
}

TEST_F(Launcher, EndsWithTheLastFailureWhenNoRestartIsLeft) {
  LaunchedJob job({"run", "-n", "2", "--max-restarts=1", "sh", "-c",
                   "test $RANK = 0 || exit $((7 + TORCHELASTIC_RESTART_COUNT))"});
  EXPECT_EQ(job.wait_exit(), 8) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1 on ")) << job.err();
  EXPECT_TRUE(has(job.err(), "  restart 1: rank 1 (pid ")) << job.err();
  EXPECT_TRUE(has(job.err(), "exit code 7 after ")) << job.err();
}

TEST_F(Launcher, DoesNotStartAgainWhatTheUserHasEnded) {
  LaunchedJob job({"run", "-n", "2", "--max-restarts=3", "sh", "-c", "echo up; sleep 30"});
  ASSERT_TRUE(job.wait_for("up", 2));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(), 128 + SIGTERM) << job.err();
  EXPECT_FALSE(has(job.err(), "restart")) << job.err();
  LaunchedJob late({"run", "-n", "2", "--max-restarts=3", "--timeout", "200ms", "sleep", "30"});
  EXPECT_EQ(late.wait_exit(), 124) << late.err();
  EXPECT_FALSE(has(late.err(), "restart")) << late.err();
}

/// Those who waited in init of the attempt before find a store of their own.
TEST_F(Launcher, AWorldIsMadeAnewByEachAttempt) {
  const std::string command = fmt::format(
      "test $TORCHELASTIC_RESTART_COUNT = 0 && exec {0} meet-unless 5 1; exec {0} openmp",
      TUTTI_TEST_RANK);
  LaunchedJob job({"run", "-n", "3", "--max-restarts", "1", "sh", "-c", command});
  EXPECT_EQ(job.wait_exit(), 0) << job.err() << job.out();
}

TEST_F(Launcher, StartsInAnotherFolder) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_wdir_{}", ::getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/script") << "#!/bin/sh\npwd\n";
  std::filesystem::permissions(folder + "/script", std::filesystem::perms::owner_all);
  LaunchedJob job({"run", "-wdir", folder, "./script"});
  EXPECT_EQ(job.wait_exit(), 0) << job.err();
  EXPECT_EQ(job.out(), folder + "\n");
  std::filesystem::remove_all(folder);
}

TEST_F(Launcher, ScriptWithoutInterpreterIsExplained) {
  const std::string script = ::testing::TempDir() + fmt::format("tutti_script_{}", ::getpid());
  std::ofstream(script) << "echo hello\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  LaunchedJob job(run(1, {script}));
  EXPECT_EQ(job.wait_exit(), 127);
  EXPECT_TRUE(has(job.err(), "does a script begin with #!")) << job.err();
  std::filesystem::remove(script);
}

}  // namespace
}  // namespace tutti::e2e
