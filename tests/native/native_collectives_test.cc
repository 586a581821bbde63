// Every collective over the native backend, ranks as threads: in and out of place, every size that
// cuts chunks and segments differently, blocking and asynchronous, and what happens on
// disagreement.
#include <gtest/gtest.h>

#include <new>
#include <numeric>
#include <optional>
#include <random>

#include "native/operation.h"
#include "native_ranks.h"
#include "ranks.h"

namespace tutti::native {
namespace {

using Ints = std::vector<std::int32_t>;

/// What rank r holds at element i of its input: different everywhere.
std::int32_t value(int rank, std::size_t i) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(rank) + 1) * 2654435761u +
                                   static_cast<std::uint32_t>(i) * 40503u);
}
Ints filled(int rank, std::size_t count) {
  Ints data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  return data;
}
std::int32_t sum_at(int n, std::size_t i) {
  std::uint32_t sum = 0;
  for (int r = 0; r < n; ++r) sum += static_cast<std::uint32_t>(value(r, i));
  return static_cast<std::int32_t>(sum);
}

/// Compares without a million assertions.
template <class Expected>
void expect_all(const Ints& got, std::size_t first, std::size_t count, Expected expected,
                const char* what) {
  for (std::size_t i = 0; i < count; ++i) {
    if (got[first + i] == expected(i)) continue;
    ADD_FAILURE() << what << ": element " << i << " of " << count << " is " << got[first + i]
                  << ", not " << expected(i);
    return;
  }
}

struct Size {
  int n;
  std::size_t count;
};

