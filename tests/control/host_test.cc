// How ranks find out that they share a host, and whose board they use.
#include "control/host.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/cores.h"
#include "control/board/board.h"
#include "control/thread_ranks.h"
#include "net/poller.h"
#include "net/unix_socket.h"
#include "own_store.h"
#include "tutti/error.h"
#include "tutti/store.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

HostOptions options_for(const std::shared_ptr<Store>& store, int rank, int n) {
  HostOptions options;
  options.store = store;
  options.rank = rank;
  options.world_size = n;
  options.timeout = 20s;
  return options;
}

void on_threads(int n, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(Host, RankZeroMakesTheBoardAndHandsItOver) {
  const auto store = make_memory_store();
  std::vector<const void*> mapped(4);
  std::latch all(4);
  on_threads(4, [&](int rank) {
    const auto host = Host::join(options_for(store, rank, 4));
    mapped[static_cast<std::size_t>(rank)] = host->board().data();
    const auto world = host->make_membership({kWorld, "world", all_ranks(4), rank});
    all.arrive_and_wait();
    world->close(0, 0, Deadline::after(10s));
  });
  for (const void* address : mapped) EXPECT_EQ(address, mapped[0]) << "threads share one mapping";
}

TEST(Host, RanksBoundToACoreEachCountTheCoresOfAll) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core)
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  if (cores.size() < 2 || usable_cores() < 2) GTEST_SKIP() << "one core only";
  const auto store = make_memory_store();
  std::latch both(2);
  on_threads(2, [&](int rank) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[static_cast<std::size_t>(rank)], &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1);
    const auto host = Host::join(options_for(store, rank, 2));
    const auto world = host->make_membership({kWorld, "world", all_ranks(2), rank});
    EXPECT_EQ(world->cores(), 2);
    EXPECT_FALSE(world->waiter().policy.shares_cores) << "enough cores to spin";
    both.arrive_and_wait();
    world->close(0, 0, Deadline::after(10s));
  });
}

TEST(Host, RanksOnTwoHostsShareABoardWithThoseOfTheirOwn) {
  const auto store = make_memory_store();
  on_threads(3, [&](int rank) {
    HostOptions options = options_for(store, rank, 3);
    options.host_id = rank == 1 ? "b" : "a";
    const auto host = Host::join(options);
    EXPECT_EQ(host->board().slot_count(), rank == 1 ? 1 : 2);
    EXPECT_EQ(host->board().world_size(), 3);
    EXPECT_NE(host->sockets(), nullptr);
  });
}

TEST(Host, IdentityIsBootAndNetworkUnlessGiven) {
  EXPECT_EQ(host_identity("mine"), "mine");
  EXPECT_EQ(host_identity(""), host_identity(""));
  EXPECT_GT(host_identity("").size(), 37u) << "boot id, slash, inode";
}

TEST(Host, TheAgentsBoardServesTheFirstWorldOnly) {
  const net::Fd agent = Board::make(2);
  const auto stores = {make_memory_store(), make_memory_store(), make_memory_store()};
  const Board board(agent);
  std::latch both_in_all(2);
  on_threads(2, [&](int rank) {
    std::vector<std::unique_ptr<Host>> hosts;
    for (const auto& store : stores) {
      HostOptions options = options_for(store, rank, 2);
      options.board_fd = agent.get();
      hosts.push_back(Host::join(options));
    }
    EXPECT_EQ(hosts[0]->board().data(), board.data());
    EXPECT_NE(hosts[1]->board().data(), board.data());
    EXPECT_NE(hosts[1]->board().data(), hosts[2]->board().data());
    both_in_all.arrive_and_wait();
  });
  EXPECT_EQ(board.state_of(SlotIndex(0)), RankState::left);
}

/// Whoever introduces itself here waits until another world has met.
struct PausedStore : test::OwnStore {
  explicit PausedStore(bool fails_in) : fails(fails_in) {}
  void set(std::string_view key, std::string_view value, Timeout timeout) override {
    OwnStore::set(key, value, timeout);
    if (!key.starts_with("host/")) return;
    claimed.count_down();
    other_has_met.wait();
    if (fails) throw Error(ErrorCode::kSystem, "this store has gone");
  }
  const bool fails;
  std::latch claimed{2}, other_has_met{2};
};

