// The backend gloo, loaded by name: every operation against the reference, and how its groups end.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "conformance/cell.h"
#include "ranks.h"
#include "tutti/log.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using conformance::Cell;
using test_kit::As;
using Clock = std::chrono::steady_clock;

test_kit::RunOptions over_gloo(As as = As::threads, Settings settings = {}) {
  test_kit::RunOptions options;
  options.as = as;
  options.init.backend = "gloo";
  options.init.settings = std::move(settings);
  return options;
}

Settings unchecked_with_stall(const std::string& stall) {
  return {{"check", "off"}, {"stall_timeout", stall}};
}

// ---- operations
// ----------------------------------------------------------------------------------

constexpr std::array kDTypes = {DType::bool_, DType::u8,  DType::i8,  DType::i16, DType::i32,
                                DType::i64,   DType::u16, DType::u32, DType::u64, DType::f16,
                                DType::bf16,  DType::f32, DType::f64};

constexpr std::array kReduceOps = {ReduceOp::sum,  ReduceOp::product, ReduceOp::min,
                                   ReduceOp::max,  ReduceOp::avg,     ReduceOp::premul_sum(0.3),
                                   ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

struct Call {
  Op op;
  bool uneven = false;
};

/// Whole, in slices, and, for the widest types, in slices of several pieces.
std::vector<std::size_t> counts(int ranks, DType dtype, ReduceOp reduce) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> all = {0, 1, n + 1, 1000, 20'003};
  const bool widest = dtype == DType::f64 || dtype == DType::i64;
  if (widest && reduce == ReduceOp::sum) all.push_back(400'003);
  return all;
}

std::vector<Cell> cells(const Call& call, ProcessGroup& world) {
  std::vector<Cell> grid;
  for (const DType dtype : kDTypes) {
    for (const ReduceOp& reduce : kReduceOps) {
      if (!reduces(call.op) && reduce != ReduceOp::sum) continue;
      if (!world.supports({call.op, dtype, reduce.kind(), Device::Kind::cpu}).yes) continue;
      for (const std::size_t count : counts(world.world_size(), dtype, reduce)) {
        const std::uint64_t hash =
            hash_combine(count, static_cast<std::uint64_t>(dtype) * 16 +
                                    static_cast<std::uint64_t>(reduce.kind()));
        const bool never_in_place = call.op == Op::barrier || is_message(call.op) ||
                                    (call.uneven && call.op == Op::all_to_all);
        Cell cell{.op = call.op, .dtype = dtype, .reduce = reduce, .count = count};
        cell.uneven = call.uneven;
        cell.seed = hash;
        cell.root = static_cast<int>(hash % static_cast<std::uint64_t>(world.world_size()));
        cell.in_place = !never_in_place && (hash >> 8) % 2 == 0;
        cell.asynchronous = (hash >> 9) % 4 == 0;
        grid.push_back(cell);
        if (call.op == Op::barrier) return grid;
      }
    }
  }
  return grid;
}

/// gather and scatter are in place on the root only.
Cell seen_from(Cell cell, int rank) {
  const bool rooted = cell.op == Op::gather || cell.op == Op::scatter;
  if (rooted && rank != cell.root) cell.in_place = false;
  return cell;
}

class Gloo : public testing::TestWithParam<std::tuple<As, Call>> {};

TEST_P(Gloo, GivesTheBitsOfTheReference) {
  const auto [as, call] = GetParam();
  if (as == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(
        ranks,
        [call = call](ProcessGroup& world) {
          for (const Cell& cell : cells(call, world)) {
            const std::string wrong = run_cell(world, seen_from(cell, world.rank()));
            if (wrong.empty()) continue;
            throw std::runtime_error(describe(cell) + ": " + wrong);
          }
        },
        over_gloo(as));
    if (HasFailure()) return;
  }
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<As, Call>>& info) {
  const auto [as, call] = info.param;
  return std::string(as == As::threads ? "threads_" : "processes_") +
         std::string(name_of(call.op)) + (call.uneven ? "v" : "");
}

constexpr Call kCalls[] = {{Op::send},
                           {Op::recv},
                           {Op::broadcast},
                           {Op::all_reduce},
                           {Op::reduce},
                           {Op::gather},
                           {Op::gather, true},
                           {Op::all_gather},
                           {Op::all_gather, true},
                           {Op::scatter},
                           {Op::scatter, true},
                           {Op::reduce_scatter},
                           {Op::reduce_scatter, true},
                           {Op::all_to_all},
                           {Op::all_to_all, true},
                           {Op::barrier}};

INSTANTIATE_TEST_SUITE_P(Operations, Gloo,
                         testing::Combine(testing::Values(As::threads, As::processes),
                                          testing::ValuesIn(kCalls)),
                         name_of_case);

TEST(GlooBackend, SaysWhatItCannotDo) {
  on_ranks(
      1,
      [](ProcessGroup& world) {
        const Support avg =
            world.supports({Op::all_reduce, DType::i32, ReduceOp::Kind::avg, Device::Kind::cpu});
        EXPECT_FALSE(avg.yes);
        EXPECT_NE(avg.reason.find("use sum and divide"), std::string::npos) << avg.reason;
        const Support cuda =
            world.supports({Op::broadcast, DType::f32, ReduceOp::Kind::sum, Device::Kind::cuda});
        EXPECT_FALSE(cuda.yes);
        EXPECT_NE(cuda.reason.find("copy to the CPU"), std::string::npos) << cuda.reason;
      },
      over_gloo());
}

TEST(GlooBackend, SaysThatItsSocketsAreOpen) {
  static std::mutex mutex;
  static std::string lines;
  set_log_callback([](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.append(line).append("\n");
  });
  on_ranks(
      2, [](ProcessGroup& world) { world.barrier(); }, over_gloo(As::threads, {{"log", "info"}}));
  on_ranks(
      1, [](ProcessGroup&) {}, over_gloo(As::threads, {{"log", "warn"}}));  // it is the process's
  set_log_callback({});
  EXPECT_NE(lines.find("neither authenticated nor encrypted"), std::string::npos) << lines;
}

// ---- groups
// --------------------------------------------------------------------------------------

TEST(GlooBackend, GroupsWithinAndBesideEachOther) {
  on_ranks(
      4,
      [](ProcessGroup& world) {
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
      },
      over_gloo());
}

std::ptrdiff_t entries(const char* folder) {
  const std::filesystem::directory_iterator begin(folder);
  return std::distance(begin, std::filesystem::directory_iterator());
}

TEST(GlooBackend, WorldsOneAfterTheOtherLeaveNothingBehind) {
  const auto once = [] {
    on_ranks(
        3,
        [](ProcessGroup& world) {
          ProcessGroup some = world.new_group({0, 2});
          std::vector<float> x(100'000, 1.0f);
          world.all_reduce(x);
          EXPECT_EQ(x[99'999], 3.0f);
        },
        over_gloo());
  };
  once();
  const std::ptrdiff_t threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
  for (int i = 0; i < 3; ++i) once();
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), files);
}

// ---- failures
// ------------------------------------------------------------------------------------

/// Runs `function` on processes; what the ranks that are left have thrown is `code`, in time.
void expect_survivors(int ranks, int victim, ErrorCode code, std::chrono::milliseconds budget,
                      const std::function<void(ProcessGroup&)>& function) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const Clock::time_point begin = Clock::now();
  const auto outcomes = test_kit::collect_ranks(
      ranks,
      [&](const test_kit::Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        function(world);
        return std::string("not interrupted");
      },
      over_gloo(As::processes));
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

TEST(GlooFailure, SurvivorsMakeANewGroup) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const auto outcomes = test_kit::collect_ranks(
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
      over_gloo(As::processes));
  EXPECT_EQ(outcomes[0].result, "2") << outcomes[0].failure;
  EXPECT_EQ(outcomes[2].result, "2") << outcomes[2].failure;
}

TEST(GlooFailure, LateRankIsATimeoutOfThoseWhoWait) {
  const auto outcomes = test_kit::collect_ranks(
      2,
      [](const test_kit::Rank& me) {
        ProcessGroup world = init_process_group(me.init);
        if (world.rank() == 1) std::this_thread::sleep_for(1500ms);
        world.barrier({.timeout = 500ms});
        return std::string("not interrupted");
      },
      over_gloo());
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
  const auto outcomes = test_kit::collect_ranks(
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
      over_gloo(As::threads, unchecked_with_stall(stall)));
  return outcomes[0].error.value_or(Error(ErrorCode::kInternal, "nothing was thrown"));
}

TEST(GlooFailure, NothingMovesAfterAllHaveEntered) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1'000'000}}) {
    const Clock::time_point begin = Clock::now();
    const Error error = alone_in_all_reduce(count, "500ms", [](ProcessGroup&) {});
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    expect_text(error, "stall_timeout");
    EXPECT_GE(Clock::now() - begin, 500ms);
    EXPECT_LT(Clock::now() - begin, 5s);
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
