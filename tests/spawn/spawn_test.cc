// What comes back of spawned ranks, however they end; and what is refused. Each call is made by
// spawn_program, in a process of its own: its ranks by exec run that again.
#include "tutti/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "e2e/launched_job.h"
#include "forks.h"
#include "in_time.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/process_tree.h"
#include "spawn/ways.h"
#include "tutti/init.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using e2e::LaunchedJob;

/// Runs spawn_program, below which nothing may be left once it has ended.
class Spawning : public ::testing::Test {
 protected:
  void SetUp() override { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  void TearDown() override {
    EXPECT_TRUE(nothing_is_left());
    net::kill_everything_below();
  }
  static bool nothing_is_left() {
    const Clock::time_point end = Clock::now() + 20s;
    for (;;) {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (net::descendants_of(::getpid()).empty()) return true;
      if (Clock::now() > end) return false;
      Deadline soon = Deadline::after(1ms);
      net::pause(1ms, soon);
    }
  }
  /// Whether that takes two seconds at most: one that was stopped goes on by itself after one.
  static bool nothing_is_left_soon() {
    const Clock::time_point began = Clock::now();
    EXPECT_TRUE(nothing_is_left());
    return Clock::now() - began < 2s;
  }
  struct Ended {
    int code = -1;
    std::string out, err;
  };
  static Ended run(std::vector<std::string> words, const std::vector<std::string>& variables = {}) {
    words.insert(words.begin(), TUTTI_SPAWN_PROGRAM);
    words.insert(words.begin(), variables.begin(), variables.end());
    words.insert(words.begin(), "env");
    LaunchedJob job(LaunchedJob::Command{words});
    Ended ended;
    ended.code = job.wait_exit(60s);
    ended.out = job.out();
    ended.err = job.err();
    return ended;
  }
};

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// ---- How ranks end -----------------------------------------------------------------------------

struct Row {
  std::string way;
  std::string code;        ///< of the error; "well"
  std::string culprits;    ///< as they are printed
  int exit_code;           ///< of the culprit; -1: any
  std::string text;        ///< a part of it
  bool of_threads = true;  ///< they can end so, too
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"well", "well", "", 0, ""},
      {"exits well", "well", "", 0, "", false},
      {"error", "kUnsupported", "1", 1, "of 3 failed: no such thing"},
      {"throws", "kPeerLost", "1", 1, "of 3 threw: out of luck"},
      {"throws odd", "kPeerLost", "1", 1, "not derived from std::exception"},
      {"unwinds", "kPeerLost", "1", 1, "of 3 was ended by pthread_exit"},
      {"returns", "kPeerLost", "1", 7, "of 3 returned 7"},
      {"exits", "kPeerLost", "1", 5, "ended with exit code 5 before its function", false},
      {"killed", "kPeerLost", "1", 137, "was killed by SIGKILL", false},
      {"aborts", "kPeerLost", "1", 134, "was killed by SIGABRT", false},
      {"before", "kPeerLost", "1", 6, "ended with exit code 6", false},
      {"absent", "kPeerLost", "1", 0, "rank 1 (exit code 0) was lost before the world"},
      {"leaves", "kClosed", "1", 0, "left the group after 1 collective"},
      {"hangs", "kTimeout", "1", 143, "was ended (killed by SIGTERM)", false},
      {"stubborn", "kTimeout", "1", 137, "was ended (killed by SIGKILL)", false},
      {"waits", "kTimeout", "1", -1, "last completed all_reduce #1"},
      {"spawns", "kInvalidArgument", "1", 1, "ranks start no ranks"},
      {"untold", "kAborted", "1", 0, "its program was not told", false},
      {"throws+helpers", "kPeerLost", "1", 1, "of 3 threw: out of luck", false},
      {"well+helpers", "well", "", 0, "", false},
  };
  return all;
}

struct Case {
  std::string start;
  Row row;
};
void PrintTo(const Case& each, std::ostream* out) { *out << each.start << " " << each.row.way; }
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* start : {"fork", "exec", "thread"}) {
    for (const Row& row : rows()) {
      if (row.of_threads || std::string(start) != "thread") all.push_back({start, row});
    }
  }
  return all;
}

class SpawnEnds : public Spawning, public ::testing::WithParamInterface<Case> {};

