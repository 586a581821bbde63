// A rank that dies is known to all survivors, who name the same culprits; a slow one is not dead.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "control/board/layout.h"
#include "control/forked_ranks.h"
#include "in_time.h"
#include "op_patience.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

constexpr int kPeerLost = static_cast<int>(ErrorCode::kPeerLost);

/// Enters operation #1 and waits in it until the group fails; then stays until it is killed or
/// told.
void wait_for_the_end(Host&, Membership& world, ChildReport& report) {
  const Request request = collective(Op::all_reduce, 1);
  world.enter(request);
  report.stage.store(1);
  OpPatience patience(world, request, -1);
  wait(world.waiter(), patience, [] { return false; });
  while (report.told.load() == 0) usleep(1000);
}

double milliseconds_until(ChildReport& report, std::int64_t start) {
  return static_cast<double>(report.seen_at.load() - start) * 1e-6;
}

/// Adds how long each survivor took to know it.
void kill_one(int n, int victim, std::vector<double>& times, bool& is_in_time) {
  ForkedRanks ranks(n, wait_for_the_end);
  ASSERT_TRUE(ranks.all_reach(1));
  const std::int64_t start = ranks.kill_now(victim);
  is_in_time = true;
  for (int rank = 0; rank < n; ++rank) {
    if (rank == victim) continue;
    ChildReport& report = ranks.report(rank);
    ASSERT_TRUE(ForkedRanks::eventually([&] { return report.code.load() >= 0; }));
    EXPECT_EQ(report.code.load(), kPeerLost);
    EXPECT_EQ(ranks.culprits(rank), std::vector<int>{victim}) << report.text.data();
    const std::string text = report.text.data();
    EXPECT_NE(text.find("rank " + std::to_string(victim) + " (pid " +
                        std::to_string(ranks.pid(victim)) + " on "),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("is in all_reduce #1(f32 x 1000, sum) at train.cc:88"), std::string::npos)
        << text;
    times.push_back(milliseconds_until(report, start));
    is_in_time = is_in_time && times.back() < 1000.0;
    report.told.store(1);
    EXPECT_EQ(ranks.reap(rank), 0);
  }
}

TEST(Loss, AKilledRankIsKnownToAllSurvivors) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  std::vector<double> times;
  for (int round = 0; round < 12; ++round) {
    const int n = 2 + round % 4;
    const int victim = round < 2 ? 0 : static_cast<int>(random() % static_cast<unsigned>(n));
    SCOPED_TRACE("seed " + std::to_string(seed) + " n " + std::to_string(n) + " victim " +
                 std::to_string(victim));
    expect_once_in_time([&](bool& is_in_time) { kill_one(n, victim, times, is_in_time); });
  }
  std::sort(times.begin(), times.end());
  std::printf("kill to callback, %zu survivors: median %.1f ms, worst %.1f ms\n", times.size(),
              times[times.size() / 2], times.back());
}

TEST(Loss, TwoAtOnceAreOneVerdict) {
  for (const auto& [first, second] : {std::pair{0, 1}, {0, 3}, {2, 3}}) {
    ForkedRanks ranks(4, wait_for_the_end);
    ASSERT_TRUE(ranks.all_reach(1));
    ranks.kill_together({first, second});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == first || rank == second) continue;
      ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(rank).code.load() >= 0; }));
      EXPECT_EQ(ranks.culprits(rank), (std::vector{first, second}))
          << ranks.report(rank).text.data();
    }
  }
}

TEST(Loss, ExitWithoutGoodbyeIsADeath) {
  ForkedRanks ranks(3, [](Host& host, Membership& world, ChildReport& report) {
    if (world.rank() == 1) {
      ForkedRanks::eventually([&] { return report.told.load() == 1; });
      exit(0);
    }
    wait_for_the_end(host, world, report);
  });
  ASSERT_TRUE(ForkedRanks::eventually(
      [&] { return ranks.report(0).stage.load() == 1 && ranks.report(2).stage.load() == 1; }));
  ranks.report(1).told.store(1);
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(rank).code.load() >= 0; }));
    EXPECT_EQ(ranks.report(rank).code.load(), kPeerLost);
    EXPECT_EQ(ranks.culprits(rank), std::vector<int>{1});
  }
}

