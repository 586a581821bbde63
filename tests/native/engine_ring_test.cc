// No rank waits for ever for room in a ring, whatever the sizes and whoever steps next: sequences
// of calls on the engine itself, in which all pairs of sizes follow each other, with every tuning
// there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <tuple>

#include "engine_play.h"
#include "native/arena.h"
#include "tutti/error.h"

namespace tutti::native::test {
namespace {

constexpr int kMostRanks = 64;
constexpr int kMostCores = 64;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

bool full() {
  const char* const wish = std::getenv("TUTTI_TEST_FULL");
  return wish != nullptr && std::string_view(wish) == "1";
}

std::mt19937_64 seeded() {
  const char* given = std::getenv("TUTTI_TEST_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("TUTTI_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return std::mt19937_64(seed);
}

/// Every tuning that `ranks` ranks can have, each once.
std::vector<EngineTuning> tunings(int ranks) {
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> seen;
  std::vector<EngineTuning> all;
  for (int cores = 1; cores <= kMostCores; ++cores) {
    const EngineTuning tuning = engine_tuning(ranks, cores);
    if (seen.emplace(tuning.small_bytes, tuning.segment_bytes, tuning.ring_bytes).second) {
      all.push_back(tuning);
    }
  }
  return all;
}

Call make_call(Op op, std::size_t byte_count, int ranks, std::mt19937_64& random) {
  Call call{.op = op, .byte_count = byte_count, .shift = random()};
  if (op == Op::broadcast) call.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  if (op == Op::all_reduce) call.in_place = random() % 2 == 0;
  return call;
}

// ---- all pairs of sizes ------------------------------------------------------------------------

constexpr std::size_t kScaledRing = 16;          // lines
constexpr std::size_t kSizes = 3 * kScaledRing;  // 1 line to three rings

/// In the same proportions, with a ring of kScaledRing lines.
EngineTuning scaled(const EngineTuning& tuning) {
  const std::size_t by = tuning.ring_bytes / (kScaledRing * kCacheLine);
  return {.small_bytes = tuning.small_bytes / by,
          .segment_bytes = tuning.segment_bytes / by,
          .ring_bytes = tuning.ring_bytes / by};
}

/// A sequence of lines in which every size is followed once by every size.
std::vector<std::size_t> all_pairs() {
  std::vector<std::size_t> lines;
  for (std::size_t first = 1; first <= kSizes; ++first) {
    lines.push_back(first);
    for (std::size_t second = first + 1; second <= kSizes; ++second) {
      lines.push_back(first);
      lines.push_back(second);
    }
  }
  lines.push_back(1);
  return lines;
}

/// Calls of these sizes, not all of them whole lines; a barrier or a few bytes between some.
std::vector<Call> calls_of(const std::vector<std::size_t>& lines, const std::vector<Op>& ops,
                           int ranks, std::mt19937_64& random) {
  std::vector<Call> calls;
  for (const std::size_t count : lines) {
    const std::size_t less = random() % 2 == 0 ? 0 : random() % kCacheLine;
    calls.push_back(
        make_call(ops[random() % ops.size()], count * kCacheLine - less, ranks, random));
    if (random() % 16 == 0) calls.push_back(make_call(Op::barrier, 0, ranks, random));
    if (random() % 16 == 0) calls.push_back(make_call(Op::all_reduce, 8, ranks, random));
  }
  return calls;
}

struct Tally {
  std::size_t sequences = 0, pairs = 0, calls = 0;
  void add(std::size_t pairs_in, std::size_t calls_in) {
    ++sequences;
    pairs += pairs_in;
    calls += calls_in;
  }
  void print() const {
    std::printf("%zu sequences of %zu pairs in all, %zu calls\n", sequences, pairs, calls);
  }
};

/// Plays all pairs with the given operations; returns what went wrong.
std::string play_pairs(int ranks, const EngineTuning& tuning, const std::vector<Op>& ops,
                       Order order, std::mt19937_64& random, Tally& tally,
                       Tuning planted = Tuning::sound) {
  const std::vector<std::size_t> lines = all_pairs();
  Play play(ranks, tuning, kSizes * kCacheLine, planted);
  const std::vector<Call> calls = calls_of(lines, ops, ranks, random);
  tally.add(lines.size() - 1, calls.size());
  return play.run(calls, order, random);
}

const std::vector<Op> kAllReduce{Op::all_reduce}, kBroadcast{Op::broadcast},
    kBoth{Op::all_reduce, Op::broadcast};

TEST(EngineRing, ThereAreAllPairs) {
  const std::vector<std::size_t> lines = all_pairs();
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = 1; i < lines.size(); ++i) pairs.emplace(lines[i - 1], lines[i]);
  EXPECT_EQ(pairs.size(), kSizes * kSizes);
  EXPECT_EQ(lines.size(), kSizes * kSizes + 1);
}

TEST(EngineRing, EveryPairOfSizesOfFewRanksInEveryOrder) {
  auto random = seeded();
  Tally tally;
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (const EngineTuning& tuning : tunings(ranks)) {
      for (const auto& ops : {kAllReduce, kBroadcast, kBoth}) {
        for (const Order order : kOrders) {
          if (kSanitized && ranks > 3) continue;
          ASSERT_EQ(play_pairs(ranks, scaled(tuning), ops, order, random, tally), "")
              << ranks << " ranks, rings of " << tuning.ring_bytes;
        }
      }
    }
  }
  tally.print();
}

/// Whether the default tier has the sequence, which takes its time: each number of ranks with one
/// tuning in turn, and of the largest every fourth.
bool in_default_tier(int ranks, std::size_t tuning, std::size_t tuning_count) {
  if (kSanitized && ranks > 12) return false;
  return (ranks <= 32 || ranks % 4 == 0) &&
         static_cast<std::size_t>(ranks) / 4 % tuning_count == tuning;
}

TEST(EngineRing, EveryPairOfSizesOfManyRanks) {
  auto random = seeded();
  Tally tally;
  for (int ranks = 9; ranks <= kMostRanks; ++ranks) {
    const std::vector<EngineTuning> all = tunings(ranks);
    for (std::size_t index = 0; index < all.size(); ++index) {
      if (!full() && !in_default_tier(ranks, index, all.size())) continue;
      ASSERT_EQ(play_pairs(ranks, scaled(all[index]), kBoth, Order::random, random, tally), "")
          << ranks << " ranks, rings of " << all[index].ring_bytes;
    }
  }
  tally.print();
}

// ---- the real sizes ----------------------------------------------------------------------------

/// Near one of the places at which the engine changes its ways, or anywhere.
std::size_t some_size(const EngineTuning& tuning, std::size_t most, std::mt19937_64& random) {
  const std::size_t ring = tuning.ring_bytes, segment = tuning.segment_bytes;
  const std::size_t thresholds[] = {kLinePayload, tuning.small_bytes, segment,  ring - segment,
                                    ring,         ring + segment,     2 * ring, 3 * ring};
  std::size_t near = thresholds[random() % std::size(thresholds)];
  if (random() % 4 == 0 || near > most) near = random() % std::min(most, 3 * ring);
  const std::size_t around = random() % (4 * kCacheLine);
  return near + around < 2 * kCacheLine ? around : near + around - 2 * kCacheLine;
}

TEST(EngineRing, SizesAroundEveryThresholdOfEveryTuning) {
  auto random = seeded();
  std::size_t tuning_count = 0, call_count = 0;
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (const EngineTuning& tuning : tunings(ranks)) {
      if (kSanitized && ranks > 8) continue;
      // What all ranks move together is bounded: the more ranks, the fewer rings at a time.
      const std::size_t most = (full() ? 64 : 8) * 1024 * 1024 / static_cast<unsigned>(ranks);
      std::vector<Call> calls;
      for (int index = 0; index < 20; ++index) {
        const Op op = random() % 8 == 0   ? Op::barrier
                      : random() % 3 == 0 ? Op::broadcast
                                          : Op::all_reduce;
        calls.push_back(make_call(op, some_size(tuning, most, random), ranks, random));
      }
      Play play(ranks, tuning, std::max(most, std::size_t{64} * 1024) + 4 * kCacheLine);
      ASSERT_EQ(play.run(calls, Order::random, random), "")
          << ranks << " ranks, rings of " << tuning.ring_bytes;
      ++tuning_count;
      call_count += calls.size();
    }
  }
  std::printf("%zu tunings, %zu calls\n", tuning_count, call_count);
}

