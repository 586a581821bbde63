// The engine against an independent evaluation of the canonical order; disagreements; aborts.
#include "native/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/legality.h"
#include "engine_ranks.h"
#include "test_kit/reference.h"

namespace tutti::native::test {
namespace {

/// Small enough that little data crosses every threshold and goes around the ring.
EngineTuning tight() {
  EngineTuning tuning;
  tuning.small_bytes = 512;
  tuning.segment_bytes = 1024;
  tuning.ring_bytes = 4096;
  return tuning;
}

std::mt19937_64 seeded() {
  const char* given = std::getenv("TUTTI_TEST_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("TUTTI_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return std::mt19937_64(seed);
}

ReduceOp reduce_op(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return ReduceOp::sum;
    case ReduceOp::Kind::product:
      return ReduceOp::product;
    case ReduceOp::Kind::min:
      return ReduceOp::min;
    case ReduceOp::Kind::max:
      return ReduceOp::max;
    case ReduceOp::Kind::avg:
      return ReduceOp::avg;
    case ReduceOp::Kind::premul_sum:
      return ReduceOp::premul_sum(0.3);
    case ReduceOp::Kind::band:
      return ReduceOp::band;
    case ReduceOp::Kind::bor:
      return ReduceOp::bor;
    case ReduceOp::Kind::bxor:
      return ReduceOp::bxor;
  }
  return ReduceOp::sum;
}

/// One operation of all ranks: their data, before and after, and the requests.
struct Case {
  DType dtype;
  ReduceOp op = ReduceOp::sum;
  std::size_t count;
  int root = -1;  ///< -1: all_reduce
  bool in_place;
  std::size_t misalign;
  std::vector<std::vector<std::byte>> inputs, outputs;