TEST(Loss, TheExitReasonIsToldWhenTheAgentKnowsIt) {
  ForkedRanks ranks(3, wait_for_the_end);
  ASSERT_TRUE(ranks.all_reach(1));
  // A stopped survivor is slow, not dead: it must still get the whole story, which by then is
  // known.
  ranks.stop(2);
  ranks.kill_now(1);
  const pid_t pid = ranks.pid(1);
  const int status = ranks.reap(1);
  const_cast<Board&>(ranks.board()).set_exit(SlotIndex(1), status);
  kill(ranks.pid(2), SIGCONT);
  ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(2).code.load() >= 0; }));
  const std::string text = ranks.report(2).text.data();
  EXPECT_NE(text.find("(pid " + std::to_string(pid) + " on "), std::string::npos) << text;
  EXPECT_NE(text.find(", killed by SIGKILL) was lost"), std::string::npos) << text;
}

TEST(Loss, AStoppedRankIsNotDead) {
  ForkedRanks ranks(3, [](Host&, Membership& world, ChildReport& report) {
    report.stage.store(1);
    while (report.told.load() == 0) usleep(1000);
    world.close(0, 0, Deadline::after(10s));
  });
  ASSERT_TRUE(ranks.all_reach(1));
  kill(ranks.pid(0), SIGSTOP);
  usleep(600'000);  // many ticks, and more than the time after which a decider is overtaken
  kill(ranks.pid(0), SIGCONT);
  for (int rank = 0; rank < 3; ++rank) ranks.report(rank).told.store(1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.reap(rank), 0);
    EXPECT_EQ(ranks.report(rank).code.load(), -1) << ranks.report(rank).text.data();
  }
}

TEST(Loss, AStoppedDeciderIsOvertaken) {
  expect_once_in_time([](bool& is_in_time) {
    ForkedRanks ranks(4, wait_for_the_end);
    ASSERT_TRUE(ranks.all_reach(1));
    kill(ranks.pid(0), SIGSTOP);
    const std::int64_t start = ranks.kill_now(2);
    is_in_time = true;
    for (const int rank : {1, 3}) {
      ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(rank).code.load() >= 0; }));
      is_in_time = is_in_time && milliseconds_until(ranks.report(rank), start) < 1000.0;
    }
    kill(ranks.pid(0), SIGCONT);
    ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(0).code.load() >= 0; }));
    for (const int rank : {0, 1, 3}) EXPECT_EQ(ranks.culprits(rank), std::vector<int>{2});
  });
}

TEST(Loss, AForkedHelperThatHoldsEverythingHidesNothing) {
  const auto with_a_helper = [](Host& host, Membership& world, ChildReport& report) {
    if (world.rank() == 1) {
      const pid_t helper = fork();
      if (helper == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        for (;;) pause();
      }
      report.culprits[0] = helper;
    }
    wait_for_the_end(host, world, report);
  };
  expect_once_in_time([&](bool& is_in_time) {
    ForkedRanks ranks(2, with_a_helper);
    ASSERT_TRUE(ranks.all_reach(1));
    const pid_t helper = ranks.report(1).culprits[0];
    const std::int64_t start = ranks.kill_now(1);
    EXPECT_TRUE(ForkedRanks::eventually([&] { return ranks.report(0).code.load() >= 0; }));
    is_in_time = milliseconds_until(ranks.report(0), start) < 1000.0;
    EXPECT_EQ(kill(helper, 0), 0) << "the helper must have been alive";
    kill(helper, SIGKILL);
  });
}

