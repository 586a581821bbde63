// The backend gloo, loaded by name: every operation against the reference, and how its groups end.
// TUTTI_TEST_LAYOUT puts the ranks on several hosts: "apart" each on one, "halves", "in_turns".
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "tutti/log.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test_kit::As;
using Clock = std::chrono::steady_clock;

/// By rank; empty: all are on one.
std::vector<int> hosts_by_layout(int ranks) {
  const char* const wish = std::getenv("TUTTI_TEST_LAYOUT");
  const std::string layout = wish == nullptr ? "" : wish;
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks && !layout.empty(); ++rank) {
    if (layout == "apart") hosts.push_back(rank);
    if (layout == "halves") hosts.push_back(rank < (ranks + 1) / 2 ? 0 : 1);
    if (layout == "in_turns") hosts.push_back(rank % 2);
  }
  return hosts;
}

test_kit::RunOptions over_gloo(int ranks, As as, Settings settings) {
  test_kit::RunOptions options;
  options.as = as;
  options.hosts = hosts_by_layout(ranks);
  options.init.backend = "gloo";
  options.init.settings = std::move(settings);
  return options;
}

using Function = std::function<std::string(const test_kit::Rank&)>;

std::vector<test_kit::Outcome> collect_over_gloo(int ranks, const Function& function,
                                                 As as = As::threads, Settings settings = {}) {
  return test_kit::collect_ranks(ranks, function, over_gloo(ranks, as, std::move(settings)));
}

void on_ranks_over_gloo(int ranks, const std::function<void(ProcessGroup&)>& function,
                        As as = As::threads, Settings settings = {}) {
  on_ranks(ranks, function, over_gloo(ranks, as, std::move(settings)));
}

Settings unchecked_with_stall(const std::string& stall) {
  return {{"check", "off"}, {"stall_timeout", stall}};
}

// ---- operations

/// Whole, in slices, and in slices of several pieces; in the canonical order, which Gloo's own
/// functions do not keep.
class Operations : public testing::TestWithParam<As> {};

