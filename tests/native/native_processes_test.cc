// Native between processes: everything arrives, and a rank that is killed in the middle of its
// operations is named to those that wait for it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "forks.h"
#include "native_ranks.h"
#include "store/client.h"
#include "store/server.h"

namespace tutti::native {
namespace {

/// Runs `body` in n forked processes, rank 0 with the store, and returns how they ended. They die
/// with the test, and of SIGALRM after a minute.
std::vector<int> on_native_processes(int n, const std::function<void(NativeRank&)>& body) {
  const net::Fd board = control::Board::make(n);
  const std::string address = net::random_address("tutti-test");
  net::Fd listener(net::listen(address).release());  // not private: rank 0 is a forked child
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t child = fork_alone();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(60);
      int code = 1;
      try {
        std::unique_ptr<store::Server> server;
        if (rank == 0) {
          store::ServerOptions options;
          options.listener = std::move(listener);
          server = std::make_unique<store::Server>(std::move(options));
        }
        listener.reset();
        const auto connected = store::connect_store(address, {.rank = rank, .world_size = n},
                                                    Deadline::after(std::chrono::seconds(20)));
        be_native_rank(rank, n, board.get(), connected.store, body);
        code = testing::Test::HasFailure() ? 1 : 0;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      std::_Exit(code);
    }
    children.push_back(child);
  }
  listener.reset();
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    ends.push_back(status);
  }
  return ends;
}

std::vector<std::int64_t> filled(int rank, std::size_t count) {
  std::vector<std::int64_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = rank * 1'000'000 + static_cast<int>(i);
  return data;
}

/// One call of each kind, checked.
void do_everything(NativeRank& me, std::size_t count) {
  const auto n = static_cast<std::size_t>(me.n);
  const std::vector<std::int64_t> own = filled(me.rank, count);
  std::vector<std::int64_t> sum(count), all(count * n), part(count);
  me.run(me.next(Op::all_reduce, count, own.data(), sum.data()));
  me.run(me.next(Op::all_gather, count, own.data(), all.data()));
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(i);
    ASSERT_EQ(sum[i], me.n * (me.n - 1) / 2 * 1'000'000 + me.n * index);
    for (std::size_t r = 0; r < n; ++r) {
      ASSERT_EQ(all[r * count + i], static_cast<std::int64_t>(r) * 1'000'000 + index);
    }
  }
  me.run(me.next(Op::reduce_scatter, count, all.data(), part.data()));
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(part[i], me.n * all[static_cast<std::size_t>(me.rank) * count + i]);
  }
  std::vector<std::int64_t> got(count);
  Work send = me.backend.start(me.send_of(own, (me.rank + 1) % me.n));
  me.recv(got, (me.rank + me.n - 1) % me.n);
  send.wait();
  ASSERT_EQ(got, filled((me.rank + me.n - 1) % me.n, count));
  me.run(me.barrier());
}

TEST(NativeProcesses, DoEverything) {
  for (const int n : {2, 3, 4}) {
    const std::vector<int> ends = on_native_processes(n, [](NativeRank& me) {
      for (const std::size_t count : {1, 1000, 100'003}) do_everything(me, count);
    });
    EXPECT_EQ(ends, std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST(NativeProcesses, AKilledRankIsNamedToAllSurvivors) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 8; ++trial) {
    const int n = 2 + trial % 3;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(n));
    const auto life = std::chrono::microseconds(random() % 20'000);
    const std::vector<int> ends = on_native_processes(n, [&](NativeRank& me) {
      std::thread killer;
      try {
        me.run(me.barrier());  // all have the memory of all
        if (me.rank == victim) {
          killer = std::thread([life] {
            std::this_thread::sleep_for(life);
            raise(SIGKILL);
          });
        }
        for (;;) do_everything(me, 20'000);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
        EXPECT_EQ(error.context().culprits, std::vector<int>{victim}) << error.what();
      }
      if (killer.joinable()) killer.join();
    });
    for (int rank = 0; rank < n; ++rank) {
      const int end = ends[static_cast<std::size_t>(rank)];
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL);
      } else {
        EXPECT_EQ(end, 0) << "rank " << rank << ", victim " << victim;
      }
    }
  }
}

}  // namespace
}  // namespace tutti::native
