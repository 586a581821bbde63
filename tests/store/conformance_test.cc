// What every store promises, run over each kind.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "own_store.h"
#include "ranks.h"
#include "stores.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

using MakeStore = std::unique_ptr<test::StoreUnderTest> (*)();
template <class T>
std::unique_ptr<test::StoreUnderTest> make() {
  return std::make_unique<T>();
}

struct Kind {
  const char* name;
  MakeStore make;
};

class StoreConformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    under_test_ = GetParam().make();
    // Connected before threads ask for them.
    for (int rank = 0; rank < 16; ++rank) ranks_.push_back(under_test_->at(rank));
  }
  Store& at(int rank) { return *ranks_.at(static_cast<std::size_t>(rank)); }

  /// Runs `body(rank)` on `count` threads and waits for all.
  template <class Body>
  void on_ranks(int count, Body body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::unique_ptr<test::StoreUnderTest> under_test_;
  std::vector<std::shared_ptr<Store>> ranks_;
};

TEST_P(StoreConformance, SetGetTryGet) {
  at(0).set("a", "1");
  EXPECT_EQ(at(1).get("a"), "1");
  at(1).set("a", std::string("\0\xff\n", 3));
  EXPECT_EQ(at(0).get("a"), std::string("\0\xff\n", 3));
  EXPECT_EQ(at(0).try_get("b"), std::nullopt);
  at(0).set("b", "");
  EXPECT_EQ(at(1).try_get("b"), "");
  EXPECT_EQ(at(1).get("b"), "");
}

TEST_P(StoreConformance, GetWaitsUntilSomebodySets) {
  on_ranks(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_EQ(at(0).get("question", 20s), "answer");
      at(0).set("seen", "");
    } else {
      EXPECT_EQ(at(1).try_get("seen"), std::nullopt);
      at(1).set("question", "answer");
      at(1).get("seen", 20s);
    }
  });
}

TEST_P(StoreConformance, AddCountsAndReadsAsDecimal) {
  EXPECT_EQ(at(0).add("n", 5), 5);
  EXPECT_EQ(at(1).add("n", -7), -2);
  EXPECT_EQ(at(0).get("n"), "-2");
  at(0).set("n", "40");
  EXPECT_EQ(at(1).add("n", 2), 42);
  EXPECT_EQ(at(1).add("fresh", 0), 0);
  EXPECT_EQ(at(1).get("fresh"), "0");
}