TEST_P(SpawnEnds, ComesBackAsOneError) {
  const auto& [start, row] = GetParam();
  const bool hangs = row.code == "kTimeout";
  const std::string begin =
      row.code == "well" ? "well exits" : row.code + " culprits " + row.culprits;
  int seconds = hangs ? 6 : 20;
  Ended ended = run({start, row.way, fmt::format("{}000", seconds)});
  // On a slow machine the others may not have come to where they wait by then.
  for (int tries = 1; hangs && tries < 3 && !ended.out.starts_with(begin); ++tries) {
    seconds *= 2;
    ended = run({start, row.way, fmt::format("{}000", seconds)});
  }
  EXPECT_TRUE(ended.out.starts_with(begin)) << ended.out << ended.err;
  EXPECT_NE(ended.out.find(row.text), std::string::npos) << ended.out << ended.err;
  if (hangs) {
    expect_in(ended.out,
              fmt::format("not all ranks had ended {} s after join was called", seconds));
  }
  int exits[3] = {-9, -9, -9};
  const std::size_t at = ended.out.find("exits ");
  ASSERT_NE(at, std::string::npos) << ended.out << ended.err;
  std::sscanf(ended.out.c_str() + at, "exits %d %d %d", &exits[0], &exits[1], &exits[2]);
  if (row.exit_code >= 0) {
    EXPECT_EQ(exits[ways::kCulprit], row.exit_code) << ended.out;
  }
  for (const int exit : exits) EXPECT_GE(exit, 0) << "it still runs: " << ended.out;
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& each) {
  std::string name = each.param.start + "_" + each.param.row.way;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Starts, SpawnEnds, ::testing::ValuesIn(cases()), name_of_case);

// ---- What ranks find ---------------------------------------------------------------------------

class SpawnStarts : public Spawning, public ::testing::WithParamInterface<std::string> {};

TEST_P(SpawnStarts, SeveralSpawnsNeverMeet) {
  const Ended ended = run({GetParam(), "many"});
  EXPECT_EQ(ended.out, "well\n") << ended.err;
}

TEST_P(SpawnStarts, DestructorEndsWhatRuns) {
  const Clock::time_point begin = Clock::now();
  const Ended ended = run({GetParam(), "destroyed"});
  EXPECT_EQ(ended.out, "gone\n") << ended.err;
  EXPECT_NE(ended.err.find("it was destroyed while ranks ran"), std::string::npos) << ended.err;
  EXPECT_LT(Clock::now() - begin, 15s);
}

INSTANTIATE_TEST_SUITE_P(Starts, SpawnStarts,
                         ::testing::Values("fork", "exec", "thread", "automatic"),
                         [](const auto& row) { return row.param; });

TEST_F(Spawning, RanksFindTheirIdentityAndNothingOfAnOuterLauncher) {
  for (const char* start : {"fork", "exec"}) {
    const Ended ended = run({start, "environment"},
                            {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "PMI_RANK=0",
                             "PMI_SIZE=1", "TUTTI_INIT_METHOD=tcp://x:1", "MY_OWN=3"});
    EXPECT_EQ(ended.out,
              "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=- "
              "PMI_RANK=- TUTTI_INIT_METHOD=- TUTTI_WORLD_SIZE=- OMP_WAIT_POLICY=PASSIVE MY_OWN=3 "
              "stdin=0\n")
        << ended.err;
  }
}

TEST_F(Spawning, AutomaticIsForkWithOneThreadElseExec) {
  Spawned ranks = spawn(2, [](int) { init_process_group(); });
  EXPECT_EQ(ranks.start(), Start::fork);
  EXPECT_EQ(ranks.world_size(), 2);
  EXPECT_GT(ranks.pid(0) + ranks.pid(1), -1);
  ranks.join();
  EXPECT_EQ(ranks.exit_code(0), 0);
  EXPECT_GT(ranks.pid(1), 0);
  const Ended ended = run({"automatic", "well"}, {"TUTTI_TEST_THREAD=1"});
  EXPECT_TRUE(ended.out.starts_with("well")) << ended.out << ended.err;
}

TEST_F(Spawning, JoinForReturnsFalseAndTouchesNothing) {
  int gate[2] = {-1, -1};
  ASSERT_EQ(::pipe2(gate, O_CLOEXEC), 0);
  Spawned ranks = spawn(2, [&](int) {
    char byte = 0;
    return ::read(gate[0], &byte, 1) == 1 ? 0 : 1;
  });
  EXPECT_FALSE(ranks.join_for(10ms));
  EXPECT_EQ(ranks.exit_code(0), std::nullopt);
  EXPECT_EQ(::write(gate[1], "xx", 2), 2);
  for (const int end : gate) ::close(end);
  EXPECT_TRUE(ranks.join_for(20s));
  EXPECT_TRUE(ranks.join_for(0s));
  EXPECT_EQ(ranks.exit_code(1), 0);
}

TEST_F(Spawning, EndIsAborted) {
  Spawned ranks = spawn(2, [](int) { std::this_thread::sleep_for(60s); });
  ranks.end();
  for (int i = 0; i < 2; ++i) {
    try {
      ranks.join(20s);
      ADD_FAILURE() << "it ended well";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
    }
  }
  EXPECT_EQ(ranks.exit_code(0), 128 + SIGTERM);
}

