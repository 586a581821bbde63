// Reductions bit by bit against an independent evaluation of the canonical order: every dtype,
// every legal reduce operation, ranks as threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/legality.h"
#include "native_ranks.h"
#include "test_kit/reference.h"

namespace tutti::native {
namespace {

ReduceOp reduce_op(ReduceOp::Kind kind) {
  const ReduceOp ops[] = {ReduceOp::sum,  ReduceOp::product, ReduceOp::min,
                          ReduceOp::max,  ReduceOp::avg,     ReduceOp::premul_sum(0.3),
                          ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};
  return ops[static_cast<std::size_t>(kind)];
}

constexpr Op kReducing[] = {Op::reduce, Op::reduce_scatter, Op::all_reduce, Op::scan,
                            Op::exclusive_scan};

struct Case {
  Op op;
  DType dtype;
  ReduceOp reduce;
  int root;
  std::size_t count;
  bool in_place;
};

/// Runs one case and says what is wrong, if anything.
std::string run_case(NativeRank& me, const Case& it, std::uint64_t seed) {
  const std::size_t parts = it.op == Op::reduce_scatter ? static_cast<std::size_t>(me.n) : 1;
  std::vector<reference::Bytes> inputs;
  for (int r = 0; r < me.n; ++r) {
    inputs.push_back(reference::random_data(it.dtype, it.count * parts, seed * 64 + r));
  }
  reference::Bytes own = inputs[static_cast<std::size_t>(me.rank)];
  const std::size_t chunk_bytes = it.count * size_of(it.dtype);
  reference::Bytes outside(chunk_bytes);
  const std::size_t part = it.op == Op::reduce_scatter ? static_cast<std::size_t>(me.rank) : 0;
  std::byte* output = it.in_place ? own.data() + part * chunk_bytes : outside.data();
  me.run(me.next(it.op, it.dtype, it.count, own.data(), output, it.root, it.reduce));
  const reference::Bytes expected =
      reference::expected(it.op, it.dtype, it.reduce, it.root, me.rank, inputs, it.count);
  if (expected.empty()) return {};
  const std::size_t at = reference::first_difference(it.dtype, output, expected.data(), it.count);
  if (at == it.count) return {};
  return fmt::format("{} of {}, {}, count {}, in place {}: rank {} of {}: element {} (seed {})",
                     name_of(it.op), name_of(it.dtype), name_of(it.reduce.kind()), it.count,
                     it.in_place, me.rank, me.n, at, seed);
}

class Reference : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Reference, testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(Reference, EveryLegalReduction) {
  const std::uint64_t first_seed = std::random_device{}() % 1'000'000;
  on_native_ranks(GetParam(), [&](NativeRank& me) {
    const auto n = static_cast<std::size_t>(me.n);
    std::uint64_t seed = first_seed;
    for (std::size_t d = 0; d < kDTypeCount; ++d) {
      for (std::size_t k = 0; k < kReduceKindCount; ++k) {
        const auto dtype = static_cast<DType>(d);
        const auto kind = static_cast<ReduceOp::Kind>(k);
        if (!why_illegal(dtype, kind).empty()) continue;
        for (const Op op : kReducing) {
          if (!why_illegal(op, dtype, kind).empty()) continue;
          for (const std::size_t count : {std::size_t{0}, std::size_t{1}, n - 1, n + 1, 300 + d}) {
            ++seed;
            const int root = op == Op::reduce ? static_cast<int>(seed % n) : -1;
            const std::string wrong =
                run_case(me, {op, dtype, reduce_op(kind), root, count, seed % 2 == 0}, seed);
            ASSERT_EQ(wrong, "");
          }
        }
      }
    }
  });
}

TEST_P(Reference, SegmentsDoNotChangeBits) {
  on_native_ranks(GetParam(), [](NativeRank& me) {
    std::uint64_t seed = 1;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      for (const Op op : kReducing) {
        const int root = op == Op::reduce ? me.n - 1 : -1;
        const bool scans = op == Op::scan || op == Op::exclusive_scan;
        const ReduceOp reduce = scans ? ReduceOp::sum : ReduceOp::avg;
        ASSERT_EQ(
            run_case(me, {op, dtype, reduce, root, 40'003, reduce.kind() == ReduceOp::Kind::sum},
                     ++seed),
            "");
      }
    }
  });
}

}  // namespace
}  // namespace tutti::native
