// Ranks that are threads of a test, each with its Host and the Membership of the world.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "control/board/board.h"
#include "control/host.h"

namespace tutti::control {

inline constexpr GroupId kWorld = 0x7e57;

inline std::vector<WorldRank> all_ranks(int n) {
  std::vector<WorldRank> ranks;
  for (int rank = 0; rank < n; ++rank) ranks.emplace_back(rank);
  return ranks;
}

/// A collective as the group would hand it down; the chain is made from what is said here.
inline Request collective(Op op, std::uint64_t seq, std::size_t count = 1000, int root = -1,
                          int line = 88) {
  Request request;
  request.op = op;
  request.dtype = DType::f32;
  request.seq = seq;
  request.count = count;
  request.root = root;
  request.chain = (seq * 1000003 + count) * 31 + static_cast<std::uint64_t>(op) * 7 +
                  static_cast<std::uint64_t>(root + 1);
  request.where = {"dir/train.cc", line};
  request.arrive = Deadline::after(std::chrono::seconds(20));
  request.stall = Deadline::after(std::chrono::seconds(20));
  return request;
}

/// Runs `body` on n threads, each a rank of a board of their own.
inline void on_thread_ranks(int n, const std::function<void(Host&, Membership&)>& body,
                            std::chrono::nanoseconds deadlock_after = std::chrono::seconds(1)) {
  const net::Fd memory = Board::make(n);
  std::latch all_have_met(n);  // nobody is told in the meeting of what a body does
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      HostOptions options;
      options.board_fd = memory.get();
      options.rank = rank;
      options.world_size = n;
      options.timeout = std::chrono::seconds(20);
      options.deadlock_after = deadlock_after;
      bool has_met = false;
      try {
        const auto host = Host::join(options);
        const auto world = host->make_membership({kWorld, "world", all_ranks(n), rank});
        world->meet(nullptr, Where::current(), Deadline::after(std::chrono::seconds(20)));
        has_met = true;
        all_have_met.arrive_and_wait();
        body(*host, *world);
      } catch (const std::exception& error) {
        if (!has_met) all_have_met.count_down();
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tutti::control