TEST_F(Spawning, ACopyOfTheProgramOwnsNothing) {
  if (kKeepsFreed) GTEST_SKIP() << "a copy waits for locks of ASan's allocator for ever";
  Spawned ranks = spawn(2, [](int) { std::this_thread::sleep_for(500ms); });
  const pid_t copy = ::fork();
  if (copy == 0) {
    ranks.join();
    ranks.end();
    { const Spawned gone = std::move(ranks); }
    ::_exit(9);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(copy, &status, 0), copy);
  EXPECT_EQ(status, W_EXITCODE(9, 0));
  ranks.join(20s);
}

TEST_F(Spawning, TheErrorHasHostAndLine) {
  Spawned ranks = spawn(2, [](int rank) {
    if (rank == 0) throw Error(ErrorCode::kClosed, "as it is");
  });
  try {
    ranks.join(20s);
    ADD_FAILURE() << "it ended well";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
    EXPECT_EQ(error.context().op, "spawn");
    EXPECT_EQ(error.context().culprits, std::vector<int>{0});
    EXPECT_FALSE(error.context().host.empty());
    EXPECT_TRUE(error.context().call_site.starts_with("spawn_test.cc:")) << error.what();
  }
}

TEST_F(Spawning, WhatAnEarlierSpawnLeftUntoldIsNotItsOwn) {
  EXPECT_TRUE(ways::attempt(Start::thread, "untold", 20s).is_well);
  const ways::Result result = ways::attempt(Start::fork, "well", 20s);
  EXPECT_TRUE(result.is_well) << result.text;
}

TEST_F(Spawning, TheThreadThatSpawnedMayEnd) {
  const Ended ended = run({"exec", "thread ends"});
  EXPECT_EQ(ended.out, "well\n") << ended.err;
}

TEST_F(Spawning, AProgramThatIgnoresItsChildrenOrHasNoStandardDescriptors) {
  for (const char* start : {"fork", "exec"}) {
    const Ended ignoring = run({start, "exits"}, {"TUTTI_TEST_IGNORE_CHILDREN=1"});
    int exits[3] = {};  // the others may have found it before they were asked to end
    EXPECT_EQ(std::sscanf(ignoring.out.c_str(), "kPeerLost culprits 1 exits %d %d %d", &exits[0],
                          &exits[1], &exits[2]),
              3)
        << ignoring.out;
    EXPECT_EQ(exits[1], 5) << ignoring.out;
    const Ended closed = run({start, "well"}, {"sh", "-c", "exec \"$@\" <&-", "sh"});
    EXPECT_EQ(closed.out, "well exits 0 0 0\n") << closed.err;
  }
}

TEST_F(Spawning, AWorldThatWasClosedBeforeDoesNotMatter) {
  init_process_group().close();
  Spawned ranks = spawn(2, [](int rank) {
    auto world = init_process_group();
    if (world.all_reduce_value(rank) != 1) throw std::runtime_error("another sum");
  });
  EXPECT_EQ(ranks.start(), Start::fork);
  ranks.join(20s);
}

TEST_F(Spawning, TheLargestWorldMeets) {
  Spawned ranks = spawn(256, [](int) { init_process_group().barrier(); }, {.start = Start::fork});
  ranks.join(250s);
}

TEST_F(Spawning, RanksByExecGetTheArgumentsThatMainGot) {
  const Ended ended = run({"exec", "well"}, {"TUTTI_TEST_REWRITES=1"});
  EXPECT_EQ(ended.out, "well exits 0 0 0\n") << ended.err;
}

