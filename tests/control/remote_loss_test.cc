// A rank that dies on one host is known to all survivors on all hosts, who name the same culprits.
#include <gtest/gtest.h>

#include <algorithm>

#include "control/forked_ranks.h"
#include "in_time.h"
#include "net/unix_socket.h"
#include "op_patience.h"
#include "store/client.h"
#include "store/server.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

constexpr int kPeerLost = static_cast<int>(ErrorCode::kPeerLost);

void wait_for_the_end(Host&, Membership& world, ChildReport& report) {
  const Request request = collective(Op::all_reduce, 1);
  world.enter(request);
  report.stage.store(1);
  OpPatience patience(world, request, -1);
  wait(world.waiter(), patience, [] { return false; });
  while (report.told.load() == 0) usleep(1000);
}

/// Ranks that are processes, on hosts by rank.
struct ForkedHosts {
  ForkedHosts(const std::vector<int>& host_of, const ForkedRanks::Body& body)
      : listener(net::listen(address)),
        ranks(static_cast<int>(host_of.size()), body,
              [this, host_of](HostOptions& options) {
                options.board_fd = -1;
                options.host_id =
                    "host-" + std::to_string(host_of[static_cast<std::size_t>(options.rank)]);
                options.store = store::connect_store(address, {}, Deadline::after(20s)).store;
              }),
        server({.listener = std::move(listener)}) {}
  const std::string address = net::random_address("tutti-test");
  net::Fd listener;
  ForkedRanks ranks;
  store::Server server;  // its thread begins after the forks: one that allocates may hold a lock
};

/// All but the victims name them; `is_in_time`: within a second.
void expect_told(ForkedRanks& ranks, int n, const std::vector<int>& victims, std::int64_t start,
                 bool& is_in_time) {
  double most = 0;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < n; ++rank) pids.push_back(ranks.pid(rank));
  for (int rank = 0; rank < n; ++rank) {
    if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
    ChildReport& report = ranks.report(rank);
    ASSERT_TRUE(ForkedRanks::eventually([&] { return report.code.load() >= 0; })) << rank;
    EXPECT_EQ(report.code.load(), kPeerLost) << report.text.data();
    EXPECT_EQ(ranks.culprits(rank), victims) << "rank " << rank << ": " << report.text.data();
    for (const int victim : victims) {
      const std::string pid = "(pid " + std::to_string(pids[static_cast<std::size_t>(victim)]);
      EXPECT_NE(std::string(report.text.data()).find(pid), std::string::npos) << report.text.data();
    }
    most = std::max(most, static_cast<double>(report.seen_at.load() - start) * 1e-6);
  }
  is_in_time = most < 1000.0;
  for (int rank = 0; rank < n; ++rank) {
    if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
    ranks.report(rank).told.store(1);
    EXPECT_EQ(ranks.reap(rank), 0) << rank;
  }
}

TEST(RemoteLoss, AKilledRankIsKnownOnAllHosts) {
  const std::vector<std::vector<int>> layouts = {{0, 1}, {0, 0, 1, 1}, {0, 1, 1}, {0, 1, 0, 1, 2}};
  for (const auto& layout : layouts) {
    const auto n = static_cast<int>(layout.size());
    for (int victim = 0; victim < n; ++victim) {
      SCOPED_TRACE("n " + std::to_string(n) + " victim " + std::to_string(victim));
      expect_once_in_time([&](bool& is_in_time) {
        ForkedHosts hosts(layout, wait_for_the_end);
        ASSERT_TRUE(hosts.ranks.all_reach(1));
        const std::int64_t start = hosts.ranks.kill_now(victim);
        expect_told(hosts.ranks, n, {victim}, start, is_in_time);
      });
    }
  }
}

