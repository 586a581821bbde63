// What a call is planned to be: from what all ranks share, and never against the numerics.
#include "native/schedule/plan.h"

#include <gtest/gtest.h>

#include "base/of_rank.h"
#include "tutti/error.h"

namespace tutti::native {
namespace {

constexpr std::size_t kFrame = std::size_t{1} << 20;

/// Of ranks that are all on hosts of their own.
class Planned : public testing::Test {
 protected:
  Plan planned(Op op, int ranks, std::size_t bytes, DType dtype = DType::f32,
               ReduceOp::Kind reduce = ReduceOp::Kind::sum) {
    hosts_.clear();
    for (int rank = 0; rank < ranks; ++rank) hosts_.push_back(rank);
    const Call call{.op = op,
                    .dtype = dtype,
                    .reduce = reduce,
                    .bytes = bytes,
                    .group_size = ranks,
                    .hosts = hosts_};
    return plan(call, table_, kFrame);
  }
  Table table_ = make_table({});

 private:
  std::vector<int> hosts_;
};

TEST_F(Planned, TwoRanksExchangeFewBytes) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{1} << 18}) {
    EXPECT_EQ(planned(Op::all_reduce, 2, bytes).algorithm, Algorithm::exchange);
    EXPECT_EQ(planned(Op::all_reduce, 2, bytes, DType::bf16, ReduceOp::Kind::avg).algorithm,
              Algorithm::exchange);
  }
}

TEST_F(Planned, LargeOnesMoveFewBytes) {
  EXPECT_EQ(planned(Op::all_reduce, 8, 64 << 20).algorithm, Algorithm::direct);
  EXPECT_EQ(planned(Op::broadcast, 8, 64 << 20).algorithm, Algorithm::ring);
  EXPECT_EQ(planned(Op::all_gather, 8, 64 << 20).algorithm, Algorithm::ring);
  EXPECT_EQ(planned(Op::reduce, 8, 64 << 20).algorithm, Algorithm::binomial);
  EXPECT_EQ(planned(Op::all_to_all, 8, 64 << 20).algorithm, Algorithm::pairwise);
}

/// Whatever the table says, an operation has what it is planned to go by, and what several ranks
/// combine has the bits of the canonical order.
TEST_F(Planned, IsAlwaysPossible) {
  constexpr Op kOps[] = {Op::broadcast,  Op::all_reduce,     Op::reduce,        Op::gather,
                         Op::all_gather, Op::scatter,        Op::all_to_all,    Op::barrier,
                         Op::scan,       Op::exclusive_scan, Op::reduce_scatter};
  const char* const wishes[] = {"auto",     "direct",   "exchange", "doubling",
                                "binomial", "pairwise", "ring"};
  for (const char* const wish : wishes) {
    table_ = make_table({{"algorithm", wish}});
    for (const Op op : kOps) {
      for (const int ranks : {2, 3, 4, 7, 8, 9, 16, 64}) {
        for (const std::size_t bytes : {0, 64, 10'000, 100'000, 10'000'000}) {
          const Algorithm of_sum = planned(op, ranks, bytes).algorithm;
          EXPECT_TRUE(has_algorithm(op, of_sum, ranks, false)) << name_of(op) << name_of(of_sum);
          const Algorithm others[] = {
              planned(op, ranks, bytes, DType::f16).algorithm,
              planned(op, ranks, bytes, DType::f64, ReduceOp::Kind::avg).algorithm,
              planned(op, ranks, bytes, DType::f32, ReduceOp::Kind::premul_sum).algorithm};
          for (const Algorithm each : others) {
            EXPECT_TRUE(has_algorithm(op, each, ranks, false));
            EXPECT_FALSE(combines_parts(op, each)) << name_of(op) << name_of(each);
          }
        }
      }
    }
  }
}

TEST_F(Planned, WishesAreForThoseThatCan) {
  table_ = make_table({{"algorithm", "ring"}, {"segment_bytes", "4KiB"}});
  EXPECT_EQ(planned(Op::all_gather, 4, 8).algorithm, Algorithm::ring);
  EXPECT_EQ(planned(Op::all_reduce, 4, 64 << 20).algorithm, Algorithm::direct);
  EXPECT_EQ(planned(Op::all_reduce, 4, 64 << 20).cut.segment_bytes, 4096u);
  table_ = make_table({{"segment_bytes", "1GiB"}});
  EXPECT_EQ(planned(Op::all_reduce, 4, 64 << 20).cut.segment_bytes, kFrame);
  table_ = make_table({{"segment_bytes", "1"}});
  EXPECT_GE(planned(Op::all_reduce, 4, 64 << 20).cut.segment_bytes, size_of(DType::complex128));
}

TEST_F(Planned, SeveralSegmentsAreUnderWayBetweenHosts) {
  EXPECT_GT(planned(Op::all_reduce, 2, 64 << 20).cut.depth, 1u);
  const Call here{.op = Op::all_gather, .bytes = 64 << 20, .group_size = 4};
  const Plan on_one_host = plan(here, make_table({}), kFrame);
  EXPECT_EQ(on_one_host.algorithm, Algorithm::direct);
  EXPECT_EQ(on_one_host.cut.depth, 1u);
  EXPECT_EQ(on_one_host.cut.segment_bytes, kFrame);
}

TEST_F(Planned, UnevenCallsDependOnNoCount) {
  const std::vector<int> hosts{0, 1, 2};
  for (const std::size_t bytes : {0, 100'000'000}) {
    const Call call{
        .op = Op::all_gather, .bytes = bytes, .uneven = true, .group_size = 3, .hosts = hosts};
    EXPECT_EQ(plan(call, make_table({{"algorithm", "ring"}}), kFrame).algorithm, Algorithm::direct);
  }
}

TEST(Table, SaysWhatDoesNotParse) { EXPECT_THROW(make_table({{"segment_bytes", "much"}}), Error); }

}  // namespace
}  // namespace tutti::native