TEST_F(Spawning, AStoppedRankIsNamedAndACutTextSaysSo) {
  const auto text_of = [](Spawned ranks, std::chrono::milliseconds timeout) -> std::string {
    try {
      ranks.join(timeout);
    } catch (const Error& error) {
      return error.what();
    }
    return "it ended well";
  };
  const auto stop = [](int rank) {
    if (rank == 1) ::raise(SIGSTOP);
  };
  Spawned with_stopped = spawn(2, stop);
  Deadline deadline = Deadline::after(20s);
  while (with_stopped.pid(1) <= 0 || !net::is_stopped(with_stopped.pid(1))) {
    ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
  }
  const std::string stopped = text_of(std::move(with_stopped), 500ms);
  EXPECT_NE(stopped.find("was stopped by a signal, and was ended"), std::string::npos) << stopped;
  const auto say_much = [](int) { throw std::runtime_error(std::string(100'000, 'z') + "END"); };
  const std::string cut = text_of(spawn(1, say_much), 20s);
  EXPECT_TRUE(cut.ends_with("zzz... (cut)")) << cut.size();
}

TEST_F(Spawning, WhatIsInBuffersOfCppIsPrintedOnce) {
  const Ended ended = run({"fork", "unflushed"});
  std::string out = ended.out;
  for (const char* const word : {"rank ", "wide "}) {
    for (int rank = 0; rank < 2; ++rank) {
      const std::size_t at = out.find(word);
      ASSERT_NE(at, std::string::npos) << ended.out;
      out.erase(at, std::string(word).size());
    }
  }
  EXPECT_EQ(out, "main end\n") << ended.out;
  EXPECT_EQ(ended.err, "log its log its log ");
}

TEST_F(Spawning, RanksByExecHaveTheProgramsName) {
  const Ended ended = run({"exec", "name"});
  EXPECT_EQ(ended.out, "spawn_program\n") << ended.err;
}

/// Started by a name that means something in the folder of the start alone, by that of its loader,
/// and gone.
TEST_F(Spawning, RanksByExecNeedNoProc) {
  if (e2e::kNeedsProc) GTEST_SKIP() << "no ASan there";
  const auto script_of = [](const std::string& start) {
    return "mount -t tmpfs none /proc || exit 77; cp $0 $1/tutti_by_exec; cd $1; "
           "export TUTTI_TEST_REWRITES=1; " +
           start +
           " exec name; code=$?; rm -f tutti_by_exec; "
           "exit $code";
  };
  for (const auto& [start, said] :
       {std::pair{"TUTTI_TEST_MOVES=1 ./tutti_by_exec", "tutti_by_exec\n"},
        {"$(ls /lib*/ld-linux-*.so.* | head -n 1) ./tutti_by_exec", "tutti_by_exec\n"},
        {"TUTTI_TEST_REMOVES=1 ./tutti_by_exec", ", is gone or another one by now; mount /proc"}}) {
    LaunchedJob job(LaunchedJob::Command{{"unshare", "-Urm", "sh", "-c", script_of(start),
                                          TUTTI_SPAWN_PROGRAM, ::testing::TempDir()}});
    const int code = job.wait_exit(30s);
    if (code == 77 || job.err().starts_with("unshare:")) GTEST_SKIP() << "no namespaces here";
    expect_in(job.out(), said);
  }
}

TEST_F(Spawning, RanksByExecAreThisProgramAlsoWhereItsFileIsGone) {
  const std::string copy = ::testing::TempDir() + fmt::format("tutti_gone_{}", ::getpid());
  LaunchedJob job(LaunchedJob::Command{{"env", "TUTTI_TEST_REMOVES=1", "sh", "-c",
                                        "cp $0 $1; $1 exec name", TUTTI_SPAWN_PROGRAM, copy}});
  EXPECT_EQ(job.wait_exit(30s), 0) << job.err();
  EXPECT_EQ(job.out(), "exe\n") << job.err();
}

// ---- Keeper and guard --------------------------------------------------------------------------

/// Ranks of which one throws once the gate is opened.
class Gated {
 public:
  Gated() {
    if (::pipe2(gate_, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  }
  ~Gated() {
    ::close(gate_[0]);
    ::close(gate_[1]);
  }
  Spawned spawn_ranks(std::chrono::nanoseconds grace = 500ms) const {
    return spawn(3,
                 [gate = gate_[0]](int rank) {
                   char byte = 0;
                   if (rank == 1 && ::read(gate, &byte, 1) == 1)
                     throw std::runtime_error("out of luck");
                   for (;;) ::pause();
                 },
                 {.start = Start::fork, .grace = grace});
  }
  void open() const { ASSERT_EQ(::write(gate_[1], "x", 1), 1); }

 private:
  int gate_[2] = {};
};

pid_t find(const std::string& name) {
  Deadline deadline = Deadline::after(20s);
  for (;;) {
    const pid_t pid = e2e::find_below(::getpid(), name);
    if (pid > 0 || net::pause(1ms, deadline) == net::PollResult::expired) return pid;
  }
}

void stop(pid_t pid) {
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  Deadline deadline = Deadline::after(20s);
  while (!net::is_stopped(pid)) {  // its own timer may have let it go on
    ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  }
}

Error failure_of(Spawned& ranks, Timeout timeout) {
  try {
    ranks.join(timeout);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "it ended well");
}

TEST_F(Spawning, AKeeperThatIsStoppedGoesOn) {
  const Gated gated;
  Spawned ranks = gated.spawn_ranks();
  const pid_t keeper = find("tutti-keeper");
  ASSERT_EQ(::kill(keeper, SIGSTOP), 0);
  gated.open();
  const Error error = failure_of(ranks, 20s);
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
  EXPECT_EQ(error.context().culprits, std::vector<int>{1}) << error.what();
  expect_in(error.what(), "of 3 threw: out of luck; ranks 0, 2 were ended because of that");
}

/// Nobody orders anything.
TEST_F(Spawning, AKeeperThatIsStoppedWithItsGuardGoesOn) {
  const Gated gated;
  Spawned ranks = gated.spawn_ranks();
  const pid_t guard = find("tutti-guard"), keeper = find("tutti-keeper");
  stop(guard);
  stop(keeper);
  gated.open();
  const Error error = failure_of(ranks, 20s);
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
  EXPECT_EQ(error.context().culprits, std::vector<int>{1}) << error.what();
}

void await_state(pid_t pid, char state) {
  Deadline deadline = Deadline::after(20s);
  while (net::stat_of(pid).value_or(net::ProcessStat{}).state != state) {
    ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
  }
}

/// Kills both, the second once the first has ended, while their keeper stands still. False: it has
/// gone on by itself meanwhile.
bool kill_behind(pid_t keeper, pid_t first, pid_t second) {
  const auto has_ended = [](pid_t pid) {
    return net::stat_of(pid).value_or(net::ProcessStat{}).state == 'Z';
  };
  for (const pid_t rank : {first, second}) {
    net::signal_descendant(rank, ::getpid(), SIGKILL);
    Deadline deadline = Deadline::after(20s);
    while (!has_ended(rank) && net::is_stopped(keeper)) {
      if (net::pause(1ms, deadline) == net::PollResult::expired) return false;
    }
  }
  return has_ended(first) && has_ended(second) && net::is_stopped(keeper);
}

TEST_F(Spawning, WhoEndedFirstIsTheCauseAlsoWhereTheKeeperLooksLate) {
  for (int tries = 0; tries < 10; ++tries) {  // guard and keeper never stay stopped for long
    Spawned ranks = spawn(3,
                          [](int) {
                            for (;;) ::pause();
                          },
                          {.start = Start::fork, .grace = 500ms});
    const pid_t guard = find("tutti-guard"), keeper = find("tutti-keeper");
    Deadline deadline = Deadline::after(20s);
    while (ranks.pid(2) <= 0) ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
    await_state(keeper, 'S');  // it has started all
    stop(guard);
    stop(keeper);
    const bool was_late = kill_behind(keeper, ranks.pid(2), ranks.pid(0));
    for (const pid_t stopped : {keeper, guard}) ::kill(stopped, SIGCONT);  // if it is still there
    const Error error = failure_of(ranks, 20s);
    if (!was_late) continue;
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    EXPECT_EQ(error.context().culprits, std::vector<int>{2}) << error.what();
    expect_in(error.what(), "of 3 was killed by SIGKILL (which the kernel does");
    return;
  }
  FAIL() << "its keeper went on each time";
}

TEST_F(Spawning, AKeeperThatIsFoundStoppedIsNamedAndNoRankIsBlamed) {
  const Gated gated;
  Spawned ranks = gated.spawn_ranks();
  const pid_t guard = find("tutti-guard"), keeper = find("tutti-keeper");
  stop(guard);
  e2e::Held held(keeper);  // without a debugger it goes on by itself
  if (!held.is_held()) {
    ranks.end();
    GTEST_SKIP() << "no ptrace here";
  }
  gated.open();
  const Error error = failure_of(ranks, 500ms);
  EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
  EXPECT_TRUE(error.context().culprits.empty()) << error.what();
  expect_in(error.what(), fmt::format("the keeper of its ranks (pid {}) was stopped", keeper));
  EXPECT_EQ(std::string(error.what()).find("is left"), std::string::npos) << error.what();
  EXPECT_TRUE(net::descendants_of(::getpid()).empty());
}

TEST_F(Spawning, AKeeperInADebuggerHoldsNobodyUpForLong) {
  const Gated gated;
  Spawned ranks = gated.spawn_ranks();
  const pid_t keeper = find("tutti-keeper");
  e2e::Held held(keeper);
  if (!held.is_held()) {
    ranks.end();
    GTEST_SKIP() << "no ptrace here";
  }
  const Error error = failure_of(ranks, 500ms);
  expect_in(error.what(), fmt::format("the keeper of its ranks (pid {}) was stopped", keeper));
  EXPECT_EQ(std::string(error.what()).find("is left"), std::string::npos) << error.what();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.exit_code(rank), 128 + SIGKILL);
  EXPECT_TRUE(net::descendants_of(::getpid()).empty());
}

/// It is killed for that with its ranks, of which none is to blame.
TEST_F(Spawning, AKilledGuardIsTheCauseAlsoWhereItsKeeperIsSlow) {
  const Gated gated;
  Spawned ranks = gated.spawn_ranks();
  const pid_t guard = find("tutti-guard"), keeper = find("tutti-keeper");
  e2e::Held held(keeper);
  if (!held.is_held()) {
    ranks.end();
    GTEST_SKIP() << "no ptrace here";
  }
  ASSERT_EQ(::kill(guard, SIGKILL), 0);
  const Error error = failure_of(ranks, {});
  EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
  EXPECT_TRUE(error.context().culprits.empty()) << error.what();
  expect_in(error.what(), "the keeper of its ranks, or its guard, was killed");
}

/// Ranks that do not hear that they are to end.
Spawned deaf_ranks(const Gated& gated) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  Spawned ranks = gated.spawn_ranks(60s);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return ranks;
}

TEST_F(Spawning, WhatCameFirstIsTheCauseThoughGuardOrKeeperIsKilledAfterIt) {
  const auto parent_of = [](pid_t pid) {
    return net::stat_of(pid).value_or(net::ProcessStat{}).parent;
  };
  for (const bool kills_guard : {true, false}) {
    const auto find_of = [&](const Spawned& of) {
      const pid_t keeper = parent_of(of.pid(0));
      return kills_guard ? parent_of(keeper) : keeper;
    };
    const Gated gated;
    Spawned ranks = deaf_ranks(gated);
    gated.open();
    Deadline deadline = Deadline::after(20s);
    while (!ranks.exit_code(1)) ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
    ASSERT_EQ(::kill(find_of(ranks), SIGKILL), 0);
    const Error error = failure_of(ranks, {});
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    EXPECT_EQ(error.context().culprits, std::vector<int>{1}) << error.what();
    expect_in(error.what(), "of 3 threw: out of luck");
    expect_in(error.what(), "; then the keeper of its ranks, or its guard, was killed");

    Spawned ended = deaf_ranks(gated);
    while (ended.pid(2) <= 0) ASSERT_NE(net::pause(1ms, deadline), net::PollResult::expired);
    const pid_t pid = find_of(ended);
    ended.end();
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    const Error end = failure_of(ended, {});
    EXPECT_EQ(end.code(), ErrorCode::kAborted) << end.what();
    expect_in(end.what(), "the program ended it");
  }
}

TEST_F(Spawning, AGuardThatMakesNoKeeperIsNamedAndNobodyElseGetsASignal) {
  const Ended ended = run({"fork", "no keeper"});
  EXPECT_TRUE(ended.out.starts_with("kSystem, continued 0: ")) << ended.out << ended.err;
  expect_in(ended.out, "there was no process left for it");
}

/// Nobody asks for anything, and join has no timeout.
TEST_F(Spawning, AStoppedKeeperWithAKilledGuardHoldsNobodyUp) {
  for (const bool is_guard_first : {true, false}) {
    expect_once_in_time([&](bool& is_in_time) {
      const Gated gated;
      Spawned ranks = gated.spawn_ranks();
      const pid_t guard = find("tutti-guard"), keeper = find("tutti-keeper");
      if (is_guard_first) {
        ASSERT_EQ(::kill(guard, SIGKILL), 0);
      }
      ASSERT_EQ(::kill(keeper, SIGSTOP), 0);
      if (!is_guard_first) {
        ASSERT_EQ(::kill(guard, SIGKILL), 0);
      }
      const Error error = failure_of(ranks, {});
      EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
      expect_in(error.what(), "guard");
      is_in_time = nothing_is_left_soon();
    });
  }
}

TEST_F(Spawning, ASpawnerThatIsKilledWithAStoppedGuardLeavesNothing) {
  expect_once_in_time([](bool& is_in_time) {
    LaunchedJob job(LaunchedJob::Command{{TUTTI_SPAWN_PROGRAM, "fork", "deaf"}});
    ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
    stop(job.guard());
    job.signal(SIGKILL);
    EXPECT_EQ(job.wait_exit(20s), 137);
    is_in_time = nothing_is_left_soon();
  });
}

TEST_F(Spawning, OneThatFailsAfterItsForkLeavesNoZombie) {
  pthread_attr_t usual, too_large;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&too_large), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&too_large, std::size_t{1} << 46), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&too_large), 0);  // there is no thread any more
  ErrorCode code = ErrorCode::kInternal;
  try {
    const Spawned ranks = spawn(2, [](int) { std::this_thread::sleep_for(60s); });
  } catch (const Error& error) {
    code = error.code();
  }
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(code, ErrorCode::kSystem);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST_F(Spawning, RanksAreEndedHoweverFewDescriptorsAreLeft) {
  if (kKeepsFreed) GTEST_SKIP() << "UBSan opens a pipe where it looks at a vptr";
  expect_once_in_time([](bool& is_in_time) {
    const Clock::time_point began = Clock::now();
    std::vector<std::unique_ptr<LaunchedJob>> jobs;
    for (int left = 4; left < 16; ++left) {
      jobs.push_back(std::make_unique<LaunchedJob>(LaunchedJob::Command{
          {TUTTI_SPAWN_PROGRAM, "fork", fmt::format("descriptors {}", left)}}));
    }
    std::string all;
    for (const auto& job : jobs) {
      EXPECT_EQ(job->wait_exit(60s), 1);
      all += job->out() + job->err();
    }
    expect_in(all, "Too many open files");
    expect_in(all, "(killed by SIGKILL)");
    is_in_time = nothing_is_left() && Clock::now() - began < 8s;  // none is given up after 10 s
  });
}