TEST_P(Operations, GiveTheBitsOfTheReference) {
  if (GetParam() == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const int ranks : {1, 2, 3, 4}) {
    const auto n = static_cast<std::size_t>(ranks);
    test_kit::ConformanceOptions options{
        .counts = {0, 1, n + 1, 1000, 20'003}, .one_variant_in = 4, .canonical = true};
    const auto check = [&](ProcessGroup& world) {
      for (const std::string& failure : run_conformance(world, options).failures) {
        throw std::runtime_error(failure);
      }
    };
    on_ranks_over_gloo(ranks, check, GetParam());
    if (HasFailure()) return;
  }
}

TEST_P(Operations, ReduceLargeBuffersInSlicesOfSeveralPieces) {
  if (GetParam() == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const Op op : {Op::all_reduce, Op::reduce, Op::reduce_scatter}) {
    const auto check = [&](ProcessGroup& world) {
      const std::size_t count = 1'200'003;  // three pieces and more
      std::vector<double> data(op == Op::reduce_scatter ? 3 * count : count);
      for (std::size_t i = 0; i < data.size(); ++i) {
        data[i] = static_cast<double>(i % 1000) + world.rank();
      }
      std::vector<double> sum(count, -1);
      if (op == Op::all_reduce) world.all_reduce(data, sum);
      if (op == Op::reduce) world.reduce(data, sum, {.root = 1});
      if (op == Op::reduce_scatter) world.reduce_scatter(data, sum);
      if (op == Op::reduce && world.rank() != 1) return;
      const std::size_t first =
          op == Op::reduce_scatter ? static_cast<std::size_t>(world.rank()) * count : 0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(sum[i], 3.0 * static_cast<double>((first + i) % 1000) + 3) << i;
      }
    };
    on_ranks_over_gloo(3, check, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Gloo, Operations, testing::Values(As::threads, As::processes),
                         [](const auto& row) {
                           return row.param == As::threads ? "threads" : "processes";
                         });

TEST(GlooBackend, SaysWhatItCannotDo) {
  on_ranks_over_gloo(1, [](ProcessGroup& world) {
    const Support avg =
        world.supports({Op::all_reduce, DType::i32, ReduceOp::Kind::avg, Device::Kind::cpu});
    EXPECT_FALSE(avg.yes);
    EXPECT_NE(avg.reason.find("use sum and divide"), std::string::npos) << avg.reason;
    const Support cuda =
        world.supports({Op::broadcast, DType::f32, ReduceOp::Kind::sum, Device::Kind::cuda});
    // Staged through the host, where there is a device.
    EXPECT_NE(cuda.reason.find(cuda.yes ? "staged: " : "CUDA"), std::string::npos) << cuda.reason;
  });
}

TEST(GlooBackend, SaysThatItsSocketsAreOpen) {
  static std::mutex mutex;
  static std::string lines;
  set_log_callback([](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.append(line).append("\n");
  });
  on_ranks_over_gloo(2, [](ProcessGroup& world) { world.barrier(); }, As::threads,
                     {{"log", "info"}});
  on_ranks_over_gloo(1, [](ProcessGroup&) {}, As::threads,
                     {{"log", "warn"}});  // it is the process's
  set_log_callback({});
  EXPECT_NE(lines.find("neither authenticated nor encrypted"), std::string::npos) << lines;
}

TEST(GlooBackend, IsRefusedWhereConnectionsMustBeProtected) {
  for (const char* const level : {"auth", "integrity", "encrypt"}) {
    const auto body = [](const test_kit::Rank& me) {
      init_process_group(me.init);
      return std::string();
    };
    const auto outcomes = collect_over_gloo(2, body, As::threads, {{"security", level}});
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value()) << outcome.rank << ": " << outcome.failure;
      EXPECT_EQ(outcome.error->code(), ErrorCode::kUnsupported) << outcome.failure;
      expect_text(*outcome.error, std::string("TUTTI_SECURITY=") + level);
      expect_text(*outcome.error,
                  "use the backend native, or give up the protection with "
                  "TUTTI_SECURITY=opportunistic");
    }
  }
  on_ranks_over_gloo(2, [](ProcessGroup& world) { world.barrier(); }, As::threads,
                     {{"security", "none"}});
}

// ---- groups

TEST(GlooBackend, GroupsWithinAndBesideEachOther) {
  on_ranks_over_gloo(4, [](ProcessGroup& world) {
    ProcessGroup backwards = world.new_group({3, 1, 0});
    ProcessGroup pair = world.new_group({world.rank() / 2 * 2, world.rank() / 2 * 2 + 1});
    std::vector<int> x(50'000, world.rank()), y(3, world.rank());
    pair.all_reduce(x);
    EXPECT_EQ(x.back(), world.rank() / 2 * 4 + 1);
    if (world.rank() != 2) {
      backwards.broadcast(y, {.root = 0});
      EXPECT_EQ(y[2], 3);
      ProcessGroup alone = backwards.new_group({backwards.rank()});
      EXPECT_EQ(alone.all_reduce_value(7), 7);
    }
    EXPECT_EQ(world.all_reduce_value(1), 4);
  });
}

TEST(GlooBackend, TwoGroupsFromTwoThreads) {
  on_ranks_over_gloo(2, [](ProcessGroup& world) {
    ProcessGroup other = world.new_group({1, 0});
    const auto work = [](ProcessGroup& group) {
      const int rank = group.rank(), peer = 1 - rank;
      for (int i = 0; i < 100; ++i) {
        const std::size_t count = i % 10 == 0 ? 100'000 : 100;
        std::vector<int> sum(count, i + rank), got(count), sent(count, rank);
        Work sending = group.send(sent, peer, async);
        Work adding = group.all_reduce(sum, async);
        group.recv(got, peer);
        adding.wait();
        sending.wait();
        ASSERT_EQ(sum.back(), 2 * i + 1);
        ASSERT_EQ(got.back(), peer);
        group.barrier();
      }
    };
    std::thread second([&] { work(other); });
    work(world);
    second.join();
  });
}

std::ptrdiff_t entries(const char* folder) {
  const std::filesystem::directory_iterator begin(folder);
  return std::distance(begin, std::filesystem::directory_iterator());
}

TEST(GlooBackend, WorldsOneAfterTheOtherLeaveNothingBehind) {
  const auto once = [] {
    on_ranks_over_gloo(3, [](ProcessGroup& world) {
      ProcessGroup some = world.new_group({0, 2});
      std::vector<float> x(100'000, 1.0f);
      world.all_reduce(x);
      EXPECT_EQ(x[99'999], 3.0f);
    });
  };
  once();
  const std::ptrdiff_t threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
  for (int i = 0; i < 3; ++i) once();
  // A thread that was joined may be listed for a moment.
  for (int i = 0; i < 20'000 && entries("/proc/self/task") > threads; ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_LE(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), files);
}

// ---- failures

/// Runs `function` on processes; what the ranks that are left have thrown is `code`, in time.
void expect_survivors(int ranks, int victim, ErrorCode code, std::chrono::milliseconds budget,
                      const std::function<void(ProcessGroup&)>& function) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const Clock::time_point begin = Clock::now();
  const auto outcomes = collect_over_gloo(
      ranks,
      [&](const test_kit::Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        function(world);
        return std::string("not interrupted");
      },
      As::processes);
  EXPECT_LT(Clock::now() - begin, budget);
  for (const test_kit::Outcome& outcome : outcomes) {
    if (outcome.rank == victim) continue;
    ASSERT_TRUE(outcome.error) << "rank " << outcome.rank << ": " << outcome.failure
                               << outcome.result;
    EXPECT_EQ(outcome.error->code(), code) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{victim}) << outcome.error->what();
  }
}

TEST(GlooFailure, RankKilledBeforeItEnters) {
  expect_survivors(3, 1, ErrorCode::kPeerLost, 10s, [](ProcessGroup& world) {
    world.barrier();
    if (world.rank() == 1) raise(SIGKILL);
    for (;;) world.all_reduce_value(1);
  });
}

TEST(GlooFailure, RankKilledInsideTheLibrary) {
  expect_survivors(3, 1, ErrorCode::kPeerLost, 20s, [](ProcessGroup& world) {
    std::vector<float> data(16 * 1024 * 1024);
    world.barrier();
    if (world.rank() == 1) {
      std::thread([] {
        std::this_thread::sleep_for(30ms);
        raise(SIGKILL);
      }).detach();
    }
    for (;;) world.all_reduce(data);
  });
}

TEST(GlooFailure, RankKilledInsideAMessage) {
  expect_survivors(3, 1, ErrorCode::kPeerLost, 20s, [](ProcessGroup& world) {
    std::vector<float> from(16 * 1024 * 1024), to(from.size());
    world.barrier();
    if (world.rank() == 1) {
      std::thread([] {
        std::this_thread::sleep_for(30ms);
        raise(SIGKILL);
      }).detach();
    }
    const int next = (world.rank() + 1) % 3, before = (world.rank() + 2) % 3;
    for (;;) {
      Work sent = world.send(from, next, async);
      world.recv(to, before);
      sent.wait();
    }
  });
}

TEST(GlooFailure, SurvivorsMakeANewGroup) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const auto outcomes = collect_over_gloo(
      3,
      [](const test_kit::Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        world.barrier();
        if (world.rank() == 1) raise(SIGKILL);
        try {
          for (;;) world.all_reduce_value(1);
        } catch (const Error&) {
        }
        ProcessGroup rest = world.new_group({0, 2});
        std::vector<int> x(100'000, 1);
        rest.all_reduce(x);
        rest.close();
        return std::to_string(x[99'999]);
      },
      As::processes);
  EXPECT_EQ(outcomes[0].result, "2") << outcomes[0].failure;
  EXPECT_EQ(outcomes[2].result, "2") << outcomes[2].failure;
}

TEST(GlooFailure, LateRankIsATimeoutOfThoseWhoWait) {
  std::atomic<bool> told = false;
  const auto outcomes = collect_over_gloo(2, [&](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    while (world.rank() == 1 && !told) std::this_thread::sleep_for(5ms);
    try {
      world.barrier({.timeout = 500ms});
    } catch (const Error&) {
      told = true;
      throw;
    }
    told = true;
    return std::string("not interrupted");
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.error) << outcome.result << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kTimeout) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{1}) << outcome.error->what();
  }
}

/// Rank 0 is alone in the library: what ends that is the backend's own.
Error alone_in_all_reduce(std::size_t count, const std::string& stall,
                          const std::function<void(ProcessGroup&)>& meanwhile) {
  std::atomic<bool> ended = false;
  const auto outcomes = collect_over_gloo(
      2,
      [&](const test_kit::Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        if (world.rank() == 1) {
          while (!ended) std::this_thread::sleep_for(5ms);
          return std::string();
        }
        std::thread helper([&] { meanwhile(world); });
        std::vector<double> data(count);
        try {
          world.all_reduce(data);
        } catch (const Error&) {
          ended = true;
          helper.join();
          EXPECT_THROW(world.all_reduce(data), Error);
          throw;
        }
        ended = true;
        helper.join();
        return std::string();
      },
      As::threads, unchecked_with_stall(stall));
  return outcomes[0].error.value_or(Error(ErrorCode::kInternal, "nothing was thrown"));
}

TEST(GlooFailure, NothingMovesAfterAllHaveEntered) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1'000'000}}) {
    const Clock::time_point begin = Clock::now();
    const Error error = alone_in_all_reduce(count, "500ms", [](ProcessGroup&) {});
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    expect_text(error,
                "no byte has moved for 0.5 s (setting stall_timeout) in rank 0's all_reduce");
    expect_text(error, "; rank 1 (pid ");
    EXPECT_EQ(error.context().culprits, std::vector<int>{1});
    EXPECT_GE(Clock::now() - begin, 500ms);
    EXPECT_LT(Clock::now() - begin, 5s);
  }
}