TEST(RemoteLoss, AHostOfWhichNobodyIsLeftIsKnown) {
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> cases = {
      {{0, 0, 1, 1}, {0, 1}},
      {{0, 0, 1, 1}, {2, 3}},
      {{0, 1, 0, 1, 2}, {1, 3}},
      {{0, 1, 2}, {0, 2}}};
  for (const auto& [layout, victims] : cases) {
    const auto n = static_cast<int>(layout.size());
    SCOPED_TRACE("n " + std::to_string(n) + " first victim " + std::to_string(victims[0]));
    expect_once_in_time([&, &layout = layout, &victims = victims](bool& is_in_time) {
      ForkedHosts hosts(layout, wait_for_the_end);
      ASSERT_TRUE(hosts.ranks.all_reach(1));
      const std::int64_t start = hosts.ranks.kill_together(victims);
      expect_told(hosts.ranks, n, victims, start, is_in_time);
    });
  }
}

TEST(RemoteLoss, AStoppedRelayIsTakenOver) {
  // Rank 0 speaks for its host, until rank 1 does.
  expect_once_in_time([](bool& is_in_time) {
    ForkedHosts hosts({0, 0, 1, 1}, wait_for_the_end);
    ForkedRanks& ranks = hosts.ranks;
    ASSERT_TRUE(ranks.all_reach(1));
    ::kill(ranks.pid(0), SIGSTOP);
    usleep(100'000);
    const std::int64_t start = ranks.kill_now(3);
    bool is_taken_over_in_time = true;
    for (const int rank : {1, 2}) {
      ChildReport& report = ranks.report(rank);
      ASSERT_TRUE(ForkedRanks::eventually([&] { return report.code.load() >= 0; })) << rank;
      EXPECT_EQ(ranks.culprits(rank), std::vector<int>{3}) << report.text.data();
      if (report.seen_at.load() - start >= 2'000'000'000) is_taken_over_in_time = false;
    }
    ::kill(ranks.pid(0), SIGCONT);
    expect_told(ranks, 4, {3}, Clock::now().time_since_epoch().count(), is_in_time);
    is_in_time = is_in_time && is_taken_over_in_time;
  });
}

TEST(RemoteLoss, AStoppedHostIsNotLost) {
  ForkedHosts hosts({0, 1, 1}, [](Host&, Membership& world, ChildReport& report) {
    report.stage.store(1);
    while (report.told.load() == 0) usleep(1000);
    world.close(0, 0, Deadline::after(20s), Where::current());
  });
  ForkedRanks& ranks = hosts.ranks;
  ASSERT_TRUE(ranks.all_reach(1));
  for (const int rank : {1, 2}) ::kill(ranks.pid(rank), SIGSTOP);
  usleep(4'000'000);
  for (const int rank : {1, 2}) ::kill(ranks.pid(rank), SIGCONT);
  for (int rank = 0; rank < 3; ++rank) ranks.report(rank).told.store(1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.reap(rank), 0);
    EXPECT_EQ(ranks.report(rank).code.load(), -1) << ranks.report(rank).text.data();
  }
}

TEST(RemoteLoss, WhoLeavesWhileARankOfAnotherHostIsStoppedIsNotLost) {
  // Rank 2 is the last of its host, and has spoken to nobody elsewhere before.
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> cases = {{{0, 1, 1}, {0}},
                                                                            {{0, 1, 1, 0}, {0, 3}}};
  for (const auto& [layout, stopped] : cases) {
    ForkedHosts hosts(layout, [](Host&, Membership& world, ChildReport& report) {
      report.stage.store(1);
      while (report.told.load() == 0) usleep(1000);
      if (report.told.load() == 2) world.close(0, 0, Deadline::after(20s), Where::current());
    });
    ForkedRanks& ranks = hosts.ranks;
    ASSERT_TRUE(ranks.all_reach(1));
    for (const int rank : stopped) ::kill(ranks.pid(rank), SIGSTOP);
    for (const int rank : {1, 2}) {
      ranks.report(rank).told.store(1);
      EXPECT_EQ(ranks.reap(rank), 0);
    }
    for (const int rank : stopped) ::kill(ranks.pid(rank), SIGCONT);
    usleep(500'000);  // by then they have called at the doors of both
    for (const int rank : stopped) ranks.report(rank).told.store(2);
    for (const int rank : stopped) {
      EXPECT_EQ(ranks.reap(rank), 0);
      EXPECT_EQ(ranks.report(rank).code.load(), -1) << ranks.report(rank).text.data();
    }
  }
}

/// Of three ranks, the last two on one host: `leaver` leaves in order while the other one is
/// stopped, and is then killed. Either may be the relay: who joins first is.
void expect_only_the_killed_lost(int leaver, int killed) {
  ForkedHosts hosts({0, 1, 1}, [](Host&, Membership&, ChildReport& report) {
    report.stage.store(1);
    while (report.told.load() == 0) usleep(1000);
  });
  ForkedRanks& ranks = hosts.ranks;
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.stop(killed);
  ranks.report(leaver).told.store(1);
  EXPECT_EQ(ranks.reap(leaver), 0);
  ranks.kill_now(killed);
  ChildReport& report = ranks.report(0);
  ASSERT_TRUE(ForkedRanks::eventually([&] { return report.code.load() >= 0; }));
  EXPECT_EQ(report.code.load(), kPeerLost) << report.text.data();
  EXPECT_EQ(ranks.culprits(0), std::vector<int>{killed}) << report.text.data();
  report.told.store(1);
  EXPECT_EQ(ranks.reap(0), 0);
}

TEST(RemoteLoss, WhoHasLeftIsNotLostWithARankOfItsHost) {
  for (int round = 0; round < 5 && !testing::Test::HasFailure(); ++round) {
    expect_only_the_killed_lost(2, 1);  // a relay that has said nothing of it
    expect_only_the_killed_lost(1, 2);  // or the one that would be the next
  }
}

TEST(RemoteLoss, WhoHasClosedMayEndWithoutAnotherWord) {
  for (const auto& layout : std::vector<std::vector<int>>{{0, 1}, {0, 0, 1, 1}, {0, 1, 2}}) {
    const auto n = static_cast<int>(layout.size());
    for (int round = 0; round < 10 && !testing::Test::HasFailure(); ++round) {
      ForkedHosts hosts(layout, [](Host&, Membership& world, ChildReport& report) {
        report.stage.store(1);
        while (report.told.load() == 0) usleep(100);
        world.close(0, 0, Deadline::after(20s), Where::current());  // throws where one is lost
        _exit(0);
      });
      ASSERT_TRUE(hosts.ranks.all_reach(1));
      for (int rank = 0; rank < n; ++rank) hosts.ranks.report(rank).told.store(1);
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_EQ(hosts.ranks.reap(rank), 0) << "rank " << rank << " of " << n;
        EXPECT_EQ(hosts.ranks.report(rank).code.load(), -1) << hosts.ranks.report(rank).text.data();
      }
    }
  }
}

/// Host 1 has no relay while the others enter a loss: its rank hears of that from ranks that end at
/// once.
TEST(RemoteLoss, AHostWithoutARelayNamesWhomTheOthersHaveNamed) {
  ForkedHosts hosts({0, 0, 1, 1, 2, 2}, [](Host&, Membership& world, ChildReport& report) {
    const Request request = collective(Op::all_reduce, 1);
    world.enter(request);
    report.stage.store(1);
    OpPatience patience(world, request, -1);
    wait(world.waiter(), patience, [] { return false; });
    while (report.code.load() < 0) {
    }
    _exit(0);
  });
  ForkedRanks& ranks = hosts.ranks;
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.stop(3);
  ranks.kill_and_see(2);
  usleep(100'000);  // the others have seen that the relay's connections have ended
  ranks.kill_now(0);
  for (const int rank : {1, 4, 5}) EXPECT_EQ(ranks.reap(rank), 0) << rank;
  ranks.go_on(3);
  EXPECT_EQ(ranks.reap(3), 0);
  for (const int rank : {1, 3, 4, 5})
    EXPECT_EQ(ranks.culprits(rank), std::vector<int>{0}) << ranks.report(rank).text.data();
}

}  // namespace
}  // namespace tutti::control