// ---- Signals to the program --------------------------------------------------------------------

class SpawnerIsAsked : public Spawning, public ::testing::WithParamInterface<std::string> {};

TEST_P(SpawnerIsAsked, RanksHaveTheGraceAndItEndsAsItWasAsked) {
  for (const int number : {SIGTERM, SIGINT}) {
    LaunchedJob job(LaunchedJob::Command{{TUTTI_SPAWN_PROGRAM, GetParam(), "saves"}});
    ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
    job.signal(number);
    EXPECT_EQ(job.wait_exit(20s), 128 + number);
    for (const char* rank : {"saved 0\n", "saved 1\n"}) expect_in(job.out(), rank);
  }
}

TEST_P(SpawnerIsAsked, ASecondInterruptEndsAllAtOnce) {
  LaunchedJob job(LaunchedJob::Command{{TUTTI_SPAWN_PROGRAM, GetParam(), "deaf"}});
  ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
  // Two that come at once count as one.
  for (int i = 0; i < 500 && job.wait_exit(20ms) < 0; ++i) job.signal(SIGINT);
  EXPECT_EQ(job.wait_exit(1s), 128 + SIGINT) << "long before the grace is over";
}

INSTANTIATE_TEST_SUITE_P(Starts, SpawnerIsAsked, ::testing::Values("fork", "exec"),
                         [](const auto& row) { return row.param; });

