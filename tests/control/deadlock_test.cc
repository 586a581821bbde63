// Deadlocks of ranks that share a board: who is stopped or dies meanwhile, and large ones.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "control/board/waits.h"
#include "control/forked_ranks.h"
#include "control/thread_ranks.h"
#include "op_patience.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

Request receive_from(int peer) {
  Request request = collective(Op::recv, 0, 10, -1, 55);
  request.message = {.peer = peer, .tag = 7};
  return request;
}

/// Each receives from the next, until the parent says that it has come.
void wait_in_a_ring(Membership& world, ChildReport& report) {
  const Request request = receive_from((world.rank() + 1) % world.group_size());
  world.enter(request);
  OpPatience patience(world, request, request.message.peer);
  report.stage.store(1);
  const WaitResult result = wait(world.waiter(), patience, [&] { return report.told.load() != 0; });
  if (result == WaitResult::ready) {
    report.stage.store(2);
    world.leave(request);
  }
  // Stays until the parent has seen all.
  while (report.told.load() < 2) usleep(1000);
}

int code_of(ForkedRanks& ranks, int rank) { return ranks.report(rank).code.load(); }

/// Stops `rank` once it shows its wait, before it has looked so often that a knot may count.
bool stop_in_time(ForkedRanks& ranks, int rank) {
  const auto shown = [&] { return read_wait(ranks.board(), SlotIndex(rank)); };
  if (!ForkedRanks::eventually([&] { return shown().version != 0; })) return false;
  ranks.stop(rank);
  return shown().looks + 1 < kLooksOfAKnot;  // it may have been stopped in a look
}

/// Ranks in a ring, of which `stopped` was stopped in time.
std::unique_ptr<ForkedRanks> ring_with_a_stopped(int n, int stopped,
                                                 std::chrono::nanoseconds deadlock_after) {
  for (int tries = 0; tries < 50; ++tries) {
    auto ranks = std::make_unique<ForkedRanks>(
        n, [](Host&, Membership& world, ChildReport& report) { wait_in_a_ring(world, report); },
        deadlock_after);
    if (ranks->all_reach(1) && stop_in_time(*ranks, stopped)) return ranks;
  }
  throw std::runtime_error("no rank was stopped in time");
}

TEST(Deadlock, AStoppedRankHasNotLookedWhetherItCanGoOn) {
  const auto ring = ring_with_a_stopped(2, 1, 700ms);
  ForkedRanks& ranks = *ring;
  usleep(1'800'000);
  EXPECT_EQ(code_of(ranks, 0), -1) << ranks.report(0).text.data();
  ranks.report(1).told.store(1);  // its data have come meanwhile
  kill(ranks.pid(1), SIGCONT);
  EXPECT_TRUE(ForkedRanks::eventually([&] { return ranks.report(1).stage.load() == 2; }));
  usleep(900'000);
  for (const int rank : {0, 1})
    EXPECT_EQ(code_of(ranks, rank), -1) << ranks.report(rank).text.data();
  for (const int rank : {0, 1}) ranks.report(rank).told.store(2);
}

TEST(Deadlock, AStoppedRankThatGoesOnIsTold) {
  const auto ring = ring_with_a_stopped(3, 2, 200ms);
  ForkedRanks& ranks = *ring;
  usleep(1'000'000);
  EXPECT_EQ(code_of(ranks, 0), -1) << ranks.report(0).text.data();
  kill(ranks.pid(2), SIGCONT);
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(ForkedRanks::eventually([&] { return code_of(ranks, rank) != -1; }));
    EXPECT_EQ(code_of(ranks, rank), static_cast<int>(ErrorCode::kDeadlock));
    EXPECT_EQ(ranks.culprits(rank), (std::vector<int>{0, 1, 2}));
    EXPECT_STREQ(ranks.report(rank).text.data() + std::string("group world (rank 0): ").size(),
                 "deadlock: rank 0 waits in recv(f32 x 10, from 1, tag 7) at train.cc:55 for rank "
                 "1, which waits in recv(f32 x 10, from 2, tag 7) at train.cc:55 for rank 2, which "
                 "waits in recv(f32 x 10, from 0, tag 7) at train.cc:55 for rank 0. None of them "
                 "can go on by itself: change the order of the calls, or use sendrecv, batch or "
                 "tutti::async. If another thread was about to help, see the setting deadlock");
    ranks.report(rank).told.store(2);
  }
}

TEST(Deadlock, ADeadRankIsLost) {
  ForkedRanks ranks(
      3, [](Host&, Membership& world, ChildReport& report) { wait_in_a_ring(world, report); }, 30s);
  ASSERT_TRUE(ranks.all_reach(1));
  usleep(100'000);
  ranks.kill_now(1);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(ForkedRanks::eventually([&] { return code_of(ranks, rank) != -1; }));
    EXPECT_EQ(code_of(ranks, rank), static_cast<int>(ErrorCode::kPeerLost));
    ranks.report(rank).told.store(2);
  }
}