/// Before Gloo sees anything: it would end the process over a message longer than it awaits.
TEST(GlooFailure, RanksThatDisagreeAreToldSoOnAllOfThem) {
  using Call = std::function<void(ProcessGroup&)>;
  const std::vector<Call> disagreements = {
      [](ProcessGroup& world) {
        std::vector<float> x(world.rank() == 0 ? 3 : 40'000, 1.0F);
        world.all_reduce(x);
      },
      [](ProcessGroup& world) {
        std::vector<float> x(10, 1.0F);
        world.broadcast(x, {.root = world.rank()});
      },
      [](ProcessGroup& world) {  // rank 1 sends more, then less, than is awaited
        std::vector<float> x(world.rank() == 0 ? 100 : 40'000, 1.0F);
        world.rank() == 0 ? void(world.recv(x, 1)) : world.send(x, 0);
      },
      [](ProcessGroup& world) {
        std::vector<float> x(world.rank() == 0 ? 40'000 : 100, 1.0F);
        world.rank() == 0 ? void(world.recv(x, 1)) : world.send(x, 0);
      }};
  for (const Call& call : disagreements) {
    const auto body = [&](const test_kit::Rank& me) {
      ProcessGroup world = init_process_group(me.init);
      call(world);
      return std::string();
    };
    for (const auto& outcome : collect_over_gloo(2, body)) {
      ASSERT_TRUE(outcome.error.has_value()) << outcome.rank << ": " << outcome.failure;
      EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.failure;
      expect_text(*outcome.error, "rank 0");
      expect_text(*outcome.error, "rank 1");
    }
  }
}

TEST(GlooFailure, AbortFromAnotherThread) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1'000'000}}) {
    const Clock::time_point begin = Clock::now();
    const Error error = alone_in_all_reduce(count, "60s", [](ProcessGroup& world) {
      std::this_thread::sleep_for(100ms);
      world.abort("enough");
    });
    EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
    expect_text(error, "enough");
    EXPECT_LT(Clock::now() - begin, 5s);
  }
}

}  // namespace
}  // namespace tutti