TEST_F(Spawning, RanksByExecHearNothingOfMainsCallback) {
  LaunchedJob job(LaunchedJob::Command{{TUTTI_SPAWN_PROGRAM, "exec", "main hears"}});
  ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(20s), 1) << "long before the grace is over";
  expect_in(job.out(), "kAborted");
}

/// What `tutti run` has set for its one rank is not for several; what a user has set is.
TEST_F(Spawning, UnderTuttiRunRanksHaveTheThreadsTheyHaveWithoutIt) {
  const Ended alone = run({"fork", "threads"}, {"-u", "OMP_NUM_THREADS"});
  for (const char* start : {"fork", "exec"}) {
    // Others than there are cores: as if the launcher had seen others.
    const Ended launched =
        run({start, "threads"}, {"OMP_NUM_THREADS=977", "OMP_WAIT_POLICY=ACTIVE",
                                 "TUTTI_RUN_DEFAULTS=OMP_NUM_THREADS=977 OMP_WAIT_POLICY=PASSIVE"});
    EXPECT_EQ(launched.out, alone.out) << launched.err;
  }
  EXPECT_EQ(run({"fork", "threads"}, {"OMP_NUM_THREADS=977"}).out, "threads 977\n");
  const std::vector<std::string> words = {"run", "-n", "1", TUTTI_SPAWN_PROGRAM, "fork", "threads"};
  LaunchedJob job(words);
  EXPECT_EQ(job.wait_exit(20s), 0) << job.err();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    EXPECT_EQ(job.out(), alone.out) << job.err();
  }
}

