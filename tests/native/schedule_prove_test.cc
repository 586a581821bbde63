// Every schedule is proven for every shape up to 64 ranks and for larger ones at random; and the
// prover is shown to reject schedules with a step removed, redirected or reordered.
#include <gtest/gtest.h>

#include <random>

#include "native/schedule/prove.h"
#include "native/schedule/schedule.h"

namespace tutti::native {
namespace {

constexpr Op kOps[] = {Op::broadcast,  Op::all_reduce, Op::reduce,         Op::gather,
                       Op::all_gather, Op::scatter,    Op::reduce_scatter, Op::all_to_all,
                       Op::barrier,    Op::scan,       Op::exclusive_scan};

bool is_rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

std::vector<Schedule> make_all(Shape shape) {
  std::vector<Schedule> all;
  for (shape.rank = 0; shape.rank < shape.group_size; ++shape.rank) {
    all.push_back(make_schedule(shape));
  }
  return all;
}

void expect_proven(Op op, int group_size, int root) {
  for (const bool in_place : {false, true}) {
    const Shape shape{.op = op, .group_size = group_size, .root = root, .in_place = in_place};
    ASSERT_EQ(disprove(shape, make_all(shape)), "")
        << name_of(op) << " n=" << group_size << " root=" << root << " in_place=" << in_place;
  }
}

class Prove : public testing::TestWithParam<Op> {};
INSTANTIATE_TEST_SUITE_P(Ops, Prove, testing::ValuesIn(kOps),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

TEST_P(Prove, EverySizeTo64) {
  std::mt19937 random(7);
  for (int n = 1; n <= 64; ++n) {
    if (!is_rooted(GetParam())) {
      expect_proven(GetParam(), n, 0);
    } else if (n <= 16) {
      for (int root = 0; root < n; ++root) expect_proven(GetParam(), n, root);
    } else {
      for (const int root : {0, n - 1, static_cast<int>(random() % static_cast<unsigned>(n))}) {
        expect_proven(GetParam(), n, root);
      }
    }
    if (HasFatalFailure()) return;
  }
}

TEST_P(Prove, RandomLargeSizes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 2; ++trial) {
    const int n = 65 + static_cast<int>(random() % 64);
    expect_proven(GetParam(), n, is_rooted(GetParam()) ? static_cast<int>(random() % n) : 0);
  }
}

TEST_P(Prove, RejectsAScheduleWithAStepRemoved) {
  const Shape shape{.op = GetParam(), .group_size = 5, .root = 2};
  const std::vector<Schedule> right = make_all(shape);
  int removed = 0;
  for (std::size_t rank = 0; rank < right.size(); ++rank) {
    for (std::size_t step = 0; step < right[rank].steps.size(); ++step) {
      std::vector<Schedule> broken = right;
      Schedule& schedule = broken[rank];
      schedule.steps.erase(schedule.steps.begin() + static_cast<std::ptrdiff_t>(step));
      for (std::uint32_t& end : schedule.round_ends) end -= end > step ? 1 : 0;
      EXPECT_NE(disprove(shape, broken), "") << "rank " << rank << " without step " << step;
      ++removed;
    }
  }
  EXPECT_GT(removed, 4);
}

TEST(ProveRejects, OperandsOutOfCanonicalOrder) {
  const Shape shape{.op = Op::reduce, .group_size = 4, .root = 0};
  std::vector<Schedule> broken = make_all(shape);
  std::swap(broken[0].operands[1], broken[0].operands[2]);
  EXPECT_NE(disprove(shape, broken).find("output chunk 0"), std::string::npos);
}

TEST(ProveRejects, AScanThatCoversOneRankTooMany) {
  const Shape shape{.op = Op::exclusive_scan, .group_size = 4};
  Shape inclusive = shape;
  inclusive.op = Op::scan;
  EXPECT_NE(disprove(shape, make_all(inclusive)).find("output chunk 0"), std::string::npos);
}

TEST(ProveRejects, AnInPlaceScanWithoutScratch) {
  const Shape shape{.op = Op::scan, .group_size = 3, .in_place = true};
  Shape outside = shape;
  outside.in_place = false;
  EXPECT_NE(disprove(shape, make_all(outside)).find("conflict"), std::string::npos);
}

TEST(ProveRejects, AWrongDestination) {
  const Shape shape{.op = Op::all_to_all, .group_size = 4};
  std::vector<Schedule> broken = make_all(shape);
  for (Step& step : broken[1].steps) {
    if (step.kind == Step::Kind::recv) step.target.chunk = (step.target.chunk + 1) % 4;
  }
  EXPECT_NE(disprove(shape, broken), "");
}

TEST(ProveRejects, InPlaceExchangeWithoutScratch) {
  const Shape shape{.op = Op::all_to_all, .group_size = 3, .in_place = true};
  Shape outside = shape;
  outside.in_place = false;
  EXPECT_NE(disprove(shape, make_all(outside)).find("conflict"), std::string::npos);
}

TEST(ProveRejects, DeadlockUnderZeroBuffering) {
  // Both send first and receive in a later round: works with buffers, must not be accepted.
  const Shape shape{.op = Op::all_gather, .group_size = 2};
  std::vector<Schedule> broken = make_all(shape);
  for (Schedule& schedule : broken) {
    ASSERT_EQ(schedule.steps[0].kind, Step::Kind::send);
    schedule.round_ends.insert(schedule.round_ends.begin(), 1);
  }
  EXPECT_NE(disprove(shape, broken).find("waits for ever"), std::string::npos);
}

TEST(ProveRejects, ABarrierThatMissesSomebody) {
  const Shape shape{.op = Op::barrier, .group_size = 4};
  std::vector<Schedule> broken = make_all(shape);
  for (Schedule& schedule : broken) {
    schedule.steps.resize(2);
    schedule.round_ends.resize(1);
  }
  EXPECT_NE(disprove(shape, broken).find("heard"), std::string::npos);
}

}  // namespace
}  // namespace tutti::native
