// Ranks that disagree at random about what they do: every one of them must get kCollectiveMismatch,
// in the operation, at its next call, or when it closes; and none that agree may.
#include <gtest/gtest.h>

#include <random>

#include "native_ranks.h"

namespace tutti::native {
namespace {

struct Call {
  Op op = Op::barrier;
  DType dtype = DType::i32;
  ReduceOp reduce = ReduceOp::sum;
  int root = -1;
  std::size_t count = 0;
};

bool is_rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

constexpr Op kOps[] = {Op::broadcast,  Op::all_reduce, Op::reduce,         Op::gather,
                       Op::all_gather, Op::scatter,    Op::reduce_scatter, Op::all_to_all,
                       Op::barrier,    Op::scan,       Op::exclusive_scan};
constexpr std::size_t kMaxCount = 6000;

Call random_call(std::mt19937& random, int n) {
  Call call;
  call.op = kOps[random() % std::size(kOps)];
  if (call.op == Op::barrier) return call;
  call.count = random() % 2 == 0 ? random() % 20 : random() % kMaxCount;
  if (is_rooted(call.op)) call.root = static_cast<int>(random() % static_cast<unsigned>(n));
  return call;
}

/// The same call with one thing changed that all ranks must agree on.
Call disagreeing(Call call, std::mt19937& random, int n) {
  const Call before = call;
  for (;;) {
    call = before;
    switch (random() % 5) {
      case 0:
        call = random_call(random, n);
        if (call.op == before.op) continue;
        break;
      case 1:
        if (call.op == Op::barrier) continue;
        call.dtype = DType::u32;
        break;
      case 2:
        if (!reduces(call.op)) continue;
        call.reduce = ReduceOp::max;
        break;
      case 3:
        if (!is_rooted(call.op)) continue;
        call.root = (call.root + 1) % n;
        break;
      default:
        if (call.op == Op::barrier) continue;
        call.count += 1;
        break;
    }
    return call;
  }
}

struct Buffers {
  explicit Buffers(int n)
      : input((kMaxCount + 1) * static_cast<std::size_t>(n)), output(input.size()) {}
  std::vector<std::int32_t> input, output;
};

void make(NativeRank& me, const Call& call, Buffers& buffers, bool asynchronous) {
  const Request request = call.op == Op::barrier
                              ? me.barrier()
                              : me.next(call.op, call.dtype, call.count, buffers.input.data(),
                                        buffers.output.data(), call.root, call.reduce);
  asynchronous ? me.backend.start(request).wait() : me.run(request);
}

/// Calls from `calls`; then says goodbye. The error that ended it, if one did.
std::optional<Error> live(NativeRank& me, const std::vector<Call>& calls, bool asynchronous) {
  Buffers buffers(me.n);
  try {
    me.run(me.barrier());  // all have the memory of all
    for (const Call& call : calls) make(me, call, buffers, asynchronous);
    me.close();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(Disagreement, IsSeenByEveryRank) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 150; ++trial) {
    const int n = 2 + static_cast<int>(random() % 3);
    const int odd_one = static_cast<int>(random() % static_cast<unsigned>(n));
    const std::size_t at = random() % 4;
    std::vector<Call> calls;
    for (int i = 0; i < 4; ++i) calls.push_back(random_call(random, n));
    std::vector<Call> other = calls;
    other[at] = disagreeing(calls[at], random, n);
    if (random() % 4 == 0) {  // one more, not one instead
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(at) + 1, calls[at]);
    }
    const bool asynchronous = random() % 2 == 0;
    on_native_ranks(n, [&](NativeRank& me) {
      const std::optional<Error> error = live(me, me.rank == odd_one ? other : calls, asynchronous);
      ASSERT_TRUE(error) << "trial " << trial << ": rank " << me.rank << " noticed nothing";
      EXPECT_EQ(error->code(), ErrorCode::kCollectiveMismatch)
          << "trial " << trial << ": " << error->what();
    });
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Disagreement, OneMoreAtTheEndIsNoDeadlock) {
  for (int trial = 0; trial < 20; ++trial) {
    on_native_ranks(3, [&](NativeRank& me) {
      std::vector<Call> calls(me.rank == trial % 3 ? 3 : 2);
      const std::optional<Error> error = live(me, calls, trial % 2 == 0);
      ASSERT_TRUE(error);
      // Who closes first says so; then the others have left, and that is what is seen.
      EXPECT_TRUE(error->code() == ErrorCode::kCollectiveMismatch ||
                  error->code() == ErrorCode::kClosed)
          << error->what();
    });
  }
}

TEST(Disagreement, IsNeverSeenWhereThereIsNone) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const int n : {2, 3, 4}) {
    std::vector<Call> calls;
    for (int i = 0; i < 3000; ++i) calls.push_back(random_call(random, n));
    on_native_ranks(n, [&](NativeRank& me) {
      const std::optional<Error> error = live(me, calls, n == 3);
      if (error) ADD_FAILURE() << error->what();
    });
  }
}

}  // namespace
}  // namespace tutti::native