class Collective : public testing::TestWithParam<int> {
 protected:
  /// Runs `body` for each count, all in one world.
  void for_counts(const std::function<void(NativeRank&, std::size_t)>& body) {
    const auto n = static_cast<std::size_t>(GetParam());
    const std::vector<std::size_t> counts{0, 1, n - 1, n, n + 1, 1000, 50'003};
    on_native_ranks(GetParam(), [&](NativeRank& me) {
      for (const std::size_t count : counts) body(me, count);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, Collective, testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(Collective, Broadcast) {
  for_counts([](NativeRank& me, std::size_t count) {
    for (int root = 0; root < me.n; ++root) {
      Ints data = filled(me.rank, count);
      me.run(me.next(Op::broadcast, count, data.data(), data.data(), root));
      expect_all(
          data, 0, count, [&](std::size_t i) { return value(root, i); }, "broadcast");
    }
  });
}

TEST_P(Collective, AllReduce) {
  for_counts([](NativeRank& me, std::size_t count) {
    const Ints input = filled(me.rank, count);
    Ints output(count), in_place = input;
    me.run(me.next(Op::all_reduce, count, input.data(), output.data()));
    me.run(me.next(Op::all_reduce, count, in_place.data(), in_place.data()));
    expect_all(
        output, 0, count, [&](std::size_t i) { return sum_at(me.n, i); }, "out of place");
    EXPECT_EQ(in_place, output);
    EXPECT_EQ(input, filled(me.rank, count));
  });
}

TEST_P(Collective, Reduce) {
  for_counts([](NativeRank& me, std::size_t count) {
    for (int root = 0; root < me.n; ++root) {
      Ints data = filled(me.rank, count);
      me.run(me.next(Op::reduce, count, data.data(), data.data(), root));
      expect_all(
          data, 0, count,
          [&](std::size_t i) { return me.rank == root ? sum_at(me.n, i) : value(me.rank, i); },
          "reduce");
    }
  });
}

TEST_P(Collective, Gather) {
  for_counts([](NativeRank& me, std::size_t count) {
    for (int root = 0; root < me.n; ++root) {
      const Ints input = filled(me.rank, count);
      Ints output(me.rank == root ? count * static_cast<std::size_t>(me.n) : 0);
      me.run(me.next(Op::gather, count, input.data(), output.data(), root));
      for (int r = 0; me.rank == root && r < me.n; ++r) {
        expect_all(
            output, count * static_cast<std::size_t>(r), count,
            [&](std::size_t i) { return value(r, i); }, "gather");
      }
    }
  });
}

TEST_P(Collective, AllGather) {
  for_counts([](NativeRank& me, std::size_t count) {
    const Ints input = filled(me.rank, count);
    const std::size_t own = count * static_cast<std::size_t>(me.rank);
    Ints output(count * static_cast<std::size_t>(me.n)), in_place(output.size());
    std::copy(input.begin(), input.end(), in_place.begin() + static_cast<std::ptrdiff_t>(own));
    me.run(me.next(Op::all_gather, count, input.data(), output.data()));
    me.run(me.next(Op::all_gather, count, in_place.data() + own, in_place.data()));
    for (int r = 0; r < me.n; ++r) {
      expect_all(
          output, count * static_cast<std::size_t>(r), count,
          [&](std::size_t i) { return value(r, i); }, "all_gather");
    }
    EXPECT_EQ(in_place, output);
  });
}

TEST_P(Collective, Scatter) {
  for_counts([](NativeRank& me, std::size_t count) {
    const std::size_t own = count * static_cast<std::size_t>(me.rank);
    for (int root = 0; root < me.n; ++root) {
      const Ints input =
          filled(me.rank, me.rank == root ? count * static_cast<std::size_t>(me.n) : 0);
      Ints output(count);
      me.run(me.next(Op::scatter, count, input.data(), output.data(), root));
      expect_all(
          output, 0, count, [&](std::size_t i) { return value(root, own + i); }, "scatter");
    }
  });
}

TEST_P(Collective, ReduceScatter) {
  for_counts([](NativeRank& me, std::size_t count) {
    const std::size_t own = count * static_cast<std::size_t>(me.rank);
    Ints data = filled(me.rank, count * static_cast<std::size_t>(me.n));
    Ints output(count);
    me.run(me.next(Op::reduce_scatter, count, data.data(), output.data()));
    expect_all(
        output, 0, count, [&](std::size_t i) { return sum_at(me.n, own + i); }, "outside");
    me.run(me.next(Op::reduce_scatter, count, data.data(), data.data() + own));
    expect_all(
        data, own, count, [&](std::size_t i) { return sum_at(me.n, own + i); }, "in place");
  });
}

TEST_P(Collective, AllToAll) {
  for_counts([](NativeRank& me, std::size_t count) {
    const auto n = static_cast<std::size_t>(me.n);
    Ints data = filled(me.rank, count * n);
    Ints output(count * n);
    me.run(me.next(Op::all_to_all, count, data.data(), output.data()));
    for (int r = 0; r < me.n; ++r) {
      const std::size_t theirs = count * static_cast<std::size_t>(me.rank);
      expect_all(
          output, count * static_cast<std::size_t>(r), count,
          [&](std::size_t i) { return value(r, theirs + i); }, "all_to_all");
    }
    const Ints input = data;
    me.run(me.next(Op::all_to_all, count, data.data(), data.data()));
    EXPECT_EQ(data, output);
    // Each rank has its data where it likes.
    for (const bool first_in_place : {false, true}) {
      Ints mixed = input, apart(count * n);
      const bool in_place = (me.rank == 0) == first_in_place;
      Ints& into = in_place ? mixed : apart;
      me.run(me.next(Op::all_to_all, count, mixed.data(), into.data()));
      EXPECT_EQ(into, output);
    }
  });
}

TEST(Collectives, WithMorePeersThanAPassLooksAt) {
  on_native_ranks(24, [](NativeRank& me) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{20'000}}) {
      const std::size_t all = count * static_cast<std::size_t>(me.n);
      const std::size_t own = count * static_cast<std::size_t>(me.rank);
      const Ints data = filled(me.rank, all);
      Ints output(all), sums(count);
      me.run(me.next(Op::all_to_all, count, data.data(), output.data()));
      for (int r = 0; r < me.n; ++r) {
        expect_all(
            output, count * static_cast<std::size_t>(r), count,
            [&](std::size_t i) { return value(r, own + i); }, "all_to_all");
      }
      me.run(me.next(Op::reduce_scatter, count, data.data(), sums.data()));
      expect_all(
          sums, 0, count, [&](std::size_t i) { return sum_at(me.n, own + i); }, "reduce_scatter");
      me.run(me.next(Op::scan, count, data.data(), sums.data()));
      expect_all(
          sums, 0, count, [&](std::size_t i) { return sum_at(me.rank + 1, i); }, "scan");
    }
  });
}

TEST_P(Collective, BarrierWaitsForEverybody) {
  std::atomic<int> entered{0};
  on_native_ranks(GetParam(), [&](NativeRank& me) {
    for (int round = 1; round <= 50; ++round) {
      entered.fetch_add(1);
      me.run(me.barrier());
      EXPECT_GE(entered.load(), round * me.n);
    }
  });
}

TEST_P(Collective, AsynchronousCallsEndInOrder) {
  on_native_ranks(GetParam(), [](NativeRank& me) {
    constexpr std::size_t kCalls = 40;
    std::vector<Ints> data;
    for (std::size_t c = 0; c < kCalls; ++c) data.push_back(filled(me.rank, c * 700));
    std::vector<Work> works;
    for (std::size_t c = 0; c < kCalls; ++c) {
      works.push_back(
          me.backend.start(me.next(c % 2 == 0 ? Op::all_reduce : Op::broadcast, data[c].size(),
                                   data[c].data(), data[c].data(), c % 2 == 0 ? -1 : 0)));
    }
    works.back().wait();
    for (const Work& work : works) EXPECT_TRUE(work.done());
    for (std::size_t c = 0; c < kCalls; ++c) {
      expect_all(
          data[c], 0, data[c].size(),
          [&](std::size_t i) { return c % 2 == 0 ? sum_at(me.n, i) : value(0, i); },
          "asynchronous");
    }
  });
}

TEST_P(Collective, ABlockingCallOnABusyGroupRunsLast) {
  on_native_ranks(GetParam(), [](NativeRank& me) {
    Ints first = filled(me.rank, 300'000), second = filled(me.rank, 10);
    Work work = me.backend.start(me.next(Op::all_reduce, first.size(), first.data(), first.data()));
    me.run(me.next(Op::all_reduce, second.size(), second.data(), second.data()));
    EXPECT_TRUE(work.wait_for(std::chrono::seconds(20)));  // its thread may yet say so
    expect_all(
        first, 0, first.size(), [&](std::size_t i) { return sum_at(me.n, i); }, "first");
    expect_all(
        second, 0, second.size(), [&](std::size_t i) { return sum_at(me.n, i); }, "second");
  });
}

TEST_P(Collective, TheProgressThreadFinishesWhatNobodyWaitsFor) {
  on_native_ranks(GetParam(), [](NativeRank& me) {
    Ints data = filled(me.rank, 100'000);
    const Work work =
        me.backend.start(me.next(Op::all_gather, data.size() / static_cast<std::size_t>(me.n),
                                 data.data() + data.size() / static_cast<std::size_t>(me.n) *
                                                   static_cast<std::size_t>(me.rank),
                                 data.data()));
    const auto end = Deadline::Clock::now() + std::chrono::seconds(20);
    while (!work.done() && Deadline::Clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(work.done());
  });
}

TEST(NativeMismatch, EveryRankGetsBothSides) {
  on_native_ranks(3, [](NativeRank& me) {
    const Ints data(8);
    Ints output(24);
    const std::size_t count = me.rank == 1 ? 7 : 8;
    const Error error = thrown_by([&] {
      me.run(me.next(Op::all_gather, count, data.data(), output.data()));
      me.run(me.barrier());
    });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
  });
}

TEST(NativeMismatch, TwoRootsAreSeenAtTheNextCall) {
  on_native_ranks(2, [](NativeRank& me) {
    Ints input(4), output(8);
    const Error error = thrown_by([&] {
      // Each is the root and receives from the other: both send nothing and wait, or see the
      // other's frame of the same number.
      me.run(me.next(Op::gather, 4, input.data(), output.data(), me.rank));
      me.run(me.barrier());
    });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
  });
}

TEST(NativeAbort, EndsBlockingAndAsynchronousCalls) {
  on_native_ranks(2, [](NativeRank& me) {
    Ints data(100'000), more(10);
    if (me.rank == 0) {
      Work work = me.backend.start(me.next(Op::gather, 1000, data.data(), data.data() + 5000, 0));
      Work behind = me.backend.start(me.next(Op::all_reduce, 10, more.data(), more.data()));
      Ints inbox(5);
      const Work message = me.backend.start(me.recv_of(inbox, 1));
      const Error error = thrown_by([&] { me.run(me.barrier()); });
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kAborted);
      EXPECT_EQ(thrown_by([&] { behind.wait(); }).code(), ErrorCode::kAborted);
      while (!message.done()) std::this_thread::yield();
      ASSERT_TRUE(message.error());
      EXPECT_EQ(message.error()->code(), ErrorCode::kAborted);
    } else {
      me.backend.abort({ErrorCode::kAborted, "the test wants it", {1}, {}});
    }
  });
}

TEST(NativeDeadline, NamesWhoDidNotEnter) {
  for (const bool asynchronous : {false, true}) {
    std::atomic<bool> failed{false};
    on_native_ranks(3, [&](NativeRank& me) {
      Ints data(10), output(30);
      if (me.rank == 1) {
        while (!failed.load()) std::this_thread::yield();
        const Error error = thrown_by([&] { me.run(me.barrier()); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
        return;
      }
      Request request = me.next(Op::all_gather, 10, data.data(), output.data());
      if (me.rank == 0) {  // alone in a hurry, once rank 2 is in: else that is named as well
        while (me.membership.read_facts().entered(2) == 0 && !me.membership.cause())
          std::this_thread::yield();
        request.arrive = Deadline::after(std::chrono::milliseconds(100));
      }
      const Error error =
          thrown_by([&] { asynchronous ? me.backend.start(request).wait() : me.run(request); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
      EXPECT_EQ(error.context().culprits, std::vector<int>{1}) << error.what();
      failed = true;
    });
  }
}

TEST(NativeDeadline, WaitForSaysWhatIsStillUnderWay) {
  std::atomic<bool> go{false};
  on_native_ranks(2, [&](NativeRank& me) {
    Ints data = filled(me.rank, 1000);
    if (me.rank == 1) {
      while (!go.load()) std::this_thread::yield();
      me.run(me.next(Op::all_reduce, data.size(), data.data(), data.data()));
      return;
    }
    Work work = me.backend.start(me.next(Op::all_reduce, data.size(), data.data(), data.data()));
    EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(20)));
    EXPECT_FALSE(work.done());
    EXPECT_FALSE(work.error());
    go = true;
    EXPECT_TRUE(work.wait_for(std::chrono::seconds(20)));
    me.backend.close(Deadline::after(std::chrono::seconds(1)));
  });
}

TEST(NativeClose, NamesWhatIsStillUnderWay) {
  on_native_ranks(2, [](NativeRank& me) {
    if (me.rank == 1) return me.run(me.barrier());
    Ints data(10);
    Work work = me.backend.start(me.recv_of(data, 1));
    const Error error =
        thrown_by([&] { me.backend.close(Deadline::after(std::chrono::milliseconds(20))); });
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    me.run(me.barrier());
    me.backend.abort({ErrorCode::kAborted, "the end of the test", {0}, {}});
    EXPECT_THROW(work.wait(), Error);
  });
}

TEST(NativeSize, ManyRanksWithSmallRings) {
  on_native_ranks(24, [](NativeRank& me) {
    const auto n = static_cast<std::size_t>(me.n);
    constexpr std::size_t kCount = 5000;  // several segments of every chunk
    const Ints input = filled(me.rank, kCount * n);
    Ints output(kCount * n);
    me.run(me.next(Op::all_to_all, kCount, input.data(), output.data()));
    for (int r = 0; r < me.n; ++r) {
      const std::size_t theirs = kCount * static_cast<std::size_t>(me.rank);
      expect_all(
          output, kCount * static_cast<std::size_t>(r), kCount,
          [&](std::size_t i) { return value(r, theirs + i); }, "all_to_all");
    }
    me.run(me.next(Op::reduce_scatter, kCount, input.data(), output.data()));
    const std::size_t own = kCount * static_cast<std::size_t>(me.rank);
    expect_all(
        output, 0, kCount, [&](std::size_t i) { return sum_at(me.n, own + i); }, "reduce_scatter");
    me.run(me.next(Op::all_gather, kCount, input.data(), output.data()));
    for (int r = 0; r < me.n; ++r) {
      expect_all(
          output, kCount * static_cast<std::size_t>(r), kCount,
          [&](std::size_t i) { return value(r, i); }, "all_gather");
    }
  });
}

TEST(NativeSupport, FollowsTheTable) {
  on_native_ranks(1, [](NativeRank& me) {
    const auto supports = [&](Op op, DType dtype, ReduceOp::Kind kind,
                              Device::Kind device = Device::Kind::cpu) {
      return me.backend.supports({op, dtype, kind, device});
    };
    EXPECT_TRUE(supports(Op::all_reduce, DType::f32, ReduceOp::Kind::avg).yes);
    EXPECT_FALSE(supports(Op::all_reduce, DType::f32, ReduceOp::Kind::bxor).yes);
    EXPECT_FALSE(supports(Op::reduce, DType::i32, ReduceOp::Kind::avg).yes);
    EXPECT_FALSE(supports(Op::all_reduce, DType::i32, ReduceOp::Kind::avg).reason.empty());
    EXPECT_TRUE(supports(Op::broadcast, DType::i32, ReduceOp::Kind::avg).yes);
    EXPECT_FALSE(supports(Op::broadcast, DType::f32, ReduceOp::Kind::sum, Device::Kind::cuda).yes);
    EXPECT_TRUE(me.backend.info().checks_itself);
  });
}

TEST(NativeAllocate, GivesPages) {
  on_native_ranks(1, [](NativeRank& me) {
    for (const std::size_t byte_count : {std::size_t{0}, std::size_t{1}, std::size_t{10'000}}) {
      const Memory memory = me.backend.allocate(byte_count);
      EXPECT_EQ(memory.byte_count, byte_count);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data.get()) % 4096, 0u);
    }
    EXPECT_EQ(thrown_by([&] { me.backend.allocate(SIZE_MAX); }).code(), ErrorCode::kSystem);
  });
}

/// An operation during which the group fails elsewhere, and then this rank's memory is short.
class ShortOfMemory final : public Operation {
 public:
  explicit ShortOfMemory(control::Membership& membership) : membership_(membership) {}
  bool step() override {
    membership_.fail({ErrorCode::kAborted, "somebody aborted the group", {}, {}});
    throw Error(ErrorCode::kSystem, "there is no memory");
  }
  int awaited() const noexcept override { return -1; }

 private:
  control::Membership& membership_;
};

TEST(Native, ThrowsWhatTheGroupHasFailedWith) {
  on_native_ranks(1, [](NativeRank& me) {
    ShortOfMemory operation(me.membership);
    const Request request = me.barrier();
    const Error error =
        thrown_by([&] { run_blocking(operation, request, request, me.membership); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
  });
}

/// What the group fails with when something of rank 1 throws `thrown`.
template <class Thrown>
Error failure_by(const Thrown& thrown) {
  std::optional<Error> failure;
  on_native_ranks(2, [&](NativeRank& me) {
    if (me.membership.rank() == 0) return;
    try {
      throw thrown;
    } catch (const std::exception&) {
      me.membership.fail_with_thrown();
    }
    failure = me.membership.error(nullptr);
  });
  return *failure;
}

TEST(Native, NamesThisRankWhereItsOwnSystemRefuses) {
  const Error refused = failure_by(Error(ErrorCode::kSystem, "there is no memory"));
  EXPECT_EQ(refused.code(), ErrorCode::kSystem);
  EXPECT_EQ(refused.context().culprits, std::vector<int>{1});
  expect_text(refused, "rank 1: there is no memory");
  const Error without_memory = failure_by(std::bad_alloc());
  EXPECT_EQ(without_memory.code(), ErrorCode::kSystem);
  EXPECT_EQ(without_memory.context().culprits, std::vector<int>{1});
  const Error broken =
      failure_by(Error(ErrorCode::kInternal, "rank 0 sent rubbish", {.culprits = {0}}));
  EXPECT_EQ(broken.code(), ErrorCode::kInternal);
  EXPECT_EQ(broken.context().culprits, std::vector<int>{0});
}

}  // namespace
}  // namespace tutti::native