TEST(Host, AWorldThatMeetsMeanwhileIsElsewhereUnlessTheFirstTakesTheAgentsBoard) {
  for (const bool fails : {false, true}) {
    const net::Fd agent = Board::make(2);
    const Board board(agent);
    const auto first = std::make_shared<PausedStore>(fails);
    const auto second = make_memory_store();
    on_threads(4, [&](int thread) {
      const bool is_first = thread < 2;
      const auto store = is_first ? std::static_pointer_cast<Store>(first) : second;
      HostOptions options = options_for(store, thread % 2, 2);
      options.board_fd = agent.get();
      if (is_first && fails) {
        EXPECT_THROW(Host::join(options), Error);
        return;
      }
      if (!is_first) first->claimed.wait();
      const auto host = Host::join(options);
      EXPECT_EQ(host->board().data() == board.data(), is_first);
      if (!is_first) first->other_has_met.count_down();
    });
    for (const int slot : {0, 1})
      EXPECT_EQ(board.state_of(SlotIndex(slot)), fails ? RankState::elsewhere : RankState::left);
  }
}

TEST(Host, OneWithoutTheAgentsBoardMakesAllDoWithout) {
  const net::Fd agent = Board::make(2);
  const Board board(agent);
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    HostOptions options = options_for(store, rank, 2);
    if (rank == 1) options.board_fd = agent.get();
    const auto host = Host::join(options);
    EXPECT_NE(host->board().data(), board.data());
  });
}

TEST(Host, AWorldThatFailsDoesNotConcernAnother) {
  const auto one = make_memory_store();
  const auto two = make_memory_store();
  std::latch failed(2);
  on_threads(2, [&](int rank) {
    const auto first = Host::join(options_for(one, rank, 2));
    const auto second = Host::join(options_for(two, rank, 2));
    const auto a = first->make_membership({kWorld, "world", all_ranks(2), rank});
    const auto b = second->make_membership({kWorld, "world", all_ranks(2), rank});
    if (rank == 1) b->fail({ErrorCode::kAborted, "enough", {1}, {}});
    while (b->abort_word().load() == 0) std::this_thread::yield();
    failed.arrive_and_wait();
    EXPECT_FALSE(a->cause());
    a->close(0, 0, Deadline::after(10s));
  });
}

/// Ranks 1 and 2 are on a host of their own, where rank 1 hands out the board.
void expect_refused(const HostOptions& options, ErrorCode code, const std::vector<int>& culprits,
                    const std::string& begin) {
  try {
    Host::join(options);
    ADD_FAILURE() << "joined";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(error.context().culprits, culprits) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind(begin, 0), 0u) << error.what();
  }
}

TEST(Host, WhoDoesNotHandOverABoardIsNamedByItsRankOfTheWorld) {
  const auto store = make_memory_store();
  const std::string address = net::random_address("tutti-test");
  const net::Fd listener = net::listen(address);
  store->set("host/0", "one\nnetwork-1\nnode-1\n0\n11");
  store->set("host/1", "two\n" + host_identity("") + "\nnode-2\n0\n12");
  store->set("board/1/hand-over", address);
  std::thread rank_1([&] {
    Deadline deadline = Deadline::after(20s);
    ASSERT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
    const net::Accepted accepted = net::accept(listener.get());
    std::array<std::byte, 16> hello;
    EXPECT_TRUE(net::receive_all(accepted.socket.get(), hello, deadline));
  });
  HostOptions options = options_for(store, 2, 3);
  options.host_id = "two";
  expect_refused(options, ErrorCode::kPeerLost, {1}, "rank 1 (");
  rank_1.join();
}

TEST(Host, RanksOfTwoHostsWithOneHostIdAreNamed) {
  const auto store = make_memory_store();
  store->set("host/0", "one\nnetwork-1\nnode-1\n0\n11");
  store->set("host/1", "two\nnetwork-2\nnode-2\n0\n12");
  HostOptions options = options_for(store, 2, 3);
  options.host_id = "two";
  expect_refused(options, ErrorCode::kInvalidArgument, {1, 2}, "ranks 1 (on node-2) and 2 (on ");
}

}  // namespace
}  // namespace tutti::control