TEST_P(StoreConformance, AddRefusesWhatIsNoNumber) {
  at(0).set("word", "seven");
  const Error error = thrown_by([&] { at(1).add("word", 1); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "word");
  expect_text(error, "seven");
  at(0).set("big", "9223372036854775807");
  EXPECT_EQ(thrown_by([&] { at(0).add("big", 1); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(at(0).get("big"), "9223372036854775807");
  at(0).set("spaced", " 1");
  EXPECT_EQ(thrown_by([&] { at(0).add("spaced", 1); }).code(), ErrorCode::kInvalidArgument);
}

TEST_P(StoreConformance, CompareSet) {
  EXPECT_EQ(at(0).compare_set("k", "", "first"), "first");
  EXPECT_EQ(at(1).compare_set("k", "", "second"), "first");
  EXPECT_EQ(at(1).compare_set("k", "first", "third"), "third");
  EXPECT_EQ(at(0).get("k"), "third");
  EXPECT_EQ(at(0).compare_set("absent", "something", "else"), "");
  EXPECT_EQ(at(0).try_get("absent"), std::nullopt);
}

TEST_P(StoreConformance, WaitCheckErase) {
  const std::vector<std::string> both{"x", "y"};
  at(0).set("x", "1");
  EXPECT_FALSE(at(1).check(both));
  at(0).set("y", "2");
  EXPECT_TRUE(at(1).check(both));
  at(1).wait(both, 10s);
  EXPECT_TRUE(at(1).erase("x"));
  EXPECT_FALSE(at(1).erase("x"));
  EXPECT_FALSE(at(0).check(both));
  EXPECT_EQ(at(0).try_get("x"), std::nullopt);
  at(0).wait({}, 0ms);
  EXPECT_TRUE(at(0).check({}));
}

TEST_P(StoreConformance, NumKeysAppendMulti) {
  const std::int64_t before = at(0).num_keys();
  at(0).append("log", "one ");
  at(1).append("log", "two");
  EXPECT_EQ(at(0).get("log"), "one two");
  const std::vector<std::string> keys{"m1", "m2", "m3"};
  const std::vector<std::string> values{"a", "", "c"};
  at(1).multi_set(keys, values);
  EXPECT_EQ(at(0).multi_get(keys), values);
  EXPECT_EQ(at(0).num_keys(), before + 4);
  EXPECT_TRUE(at(0).multi_get({}).empty());
}

TEST_P(StoreConformance, TimeoutsNameTheMissingKeysAndComeInTime) {
  at(0).set("there", "");
  const std::vector<std::string> keys{"there", "late-1", "late-2"};
  Clock::time_point begin;
  const Error error = told_in_time("late-1'", [&](Store::Timeout time) {
    begin = Clock::now();
    at(1).wait(keys, time);
  });
  const auto took = Clock::now() - begin;
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "late-1'");  // after the prefix, if there is one
  expect_text(error, "late-2'");
  EXPECT_EQ(std::string(error.what()).find("there'"), std::string::npos) << error.what();
  EXPECT_GE(took, 100ms);
  EXPECT_LT(took, 30s);
  const Error get =
      told_in_time("never'", [&](Store::Timeout time) { at(0).get("never", time - 100ms); });
  EXPECT_EQ(get.code(), ErrorCode::kTimeout);
  expect_text(get, "never'");
  // A wait that was given up leaves nothing behind: the key works as before.
  at(0).set("late-1", "1");
  EXPECT_EQ(at(1).get("late-1"), "1");
}

TEST_P(StoreConformance, EraseDuringAWaitCounts) {
  // x comes and goes before y comes: the wait must not count x.
  const std::vector<std::string> keys{"x", "y"};
  std::atomic<bool> done{false};
  on_ranks(2, [&](int rank) {
    if (rank == 0) {
      at(0).wait(keys, 20s);
      done = true;
      EXPECT_TRUE(at(0).check(keys));
    } else {
      at(1).set("x", "");
      at(1).erase("x");
      at(1).set("y", "");
      EXPECT_EQ(thrown_by([&] { at(1).wait(keys, 50ms); }).code(), ErrorCode::kTimeout);
      EXPECT_FALSE(done);
      at(1).set("x", "");
    }
  });
}

TEST_P(StoreConformance, LimitsAreNamedAndHarmless) {
  const auto refused = [&](auto call, const char* says) {
    const Error error = thrown_by(call);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, says);
  };
  refused([&] { at(0).set("", "v"); }, "store");
  refused([&] { at(0).set("", "v"); }, "an empty key: give one of at least one byte");
  refused([&] { at(0).set(std::string(4097, 'k'), "v"); }, "4096");
  refused([&] { at(0).set("k", std::string((16 << 20) + 1, 'v')); }, "16777216");
  const std::vector<std::string> many(4097, "k");
  refused([&] { at(0).check(many); }, "4097");
  refused([&] { at(0).get("k", -1ms); }, "-1 ms");
  const std::vector<std::string> two{"a", "b"};
  const std::vector<std::string> one{"1"};
  refused([&] { at(0).multi_set(two, one); }, "2 keys and 1 values");
  refused([&] { at(0).barrier("b", 0); }, "0 callers");
  at(0).set("full", std::string(16 << 20, 'v'));
  refused([&] { at(1).append("full", "x"); }, "16777217");
  EXPECT_EQ(at(1).get("full").size(), std::size_t{16} << 20);
}

TEST_P(StoreConformance, KeysAndValuesOfTheGreatestLength) {
  const std::string key(4000, 'k');  // the limit, less room for a prefix
  std::string value(16 << 20, '\0');
  std::mt19937_64 random(7);
  for (std::size_t i = 0; i < value.size(); i += 4096) value[i] = static_cast<char>(random());
  at(0).set(key, value, 60s);
  EXPECT_TRUE(at(1).get(key, 60s) == value);
}

TEST_P(StoreConformance, AddFromEightThreadsLosesNothing) {
  constexpr int kEach = 500;
  std::array<std::vector<std::int64_t>, 8> sums;
  on_ranks(8, [&](int rank) {
    for (int i = 0; i < kEach; ++i) {
      sums[static_cast<std::size_t>(rank)].push_back(at(rank).add("sum", 1));
    }
  });
  std::set<std::int64_t> all;
  for (const auto& own : sums) {
    EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
    all.insert(own.begin(), own.end());
  }
  EXPECT_EQ(all.size(), 8u * kEach);  // every sum was seen once
  EXPECT_EQ(*all.rbegin(), 8 * kEach);
}

TEST_P(StoreConformance, CompareSetFromEightThreadsHasOneWinner) {
  for (int round = 0; round < 50; ++round) {
    const std::string key = "leader/" + std::to_string(round);
    std::array<std::string, 8> seen;
    on_ranks(8, [&](int rank) {
      seen[static_cast<std::size_t>(rank)] =
          at(rank).compare_set(key, "", "rank " + std::to_string(rank));
    });
    for (const std::string& leader : seen) EXPECT_EQ(leader, seen[0]);
    EXPECT_EQ(at(0).get(key), seen[0]);
  }
}

TEST_P(StoreConformance, CompareSetAsALock) {
  constexpr int kEach = 100;
  std::atomic<int> guarded{0};
  on_ranks(8, [&](int rank) {
    const std::string me = "held by " + std::to_string(rank);
    at(rank).compare_set("lock", "", "free");
    for (int i = 0; i < kEach; ++i) {
      while (at(rank).compare_set("lock", "free", me) != me) {
      }
      const int seen = guarded.load(std::memory_order_relaxed);
      guarded.store(seen + 1, std::memory_order_relaxed);
      at(rank).set("lock", "free");
    }
  });
  EXPECT_EQ(guarded.load(), 8 * kEach);
}

TEST_P(StoreConformance, AWaitingThreadDoesNotHoldUpTheOthers) {
  std::atomic<bool> may_end{false};
  on_ranks(8, [&](int rank) {
    if (rank < 4) {
      EXPECT_EQ(at(rank).get("end", 30s), "now");
      EXPECT_TRUE(may_end);
    } else {
      for (int i = 0; i < 100; ++i) {
        at(rank).set("work/" + std::to_string(rank), std::to_string(i));
        EXPECT_EQ(at(rank).get("work/" + std::to_string(rank)), std::to_string(i));
      }
      if (at(rank).add("finished", 1) == 4) {
        may_end = true;
        at(rank).set("end", "now");
      }
    }
  });
}

TEST_P(StoreConformance, EverybodyReadsWhatEverybodyPublished) {
  constexpr int kRanks = 16;
  on_ranks(kRanks, [&](int rank) {
    std::vector<std::string> keys;
    for (int r = 0; r < kRanks; ++r) keys.push_back("address/" + std::to_string(r));
    at(rank).set(keys[static_cast<std::size_t>(rank)], "of " + std::to_string(rank));
    const std::vector<std::string> values = at(rank).multi_get(keys, 30s);
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(values[static_cast<std::size_t>(r)], "of " + std::to_string(r));
    }
  });
}

TEST_P(StoreConformance, ABarrierServesAThousandTimes) {
  constexpr int kRanks = 4;
  std::atomic<int> arrivals{0};
  const std::int64_t before = at(0).num_keys();
  on_ranks(kRanks, [&](int rank) {
    for (int round = 1; round <= 1000; ++round) {
      ++arrivals;
      at(rank).barrier("again", kRanks, 30s);
      EXPECT_GE(arrivals.load(), round * kRanks);
      EXPECT_LE(arrivals.load(), (round + 1) * kRanks);
    }
  });
  EXPECT_LE(at(0).num_keys(), before + 2);  // a thousand rounds leave a count and a door
}

TEST_P(StoreConformance, ABarrierThatTimesOutSaysHowManyCame) {
  at(0).barrier("alone", 1);
  at(0).barrier("alone for ever", 1, Store::Timeout::max());
  const Error error = told_in_time("1 of 3", [&](Store::Timeout time) {
    at(0).barrier("lonely " + std::to_string(time.count()), 3, time / 2);
  });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "1 of 3");
}