TEST(Loss, SurvivorsGoOnInAGroupOfTheirOwn) {
  ForkedRanks ranks(3, [](Host& host, Membership& world, ChildReport& report) {
    const Request request = collective(Op::barrier, 1);
    world.enter(request);
    report.stage.store(1);
    OpPatience patience(world, request, -1);
    wait(world.waiter(), patience, [] { return false; });
    const auto with_it =
        host.make_membership({11, "with it", world_ranks({0, 1, 2}), world.rank()});
    try {
      with_it->meet(nullptr, Where::current(), Deadline::after(10s));
      ADD_FAILURE() << "a dead rank came";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    }
    const auto survivors =
        host.make_membership({12, "survivors", world_ranks({0, 2}), world.rank() / 2});
    survivors->meet(nullptr, Where::current(), Deadline::after(10s));
    survivors->close(0, 0, Deadline::after(10s));
    if (::testing::Test::HasFailure()) _exit(4);
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.kill_now(1);
  EXPECT_EQ(ranks.reap(0), 0);
  EXPECT_EQ(ranks.reap(2), 0);
}

/// It still stands in the meeting that the others have left, and has not looked since.
TEST(Loss, AMemberThatIsLateWithTheVerdictHasNotAskedForAnotherGroup) {
  ForkedRanks ranks(4, [](Host& host, Membership& world, ChildReport& report) {
    report.stage.store(1);
    while (world.rank() == 3) pause();
    MembershipOptions options{11, "with it", world_ranks({0, 1, 2, 3}), world.rank()};
    options.asked_of = 1;
    const auto with_it = host.make_membership(options);
    try {
      with_it->meet(nullptr, Where::current(), Deadline::after(20s));
      ADD_FAILURE() << "a dead rank came";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
      EXPECT_EQ(error.context().culprits, std::vector<int>{3});
    }
    options.id = 12;
    options.world_ranks = world_ranks({0, 1, 2});
    const auto survivors = host.make_membership(options);
    survivors->meet(nullptr, Where::current(), Deadline::after(20s));
    survivors->close(0, 0, Deadline::after(10s));
    if (::testing::Test::HasFailure()) _exit(4);
  });
  const auto meets = [&](int rank, GroupId group) {
    const Line* const line = ranks.board().find_line(SlotIndex(rank), group);
    return line != nullptr && line->state.load() == LineState::meeting;
  };
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(ForkedRanks::eventually([&] { return meets(rank, 11); }));
  }
  kill(ranks.pid(1), SIGSTOP);
  ranks.kill_now(3);
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(ForkedRanks::eventually([&] { return meets(rank, 12); }));
  }
  usleep(200'000);  // many looks of theirs, none of the late one
  kill(ranks.pid(1), SIGCONT);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(ranks.reap(rank), 0);
}

/// Where the first to leave the meeting fails the group at once, the others are told in it.
void meet_or_be_told(Membership& group) {
  try {
    group.meet(nullptr, Where::current(), Deadline::after(20s));
  } catch (const Error&) {
    if (!group.cause()) throw;
  }
}

/// More verdicts than the log has room for, while one rank is stopped.
TEST(Loss, ARankThatHasSleptThroughTheLogFindsTheSameCauses) {
  constexpr int kGroups = static_cast<int>(kLogEntries) + 40;
  ForkedRanks ranks(4, [](Host& host, Membership& world, ChildReport& report) {
    const int rank = world.rank();
    std::unique_ptr<Membership> three;
    if (rank < 3) {
      three = host.make_membership({10, "three", world_ranks({0, 1, 2}), rank});
      three->meet(nullptr, Where::current(), Deadline::after(20s));
    }
    report.stage.store(1);
    while (rank == 3) pause();
    while (world.abort_word().load() == 0) usleep(1000);
    if (rank == 0) three->fail({ErrorCode::kAborted, "enough", {0}, {}});
    while (three->abort_word().load() == 0) usleep(1000);
    for (int group = 0; rank < 2 && group < kGroups; ++group) {
      const GroupId id = 100 + static_cast<GroupId>(group);
      const auto two = host.make_membership({id, "two", world_ranks({0, 1}), rank});
      meet_or_be_told(*two);
      if (rank == 0) two->fail({ErrorCode::kAborted, "one of many", {0}, {}});
      while (two->abort_word().load() == 0) usleep(100);
    }
    report.stage.store(2);
    while (report.told.load() == 0) usleep(1000);
    EXPECT_EQ(world.cause()->code, ErrorCode::kPeerLost);
    EXPECT_EQ(world.cause()->culprits, std::vector<int>{3});
    EXPECT_EQ(three->cause()->code, ErrorCode::kAborted);
    EXPECT_EQ(three->cause()->culprits, std::vector<int>{0});
    // It goes on hearing of what comes.
    const auto last = host.make_membership({20, "last", world_ranks({0, 1, 2}), rank});
    meet_or_be_told(*last);
    if (rank == 1) last->fail({ErrorCode::kTimeout, "the last one", {2}, {}});
    while (last->abort_word().load() == 0) usleep(1000);
    EXPECT_EQ(last->cause()->text, "the last one");
    if (::testing::Test::HasFailure()) _exit(4);
  });
  ASSERT_TRUE(ranks.all_reach(1));
  kill(ranks.pid(2), SIGSTOP);
  ranks.kill_now(3);
  for (const int rank : {0, 1})
    ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(rank).stage.load() == 2; }, 60s));
  kill(ranks.pid(2), SIGCONT);
  ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(2).stage.load() == 2; }));
  for (const int rank : {0, 1, 2}) ranks.report(rank).told.store(1);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(ranks.reap(rank), 0);
}