// ---- What is refused ---------------------------------------------------------------------------

std::string refusal_of(int world_size, const SpawnOptions& options = {}) {
  try {
    spawn(
        world_size, [](int) {}, options)
        .join();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

TEST_F(Spawning, RefusesWhatIsNoNumberOfRanks) {
  expect_in(refusal_of(0), "0 ranks: at least 1 is needed");
  expect_in(refusal_of(-3), "-3 ranks: at least 1 is needed");
  EXPECT_EQ(refusal_of(10'000).find("tutti run"), std::string::npos) << "which has 256, too";
  expect_in(refusal_of(10'000), "10000 ranks: a host holds at most 256");
  expect_in(refusal_of(2, {.grace = -1s}), "a time is negative");
}

TEST_F(Spawning, RefusesForkWithThreads) {
  const Ended ended = run({"fork", "well"}, {"TUTTI_TEST_THREAD=1"});
  EXPECT_TRUE(ended.out.starts_with("kInvalidArgument")) << ended.out << ended.err;
  expect_in(ended.out, "this process has 2 threads");
  expect_in(ended.out, "its first OpenMP region hangs");
}

TEST_F(Spawning, RefusesForkWhereCudaIsInUse) {
  const Ended ended = run({"fork", "well"}, {"TUTTI_TEST_CUDA=1"});
  if (ended.code == 77) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_TRUE(ended.out.starts_with("kInvalidArgument")) << ended.out << ended.err;
  expect_in(ended.out, "CUDA is in use here (/dev/nvidia-uvm is open)");
  const Ended automatic = run({"automatic", "well"}, {"TUTTI_TEST_CUDA=1"});
  EXPECT_EQ(automatic.out, "well exits 0 0 0\n") << automatic.err;
}

TEST_F(Spawning, RefusesForkWhileItHasAWorld) {
  const ProcessGroup world = init_process_group();
  expect_in(refusal_of(2, {.start = Start::fork}), "threads (OpenMP, a world, or a spawn");
}

TEST_F(Spawning, RefusesInARankOfALauncher) {
  using Variables = std::vector<std::string>;
  for (const Variables& set : {Variables{"RANK=1", "WORLD_SIZE=2"},
                               {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"},
                               {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"},
                               {"RANK=1"}}) {
    const Ended ended = run({"automatic", "well"}, set);
    EXPECT_TRUE(ended.out.starts_with("kInvalidArgument")) << ended.out << ended.err;
    expect_in(ended.out, "ranks start no ranks");
  }
}

TEST_F(Spawning, ARankByExecThatNeverComesToTheCallIsNamed) {
  for (const auto& [way, text] : {std::pair{"never", "ended with exit code 3 and had not come"},
                                  {"never well", "ended with exit code 0 and had not come"},
                                  {"other count", "here the call asks for 3 ranks"},
                                  {"other function", "ended with exit code 0 and had not come"},
                                  {"early world", "had not come to this call"}}) {
    const Ended ended = run({"exec", way});
    EXPECT_EQ(ended.code, 1);
    expect_in(ended.out, "kInvalidArgument culprits ");
    expect_in(ended.out, text);
  }
  const Ended killed = run({"exec", "killed early"});
  expect_in(killed.out, "kPeerLost culprits ");
  expect_in(killed.out, "was killed by SIGKILL (which the kernel does, too");
  const Ended late = run({"exec", "late"});
  expect_in(late.out, "kTimeout culprits 0 1: ");
  expect_in(late.out, "ranks 0-1 had not come to this call 0.5 s after the start");
}

// ---- Nothing is left ---------------------------------------------------------------------------

/// A pid namespace that sees the /proc of another: guard and keeper know their children all the
/// same.
TEST_F(Spawning, WithoutAProcOfItsOwnRanksAreEndedAtOnce) {
  if (e2e::kNeedsProc) GTEST_SKIP() << "no ASan there";
  LaunchedJob job(LaunchedJob::Command{
      {"unshare", "-Urpf", "sh", "-c", "$0 fork before; echo code $?", TUTTI_SPAWN_PROGRAM}});
  const Clock::time_point began = Clock::now();
  job.wait_exit(30s);
  if (job.err().starts_with("unshare:")) GTEST_SKIP() << "no pid namespaces here";
  EXPECT_LT(Clock::now() - began, 8s);
  expect_in(job.out(), "code 0");
  EXPECT_EQ(job.out().find("does not end"), std::string::npos) << job.out();
}

class SpawnerDies : public Spawning, public ::testing::WithParamInterface<std::string> {};

TEST_P(SpawnerDies, NothingIsLeft) {
  LaunchedJob job(
      LaunchedJob::Command{{TUTTI_SPAWN_PROGRAM, GetParam(), "hangs+helpers", "60000"}});
  const Clock::time_point end = Clock::now() + 20s;
  // Guard, keeper, three ranks with a helper each.
  while (net::descendants_of(job.pid()).size() < 8 && Clock::now() < end) {
    Deadline soon = Deadline::after(1ms);
    net::pause(1ms, soon);
  }
  EXPECT_GE(net::descendants_of(job.pid()).size(), 8u);
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait_exit(10s), 128 + SIGKILL);
  EXPECT_TRUE(nothing_is_left());
}

TEST_P(SpawnerDies, KeeperOrGuardTakesAllAlong) {
  for (const bool is_guard : {true, false}) {
    LaunchedJob job(
        LaunchedJob::Command{{TUTTI_SPAWN_PROGRAM, GetParam(), "hangs+helpers", "60000"}});
    const Clock::time_point end = Clock::now() + 20s;
    while (net::descendants_of(job.pid()).size() < 8 && Clock::now() < end) {
      Deadline soon = Deadline::after(1ms);
      net::pause(1ms, soon);
    }
    net::signal_descendant(is_guard ? job.guard() : job.keeper(), ::getpid(), SIGKILL);
    EXPECT_EQ(job.wait_exit(20s), 0);
    expect_in(job.out(), "kSystem");
    EXPECT_TRUE(nothing_is_left());
  }
}

INSTANTIATE_TEST_SUITE_P(Starts, SpawnerDies, ::testing::Values("fork", "exec"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace tutti