TEST_P(StoreConformance, ABarrierThatHasTimedOutIsNoneAnyMore) {
  const std::int64_t before = at(0).num_keys();
  on_ranks(2, [&](int rank) { at(rank).barrier("late", 2, 30s); });
  EXPECT_EQ(thrown_by([&] { at(0).barrier("late", 2, 50ms); }).code(), ErrorCode::kTimeout);
  for (const int rank : {0, 1, 0, 2, 3}) {
    const Error error = thrown_by([&] { at(rank).barrier("late", 2, 30s); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "late'");
    expect_text(error, "it has timed out earlier");
  }
  EXPECT_LE(at(0).num_keys(), before + 3);
}

TEST_P(StoreConformance, WhoeverWaitsAtABarrierIsToldWhenItHasTimedOut) {
  const Clock::time_point begin = Clock::now();
  on_ranks(3, [&](int rank) {
    while (rank == 2 && at(rank).get("parted/arrived", 60s) != "2") {  // until both wait there
      ASSERT_LT(Clock::now() - begin, 60s);
      std::this_thread::sleep_for(1ms);
    }
    const Error error =
        thrown_by([&] { at(rank).barrier("parted", 4, rank == 2 ? 100ms : 100'000ms); });
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    if (error.code() == ErrorCode::kTimeout) expect_text(error, " of 4 callers had come");
  });
  EXPECT_LT(Clock::now() - begin, 60s);
}

TEST(OwnStore, SevenFunctionsAreEnough) {
  test::OwnStore own;
  Store& store = own;
  const std::vector<std::string> keys = {"a", "b"}, values = {"1", "2"};
  EXPECT_FALSE(store.check(keys));
  EXPECT_EQ(thrown_by([&] { store.wait(keys, 10ms); }).code(), ErrorCode::kTimeout);
  store.multi_set(keys, values);
  EXPECT_TRUE(store.check(keys));
  store.wait(keys);
  EXPECT_EQ(store.multi_get(keys), values);
  EXPECT_EQ(thrown_by([&] { store.multi_set(keys, {}); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { (void)store.num_keys(); }).code(), ErrorCode::kUnsupported);
  std::thread other([&] { own.barrier("door", 2); });
  own.barrier("door", 2);
  other.join();
}

TEST(MemoryStore, ABarrierThatTimesOutAtAnyMomentIsNotPassedAfterwards) {
  const auto store = make_memory_store();
  for (int round = 0; round < 200; ++round) {
    const std::string name = "close " + std::to_string(round);
    std::atomic<bool> is_over{false};
    const auto use = [&](int rank) {
      std::this_thread::sleep_for(std::chrono::microseconds(rank * 500));
      for (int i = 0; i < 4; ++i) {
        const bool was_over = is_over;
        try {
          store->barrier(name, 3, Store::Timeout(1 + (round + rank) % 3));
          EXPECT_FALSE(was_over);
        } catch (const Error& error) {
          is_over = true;
        }
      }
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) threads.emplace_back(use, rank);
    for (std::thread& thread : threads) thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, StoreConformance,
    testing::Values(Kind{"memory", make<test::MemoryUnderTest>},
                    Kind{"server", make<test::ServerUnderTest>},
                    Kind{"shared_connection", make<test::SharedConnectionUnderTest>},
                    Kind{"tcp", make<test::TcpUnderTest>}, Kind{"file", make<test::FileUnderTest>},
                    Kind{"prefix_of_memory", make<test::PrefixUnderTest<test::MemoryUnderTest>>},
                    Kind{"prefix_of_server", make<test::PrefixUnderTest<test::ServerUnderTest>>}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace tutti