// ---- what would be wrong -----------------------------------------------------------------------

TEST(EngineRing, EveryTuningIsSoundAndFitsTheArena) {
  for (int ranks = 1; ranks <= static_cast<int>(kMaxEngineRanks); ++ranks) {
    for (int cores = 1; cores <= static_cast<int>(kMaxEngineRanks); ++cores) {
      const EngineTuning tuning = engine_tuning(ranks, cores);
      EXPECT_EQ(why_unsound(tuning), "");
      EXPECT_LE(tuning.ring_bytes, kEngineRingBytes);
      // Several ranks on a core share its cache, up to eight of them.
      const int per_core = (ranks + cores - 1) / cores;
      if (per_core > 1 && per_core <= 8) {
        EXPECT_LE(tuning.ring_bytes * static_cast<std::size_t>(per_core), std::size_t{2} << 20);
      }
    }
  }
}

TEST(EngineRing, AnEngineRefusesAnUnsoundTuning) {
  const auto refused = [](const EngineTuning& tuning, std::size_t ring_bytes) {
    EngineTuning roomy;
    roomy.ring_bytes = ring_bytes;
    const SharedMemory memory(3, roomy);
    struct Silent final : EngineSignals {
      void notify_all() noexcept override {}
      void progressed() noexcept override {}
      void disagree(int) noexcept override {}
      std::byte* open_ring() override { return nullptr; }
    } signals;
    try {
      Engine(memory.view(2), tuning, signals);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto because = [](std::size_t small, std::size_t segment, std::size_t ring,
                          const std::string& why) {
    return "rank 2's engine cannot run with small messages to " + std::to_string(small) +
           " bytes and segments of " + std::to_string(segment) + " in rings of " +
           std::to_string(ring) + ": " + why + ". Please report this";
  };
  EXPECT_EQ(refused({512, 1024, 2048}, 4096), "");
  const std::string two =
      "a ring holds at least two segments, or ranks wait for each other for ever";
  EXPECT_EQ(refused({512, 1024, 1024}, 4096), because(512, 1024, 1024, two));
  EXPECT_EQ(refused({512, 1024, 2048 - 64}, 4096), because(512, 1024, 1984, two));
  const std::string lines = "segments and rings are whole cache lines";
  EXPECT_EQ(refused({512, 0, 4096}, 4096), because(512, 0, 4096, lines));
  EXPECT_EQ(refused({512, 1000, 4096}, 4096), because(512, 1000, 4096, lines));
  EXPECT_EQ(refused({512, 1024, 4000}, 4096), because(512, 1024, 4000, lines));
  EXPECT_EQ(refused({kSmallBytes + 1, 1024, 4096}, 4096),
            because(kSmallBytes + 1, 1024, 4096, "a slot does not hold a small message"));
  EXPECT_EQ(refused({512, 1024, 4096}, 2048), because(512, 1024, 4096, "the rings are shorter"));
}

/// What is proven above is not proven by a proof that finds nothing: with any smaller ring there
/// are sizes with which all ranks wait.
TEST(EngineRing, InARingOfLessThanTwoSegmentsRanksWaitForEver) {
  auto random = seeded();
  for (const int ranks : {2, 3, 5, 9}) {
    for (const std::size_t segment : {4, 8}) {
      // One line less than two segments still works: places are whole lines.
      for (std::size_t ring = segment; ring < 2 * segment - 1; ++ring) {
        const EngineTuning tuning{.small_bytes = 0,
                                  .segment_bytes = segment * kCacheLine,
                                  .ring_bytes = ring * kCacheLine};
        for (const auto& ops : {kAllReduce, kBroadcast}) {
          Tally tally;
          const std::string wrong =
              play_pairs(ranks, tuning, ops, Order::random, random, tally, Tuning::planted);
          EXPECT_EQ(wrong.rfind("nobody can step: ", 0), 0u)
              << ranks << " ranks, " << ring << " lines: " << wrong;
        }
      }
    }
  }
}

/// Five ranks on a core had rings of one segment.
TEST(EngineRing, FiveRanksOnACoreAndTheirRing) {
  auto random = seeded();
  const auto play = [&](const EngineTuning& tuning, Tuning planted,
                        std::initializer_list<Call> calls) {
    return Play(5, tuning, 1'800'000, planted).run(std::vector<Call>(calls), Order::random, random);
  };
  const Call first{.op = Op::all_reduce, .byte_count = 100'000};
  const Call second{.op = Op::all_reduce, .byte_count = 180'000};
  const Call third{.op = Op::broadcast, .byte_count = 100'000, .root = 0};
  const Call fourth{.op = Op::broadcast, .byte_count = 180'000, .root = 0};
  const Call large{.op = Op::all_reduce, .byte_count = 1'600'000};
  EngineTuning one_segment = engine_tuning(5, 1);
  one_segment.segment_bytes = one_segment.ring_bytes;
  for (const auto& calls :
       {std::initializer_list<Call>{first, second}, std::initializer_list<Call>{third, fourth},
        std::initializer_list<Call>{large, large}}) {
    EXPECT_EQ(play(engine_tuning(5, 1), Tuning::sound, calls), "");
    EXPECT_EQ(play(one_segment, Tuning::planted, calls).rfind("nobody can step: ", 0), 0u);
  }
}

}  // namespace
}  // namespace tutti::native::test