  std::size_t byte_count() const { return count * size_of(dtype); }
  void* output(int rank) { return outputs[static_cast<std::size_t>(rank)].data() + misalign; }
  const void* input(int rank) {
    return in_place ? output(rank) : inputs[static_cast<std::size_t>(rank)].data();
  }
  Request request(Rank& rank) {
    if (root >= 0) return rank.broadcast(dtype, output(rank.rank()), count, root);
    return rank.all_reduce(dtype, op, input(rank.rank()), output(rank.rank()), count);
  }
  std::string name() const {
    return std::string(root >= 0 ? "broadcast " : "all_reduce ") + std::string(name_of(dtype)) +
           " " + std::string(name_of(op.kind())) + " count " + std::to_string(count) + " of " +
           std::to_string(inputs.size()) + (in_place ? " in place" : "");
  }
  ::testing::AssertionResult check(int rank) {
    const reference::Bytes want = reference::expected(root >= 0 ? Op::broadcast : Op::all_reduce,
                                                      dtype, op, root, rank, inputs, count);
    const std::size_t at = reference::first_difference(dtype, output(rank), want.data(), count);
    if (at == count) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << name() << ": rank " << rank << " differs at " << at;
  }
};

Case make_case(int ranks, DType dtype, ReduceOp op, std::size_t count, int root, bool in_place,
               std::mt19937_64& random) {
  Case made{dtype, op, count, root, in_place || root >= 0, random() % 3 == 0 ? random() % 8 : 0,
            {},    {}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::byte> data = reference::random_data(dtype, count, random());
    std::vector<std::byte> output(made.misalign + data.size() + 1);
    if (made.in_place && !data.empty()) {
      std::memcpy(output.data() + made.misalign, data.data(), data.size());
    }
    made.inputs.push_back(std::move(data));
    made.outputs.push_back(std::move(output));
  }
  return made;
}

std::vector<std::size_t> crossing_counts(int ranks, std::size_t element_bytes) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t line = 48 / element_bytes, small = 512 / element_bytes,
                    segment = 1024 / element_bytes, ring = 4096 / element_bytes;
  return {0,        1,        n - 1,       n,           n + 1,   line,
          line + 1, small,    small + 1,   segment - 1, segment, segment + n + 1,
          ring - 1, ring + 1, 3 * ring + 5};
}

TEST(Engine, EveryDtypeOpAndPathMatchesTheReferenceInAnyInterleaving) {
  auto random = seeded();
  for (const int n : {1, 2, 3, 4, 7, 8}) {
    const SharedMemory memory(n, tight());
    auto ranks = make_ranks(memory);
    for (std::size_t type = 0; type < kDTypeCount; ++type) {
      const auto dtype = static_cast<DType>(type);
      std::vector<Case> cases;
      for (std::size_t kind = 0; kind < kReduceKindCount; ++kind) {
        if (!why_illegal(dtype, static_cast<ReduceOp::Kind>(kind)).empty()) continue;
        for (const std::size_t count : crossing_counts(n, size_of(dtype))) {
          cases.push_back(make_case(n, dtype, reduce_op(static_cast<ReduceOp::Kind>(kind)), count,
                                    -1, random() % 2 == 0, random));
        }
      }
      for (const std::size_t count : crossing_counts(n, size_of(dtype))) {
        cases.push_back(make_case(n, dtype, ReduceOp::sum, count,
                                  static_cast<int>(random() % static_cast<std::size_t>(n)), true,
                                  random));
      }
      std::shuffle(cases.begin(), cases.end(), random);
      std::vector<std::vector<Request>> programs(static_cast<std::size_t>(n));
      for (int rank = 0; rank < n; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        for (Case& one : cases) programs[at].push_back(one.request(*ranks[at]));
      }
      ASSERT_TRUE(step_programs(ranks, programs, random)) << name_of(dtype) << " n=" << n;
      for (Case& one : cases) {
        for (int rank = 0; rank < n; ++rank) ASSERT_TRUE(one.check(rank));
      }
    }
    EXPECT_EQ(memory.common().disagreements.load(), 0);
  }
}

TEST(Engine, LargeMessagesWithTheRealTuningMatchTheReference) {
  auto random = seeded();
  for (const int n : {2, 3, 8}) {
    const SharedMemory memory(n, engine_tuning(n, 2));
    auto ranks = make_ranks(memory);
    std::vector<Case> cases;
    for (const std::size_t count : {2048u, 2049u, 4097u, 65537u, 300'001u}) {
      cases.push_back(make_case(n, DType::f32, ReduceOp::sum, count, -1, true, random));
      cases.push_back(make_case(n, DType::bf16, ReduceOp::avg, count, -1, false, random));
      cases.push_back(make_case(n, DType::f32, ReduceOp::sum, count, n - 1, true, random));
    }
    std::vector<std::vector<Request>> programs(static_cast<std::size_t>(n));
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      for (Case& one : cases) programs[rank].push_back(one.request(*ranks[rank]));
    }
    ASSERT_TRUE(step_programs(ranks, programs, random));
    for (Case& one : cases) {
      for (int rank = 0; rank < n; ++rank) ASSERT_TRUE(one.check(rank));
    }
  }
}

/// A rank's random program, the same on all ranks but for the data; every result is checked.
void mixed_program(Rank& self, std::uint64_t seed, int operations) {
  std::mt19937_64 common(seed);
  std::mt19937_64 lateness(seed + 1 + static_cast<std::uint64_t>(self.rank()));
  const auto n = static_cast<std::int64_t>(self.ranks());
  std::vector<std::int64_t> data;
  for (int index = 0; index < operations; ++index) {
    const std::uint64_t kind = common() % 8;
    const std::size_t limit = std::size_t{1} << (common() % 12);
    const std::size_t count = common() % (limit + 1);
    const auto root = static_cast<int>(common() % static_cast<std::uint64_t>(n));
    for (std::uint64_t spins = lateness() % 64 == 0 ? lateness() % 20'000 : 0; spins > 0; --spins) {
      asm volatile("" ::: "memory");
    }
    data.resize(count);
    for (std::size_t at = 0; at < count; ++at) {
      data[at] = (self.rank() + 1) * (index + static_cast<std::int64_t>(at));
    }
    Request request =
        kind == 0  ? self.barrier()
        : kind < 3 ? self.broadcast(DType::i64, data.data(), count, root)
                   : self.all_reduce(DType::i64, ReduceOp::sum, data.data(), data.data(), count);
    self.run(request);
    if (kind == 0) continue;
    const std::int64_t factor = kind < 3 ? root + 1 : n * (n + 1) / 2;
    for (std::size_t at = 0; at < count; ++at) {
      if (data[at] != factor * (index + static_cast<std::int64_t>(at))) {
        throw std::runtime_error("operation " + std::to_string(index) + " element " +
                                 std::to_string(at) + " is wrong");
      }
    }
  }
}

TEST(Engine, ThreadsRunMixedOperationsInSequence) {
  auto random = seeded();
  for (const int n : {2, 3, 5}) {
    const SharedMemory memory(n, tight());
    const std::uint64_t seed = random();
    run_threads(memory, [&](Rank& self) { mixed_program(self, seed, 2000); });
    EXPECT_EQ(memory.common().disagreements.load(), 0);
  }
}

TEST(Engine, ProcessesRunMixedOperationsInSequence) {
  auto random = seeded();
  for (const int n : {2, 4, 7}) {
    const SharedMemory memory(n, tight());
    const std::uint64_t seed = random();
    EXPECT_EQ(run_forked(memory, [&](Rank& self) { mixed_program(self, seed, 2000); }), 0);
    EXPECT_EQ(memory.common().disagreements.load(), 0);
  }
}

TEST(Engine, HundredThousandSmallOperationsBackToBack) {
  const SharedMemory memory(2, engine_tuning(2, 2));
  EXPECT_EQ(run_forked(memory,
                       [](Rank& self) {
                         for (std::int64_t index = 0; index < 100'000; ++index) {
                           std::int64_t value = index * (self.rank() + 1);
                           Request request =
                               self.all_reduce(DType::i64, ReduceOp::sum, &value, &value, 1);
                           self.run(request);
                           if (value != 3 * index) throw std::runtime_error("wrong sum");
                         }
                       }),
            0);
}

// ---- disagreements -----------------------------------------------------------------------------

struct Disagreement {
  const char* name;
  std::function<Request(Rank&, void*)> right, wrong;
};

std::vector<Disagreement> disagreements() {
  auto reduce = [](DType dtype, ReduceOp op, std::size_t count) {
    return [=](Rank& rank, void* data) { return rank.all_reduce(dtype, op, data, data, count); };
  };
  auto send = [](std::size_t count, int root) {
    return [=](Rank& rank, void* data) { return rank.broadcast(DType::f32, data, count, root); };
  };
  auto meet = [](Rank& rank, void*) { return rank.barrier(); };
  const DType f32 = DType::f32;
  return {
      {"count on the line", reduce(f32, ReduceOp::sum, 4), reduce(f32, ReduceOp::sum, 5)},
      {"count, line and ring", reduce(f32, ReduceOp::sum, 4), reduce(f32, ReduceOp::sum, 5000)},
      {"count, small and ring", reduce(f32, ReduceOp::sum, 100), reduce(f32, ReduceOp::sum, 900)},
      {"count in the ring", reduce(f32, ReduceOp::sum, 2000), reduce(f32, ReduceOp::sum, 9000)},
      {"op", reduce(f32, ReduceOp::sum, 2000), reduce(f32, ReduceOp::max, 2000)},
      {"dtype", reduce(f32, ReduceOp::sum, 2000), reduce(DType::i32, ReduceOp::sum, 2000)},
      {"barrier and all_reduce", meet, reduce(f32, ReduceOp::sum, 1)},
      {"broadcast and all_reduce", send(2000, 0), reduce(f32, ReduceOp::sum, 2000)},
      {"root", send(4, 0), send(4, 1)},
      {"root in the ring", send(3000, 0), send(3000, 1)},
      {"count of a broadcast", send(3000, 0), send(12, 0)},
  };
}

TEST(Engine, ADisagreementIsSeenAtTheNextCallAtTheLatestAndNothingIsCombined) {
  auto random = seeded();
  for (const Disagreement& one : disagreements()) {
    for (int round = 0; round < 40; ++round) {
      const int n = 2 + static_cast<int>(random() % 3);
      const SharedMemory memory(n, tight());
      auto ranks = make_ranks(memory);
      const std::size_t wrong = random() % ranks.size();
      std::vector<std::vector<float>> data(ranks.size(), std::vector<float>(9000, 1.0F));
      std::vector<float> scalars(ranks.size(), 1.0F);
      std::vector<std::vector<Request>> programs(ranks.size());
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto& make = rank == wrong ? one.wrong : one.right;
        programs[rank].push_back(make(*ranks[rank], data[rank].data()));
        programs[rank].push_back(
            ranks[rank]->all_reduce(DType::f32, ReduceOp::sum, &scalars[rank], &scalars[rank], 1));
      }
      EXPECT_FALSE(step_programs(ranks, programs, random, [&](int rank, std::size_t index) {
        if (index == 1) ADD_FAILURE() << one.name << ": rank " << rank << " finished the next call";
      }));
      EXPECT_GT(memory.common().disagreements.load(), 0) << one.name;
      for (const auto& values : data) {
        for (const float value : values) ASSERT_EQ(value, 1.0F) << one.name;
      }
    }
  }
}