TEST(Loss, WhoLeftInOrderIsNotLost) {
  ForkedRanks ranks(3, [](Host&, Membership& world, ChildReport& report) {
    report.stage.store(1);
    if (world.rank() == 0) return;  // leaves, and its process ends
    while (report.told.load() == 0) usleep(1000);
  });
  ASSERT_TRUE(ranks.all_reach(1));
  EXPECT_EQ(ranks.reap(0), 0);
  usleep(100'000);
  for (const int rank : {1, 2}) EXPECT_EQ(ranks.report(rank).code.load(), -1);
  // The decider is rank 1 now.
  ranks.kill_now(2);
  ASSERT_TRUE(ForkedRanks::eventually([&] { return ranks.report(1).code.load() >= 0; }));
  EXPECT_EQ(ranks.culprits(1), std::vector<int>{2});
  ranks.report(1).told.store(1);
  EXPECT_EQ(ranks.reap(1), 0);
}

TEST(Loss, ADeathWhileJoiningEndsTheWaitForTheOthers) {
  const net::Fd memory = Board::make(3);
  const auto join = [&](int rank) {
    HostOptions options;
    options.board_fd = memory.get();
    options.rank = rank;
    options.world_size = 3;
    options.timeout = 20s;
    return Host::join(options);
  };
  const pid_t victim = fork();
  if (victim == 0) {
    join(1);
    _exit(0);
  }
  const Board board(memory);
  ASSERT_TRUE(ForkedRanks::eventually(
      [&] { return board.slot(SlotIndex(1)).state.load() == RankState::running; }));
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
  try {
    join(0);
    ADD_FAILURE() << "joined";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    EXPECT_EQ(error.context().culprits, std::vector<int>{1});
  }
}

TEST(Loss, RanksThatAreThreadsShareTheirFate) {
  const net::Fd memory = Board::make(3);
  const auto join = [&](int rank) {
    HostOptions options;
    options.board_fd = memory.get();
    options.rank = rank;
    options.world_size = 3;
    options.timeout = 20s;
    return Host::join(options);
  };
  const pid_t pair = fork();
  if (pair == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::thread other([&] {
      const auto host = join(2);
      for (;;) pause();
    });
    const auto host = join(1);
    for (;;) pause();
  }
  const auto host = join(0);
  const auto world = host->make_membership({kWorld, "world", all_ranks(3), 0});
  kill(pair, SIGKILL);
  waitpid(pair, nullptr, 0);
  EXPECT_TRUE(ForkedRanks::eventually([&] { return world->abort_word().load() != 0; }));
  ASSERT_TRUE(world->cause());
  EXPECT_EQ(world->cause()->code, ErrorCode::kPeerLost);
  EXPECT_EQ(world->cause()->culprits, (std::vector{1, 2}));
}

}  // namespace
}  // namespace tutti::control