/// Waits for something that never comes; what the group fails with.
Cause wait_in_vain(Membership& group, const Request& request) {
  group.enter(request);
  OpPatience patience(group, request, request.message.peer);
  EXPECT_EQ(wait(group.waiter(), patience, [] { return false; }), WaitResult::aborted);
  return *group.cause();
}

TEST(Deadlock, ALongCircleIsToldInShort) {
  constexpr int kRanks = 40;
  std::vector<std::string> texts(kRanks);
  on_thread_ranks(
      kRanks,
      [&](Host&, Membership& world) {
        const Cause cause = wait_in_vain(world, receive_from((world.rank() + 1) % kRanks));
        EXPECT_EQ(cause.code, ErrorCode::kDeadlock) << cause.text;
        EXPECT_EQ(world_ranks(cause.culprits), all_ranks(kRanks)) << "of the world, too";
        texts[static_cast<std::size_t>(world.rank())] = cause.text;
      },
      200ms);
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  EXPECT_LT(texts[0].size(), kVerdictBytes);
  EXPECT_NE(
      texts[0].find("rank 0 waits in recv(f32 x 10, from 1, tag 7) at train.cc:55 for rank 1, "
                    "which waits in "),
      std::string::npos)
      << texts[0];
  EXPECT_NE(texts[0].find(", and so on over "), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find(" more of them back to rank 0. None of them can go on"),
            std::string::npos)
      << texts[0];
}

TEST(Deadlock, UnequalTagsAreSaid) {
  std::vector<std::string> texts(2);
  on_thread_ranks(
      2,
      [&](Host&, Membership& world) {
        Request request = receive_from(1 - world.rank());
        if (world.rank() == 1) {
          request.op = Op::send;
          request.message.tag = -3;
        }
        texts[static_cast<std::size_t>(world.rank())] = wait_in_vain(world, request).text;
      },
      200ms);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0].find("Their tags differ: rank 1 sends with -3, rank 0 receives with 7; a "
                          "message is received with the tag that it was sent with. None of them"),
            std::string::npos)
      << texts[0];
}

TEST(Deadlock, ThroughMoreGroupsThanAVerdictHolds) {
  constexpr int kRanks = 40;
  std::atomic<int> made{0}, told{0};
  on_thread_ranks(
      kRanks,
      [&](Host& host, Membership& world) {
        // One group of each rank and the next.
        const auto make = [&](int first) {
          const int second = (first + 1) % kRanks;
          auto group = host.make_membership({static_cast<GroupId>(100 + first), "pair",
                                             world_ranks({first, second}),
                                             world.rank() == first ? 0 : 1, kWorld});
          return group;
        };
        const int before = (world.rank() + kRanks - 1) % kRanks;
        auto own = make(world.rank()), other = make(before);
        own->meet(&world, Where::current(), Deadline::after(20s));
        other->meet(&world, Where::current(), Deadline::after(20s));
        for (++made; made.load() < kRanks;) std::this_thread::yield();
        const Cause cause = wait_in_vain(*own, receive_from(1));
        for (++told; told.load() < kRanks;) std::this_thread::yield();  // before one leaves
        EXPECT_EQ(cause.code, ErrorCode::kDeadlock) << cause.text;
        EXPECT_NE(cause.text.find("deadlock: world rank 0 waits in "), std::string::npos);
        EXPECT_EQ(world.abort_word().load(), 0u) << "nobody waits in it";
      },
      200ms);
}

TEST(Deadlock, WhoMakesAGroupLaterIsToldOfIt) {
  // Rank 0 awaits rank 1 in a group that rank 1 makes only when it has failed.
  on_thread_ranks(
      2,
      [](Host& host, Membership& world) {
        MembershipOptions options{9, "late", world_ranks({0, 1}), world.rank(), kWorld};
        if (world.rank() == 1) {
          EXPECT_EQ(wait_in_vain(world, receive_from(0)).code, ErrorCode::kDeadlock);
        }
        const auto group = host.make_membership(options);
        // Whether all have come before rank 0 was told does not matter.
        try {
          group->meet(nullptr, Where::current(), Deadline::after(20s));
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kDeadlock) << error.what();
        }
        // The verdict is in the log, and may not have been applied here.
        const auto end = Deadline::Clock::now() + 20s;
        while (!group->cause() && Deadline::Clock::now() < end) std::this_thread::yield();
        ASSERT_TRUE(group->cause());
        EXPECT_EQ(group->cause()->code, ErrorCode::kDeadlock);
        EXPECT_EQ(group->cause()->culprits, (std::vector<int>{0, 1}));
      },
      200ms);
}

}  // namespace
}  // namespace tutti::control