// ---- abort -------------------------------------------------------------------------------------

TEST(Engine, AfterAnAbortNoLargeOperationEndsAndNoDataMoves) {
  auto random = seeded();
  for (int round = 0; round < 400; ++round) {
    const int n = 2 + static_cast<int>(random() % 3);
    const SharedMemory memory(n, tight());
    auto ranks = make_ranks(memory);
    const std::size_t count = 129 + random() % 5000;
    const bool reduces = random() % 4 != 0;
    std::vector<std::vector<float>> data(ranks.size(), std::vector<float>(count, 1.0F));
    std::vector<Request> requests;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      float* const own = data[rank].data();
      requests.push_back(reduces
                             ? ranks[rank]->all_reduce(DType::f32, ReduceOp::sum, own, own, count)
                             : ranks[rank]->broadcast(DType::f32, own, count, 0));
    }
    // Any number of steps in any order: the abort finds the ranks in every phase.
    std::vector<bool> done(ranks.size(), false);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank]->begin(requests[rank]);
    for (std::uint64_t steps = random() % 40; steps > 0; --steps) {
      const std::size_t rank = random() % ranks.size();
      if (!done[rank]) done[rank] = ranks[rank]->engine().step();
    }
    memory.common().abort_word.store(1);
    const auto before = data;
    for (int again = 0; again < 10; ++again) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (done[rank]) continue;
        const bool ended = ranks[rank]->engine().step();
        // A root may have had nothing left to do.
        ASSERT_FALSE(ended && (reduces || rank != 0));
        done[rank] = ended;
      }
    }
    EXPECT_EQ(memory.common().disagreements.load(), 0);
    EXPECT_EQ(data, before);
  }
}

