// Ranks on several hosts, which know of each other by what their relays say over TCP: threads of
// one process that take themselves for hosts of their own.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "control/host.h"
#include "control/hosts/peer_sockets.h"
#include "op_patience.h"
#include "open_descriptors.h"
#include "ranks.h"
#include "thread_ranks.h"
#include "tutti/error.h"
#include "tutti/store.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

using Body = std::function<void(Host&, Membership&)>;

/// `host_of`: by rank.
void on_hosts(const std::vector<int>& host_of, const Body& body) {
  const auto store = make_memory_store();
  const auto n = static_cast<int>(host_of.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      HostOptions options;
      options.store = store;
      options.rank = rank;
      options.world_size = n;
      options.host_id = "host-" + std::to_string(host_of[static_cast<std::size_t>(rank)]);
      options.timeout = 20s;
      try {
        const auto host = Host::join(options);
        const auto world = host->make_membership({kWorld, "world", all_ranks(n), rank});
        world->meet(nullptr, Where::current(), Deadline::after(20s));
        body(*host, *world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

/// Waits in the request that it has entered until the group fails.
void wait_for_failure(Membership& world, const Request& request) {
  OpPatience patience(world, request, -1);
  wait(world.waiter(), patience, [] { return false; });
}

void wait_in(Membership& world, const Request& request) {
  world.enter(request);
  wait_for_failure(world, request);
}

const std::vector<std::vector<int>> kLayouts = {
    {0, 1}, {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 2}};

TEST(RemoteHosts, RanksMeetAndCloseInOrder) {
  for (const auto& layout : kLayouts) {
    on_hosts(layout, [](Host& host, Membership& world) {
      EXPECT_NE(host.sockets(), nullptr);
      world.close(0, 0, Deadline::after(20s), Where::current());
      EXPECT_FALSE(world.cause());
    });
  }
}

TEST(RemoteHosts, AGroupOfOneHostHasNoSocketsToOthers) {
  on_hosts({0, 0}, [](Host& host, Membership& world) {
    EXPECT_EQ(host.sockets(), nullptr);
    world.close(0, 0, Deadline::after(20s), Where::current());
  });
}

TEST(RemoteHosts, AnAddressOfOneHostAloneBesideOneOfTheNetworkIsRefused) {
  const std::string all = net::addresses_of_this_host();
  const std::string address = all.substr(0, all.find(','));
  if (!net::TcpAddress::parse(address + ":0")) GTEST_SKIP() << "this host has but loopback";
  const auto store = make_memory_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      HostOptions options;
      options.store = store;
      options.rank = rank;
      options.world_size = 2;
      options.host_id = "host-" + std::to_string(rank);
      options.address = rank == 0 ? "127.0.0.1" : address;
      options.timeout = 20s;
      const Error error = thrown_by([&] { Host::join(options); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      expect_text(error, "rank 0 on ");
      expect_text(error, " at 127.0.0.1");
      expect_text(error, "a loopback address is of one host alone");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RemoteHosts, WhoComesLateIsNamed) {
  for (const auto& layout : kLayouts) {
    const auto late = static_cast<int>(layout.size()) - 1;
    std::barrier all_are_there(static_cast<std::ptrdiff_t>(layout.size()));
    on_hosts(layout, [&](Host&, Membership& world) {
      Request request = collective(Op::all_reduce, 1);
      request.arrive = Deadline::after(300ms);
      if (world.rank() != late) world.enter(request);
      all_are_there.arrive_and_wait();
      if (world.rank() == late) {
        while (!world.cause()) std::this_thread::sleep_for(1ms);
      } else {
        wait_for_failure(world, request);
      }
      ASSERT_TRUE(world.cause());
      EXPECT_EQ(world.cause()->code, ErrorCode::kTimeout);
      EXPECT_EQ(world.cause()->culprits, std::vector<int>{late}) << world.cause()->text;
    });
  }
}

TEST(RemoteHosts, WhoCallsAnotherOperationIsFound) {
  for (const auto& layout : kLayouts) {
    const auto other = static_cast<int>(layout.size()) - 1;
    std::barrier all_have_met(static_cast<std::ptrdiff_t>(layout.size()));
    on_hosts(layout, [&](Host&, Membership& world) {
      all_have_met.arrive_and_wait();
      wait_in(world, collective(Op::all_reduce, 1, world.rank() == other ? 7 : 1000));
      ASSERT_TRUE(world.cause());
      EXPECT_EQ(world.cause()->code, ErrorCode::kCollectiveMismatch) << world.cause()->text;
    });
  }
}

TEST(RemoteHosts, AllAreToldOfOneCause) {
  for (const auto& layout : kLayouts) {
    std::vector<std::string> texts(layout.size());
    std::atomic<std::size_t> have_met{0};
    on_hosts(layout, [&](Host&, Membership& world) {
      have_met.fetch_add(1);
      while (have_met.load() < layout.size()) std::this_thread::yield();
      // All at once: one of them counts.
      world.fail(
          {ErrorCode::kAborted, "rank " + std::to_string(world.rank()) + " aborted", {}, {}});
      const auto end = Clock::now() + 20s;
      while (!world.cause() && Clock::now() < end) std::this_thread::sleep_for(1ms);
      ASSERT_TRUE(world.cause());
      texts[static_cast<std::size_t>(world.rank())] = world.cause()->text;
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  }
}

TEST(RemoteHosts, WhoLeavesIsNotLost) {
  for (const auto& layout : kLayouts) {
    on_hosts(layout, [](Host&, Membership& world) {
      if (world.rank() % 2 == 1) {
        try {
          world.close(0, 0, Deadline::after(0ms), Where::current());
        } catch (const Error& error) {  // who has not left yet
          EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
        }
        return;
      }
      // Its goodbye comes as well, and nothing else.
      world.close(0, 0, Deadline::after(20s), Where::current());
      EXPECT_FALSE(world.cause());
    });
  }
}

TEST(RemoteHosts, ALaneIsOneConnectionWhoeverCallsFirst) {
  constexpr int lanes = 40;
  on_hosts({0, 1}, [](Host& host, Membership& world) {
    const int rank = world.rank(), peer = 1 - rank;
    std::vector<net::Fd> sockets(static_cast<std::size_t>(lanes));
    const auto end = Clock::now() + 20s;
    for (int taken = 0; taken < lanes && Clock::now() < end;) {
      for (int lane = 0; lane < lanes; ++lane) {
        net::Fd& socket = sockets[static_cast<std::size_t>(lane)];
        // Some are wanted at one end first.
        if (socket || (lane % 3 == rank && Clock::now() + 19800ms < end)) continue;
        socket = host.sockets()
                     ->try_take(kWorld, WorldRank(peer), static_cast<std::uint8_t>(lane))
                     .socket;
        if (socket) ++taken;
      }
      std::this_thread::sleep_for(1ms);
    }
    for (int lane = 0; lane < lanes; ++lane) {
      const auto& socket = sockets[static_cast<std::size_t>(lane)];
      ASSERT_TRUE(socket) << lane;
      const char own = static_cast<char>(lane);
      ASSERT_EQ(::send(socket.get(), &own, 1, MSG_NOSIGNAL), 1);
    }
    for (int lane = 0; lane < lanes; ++lane) {
      const auto& socket = sockets[static_cast<std::size_t>(lane)];
      Deadline deadline = Deadline::after(20s);
      ASSERT_EQ(net::poll_readable(socket.get(), deadline), net::PollResult::ready);
      char theirs = -1;
      ASSERT_EQ(::recv(socket.get(), &theirs, 1, 0), 1);
      EXPECT_EQ(theirs, lane);
    }
    world.close(0, 0, Deadline::after(20s), Where::current());
  });
}

TEST(RemoteHosts, GroupsThatEndBeforeTheyTookAConnectionLeaveNone) {
  constexpr int kGroups = 20;
  std::barrier both(2);
  on_hosts({0, 1}, [&](Host& host, Membership& world) {
    const int rank = world.rank();
    PeerSockets& sockets = *host.sockets();
    const auto live = [&](GroupId id) {
      auto group = host.make_membership({id, "group", all_ranks(2), rank});
      group->meet(nullptr, Where::current(), Deadline::after(20s));
      if (rank == 0) {
        EXPECT_FALSE(sockets.try_take(id, WorldRank(1), 0));
        const auto end = Clock::now() + 10s;
        while (!sockets.has_come(id, WorldRank(1), 0) && Clock::now() < end)
          std::this_thread::sleep_for(1ms);
        EXPECT_TRUE(sockets.has_come(id, WorldRank(1), 0));
      }
      both.arrive_and_wait();
      group.reset();
      // Rank 1 has left the next one when it is called.
      both.arrive_and_wait();
      group = host.make_membership({id + 1, "group", all_ranks(2), rank});
      group->meet(nullptr, Where::current(), Deadline::after(20s));
      both.arrive_and_wait();
      if (rank == 1) group.reset();
      both.arrive_and_wait();
      EXPECT_FALSE(rank == 0 && sockets.try_take(id + 1, WorldRank(1), 0));
      std::this_thread::sleep_for(10ms);
      group.reset();
    };
    live(2);
    both.arrive_and_wait();
    const int before = open_descriptors();
    both.arrive_and_wait();
    for (GroupId id = 4; id < 2 * kGroups; id += 2) live(id);
    both.arrive_and_wait();
    const auto end = Clock::now() + 10s;
    while (open_descriptors() > before + 4 && Clock::now() < end) std::this_thread::sleep_for(5ms);
    EXPECT_LE(open_descriptors(), before + 4) << "each group had two or more";
    both.arrive_and_wait();
    world.close(0, 0, Deadline::after(20s), Where::current());
  });
}

}  // namespace
}  // namespace tutti::control