TEST(Engine, AProcessThatWaitsIsStoppedByTheAbortWord) {
  const SharedMemory memory(3, tight());
  const int failed = run_forked(memory, [&](Rank& self) {
    std::vector<float> data(5000, 1.0F);
    Request request = self.all_reduce(DType::f32, ReduceOp::sum, data.data(), data.data(), 5000);
    try {
      self.run(request);
      if (self.rank() == 2) memory.common().abort_word.store(1);
      if (self.rank() != 2) self.run(request);
    } catch (const Stopped&) {
      return;
    }
    if (self.rank() == 2) return;
    throw std::runtime_error("finished without rank 2");
  });
  EXPECT_EQ(failed, 0);
}

TEST(Engine, TuningIsAPureFunctionAndFitsTheLayout) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (int cores = 1; cores <= 64; ++cores) {
      const EngineTuning tuning = engine_tuning(ranks, cores);
      EXPECT_LE(tuning.small_bytes, kSmallBytes);
      EXPECT_LE(tuning.segment_bytes, tuning.ring_bytes);
      EXPECT_EQ(tuning.ring_bytes % kCacheLine, 0u);
      EXPECT_EQ(tuning.segment_bytes % kCacheLine, 0u);
    }
  }
}

}  // namespace
}  // namespace tutti::native::test
