// Every schedule is proven for every shape up to 64 ranks and for larger ones at random, and those
// that depend on hosts for named layouts and random ones; and the prover is shown to reject
// schedules with a step removed, redirected or reordered.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

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

using Layout = std::vector<int>;

constexpr Algorithm kAlgorithms[] = {Algorithm::direct,   Algorithm::exchange, Algorithm::doubling,
                                     Algorithm::binomial, Algorithm::pairwise, Algorithm::ring};

std::vector<Shape> shapes(Op op, int group_size, int root, const Layout& hosts) {
  std::vector<Shape> all;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const bool in_place : {false, true}) {
      if (!has_algorithm(op, algorithm, group_size, in_place)) continue;
      all.push_back({.op = op,
                     .algorithm = algorithm,
                     .group_size = group_size,
                     .root = root,
                     .in_place = in_place,
                     .hosts = hosts});
    }
  }
  return all;
}

void expect_proven(Op op, int group_size, int root, const Layout& hosts = {}) {
  const std::vector<Shape> all = shapes(op, group_size, root, hosts);
  ASSERT_GE(all.size(), 2u) << name_of(op);
  for (const Shape& shape : all) {
    ASSERT_EQ(disprove(shape, make_all(shape)), "")
        << name_of(op) << " " << name_of(shape.algorithm) << " n=" << group_size << " root=" << root
        << " in_place=" << shape.in_place;
  }
}

class Prove : public testing::TestWithParam<Op> {
 protected:
  /// One root is enough where there is none.
  static std::vector<int> roots(int group_size, std::mt19937& random) {
    if (!is_rooted(GetParam())) return {0};
    std::vector<int> all;
    for (int root = 0; root < group_size && group_size <= 16; ++root) all.push_back(root);
    const auto some = static_cast<int>(random() % static_cast<unsigned>(group_size));
    return all.empty() ? std::vector<int>{0, group_size - 1, some} : all;
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, Prove, testing::ValuesIn(kOps),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

TEST_P(Prove, EverySizeTo64) {
  std::mt19937 random(7);
  for (int n = 1; n <= 64; ++n) {
    for (const int root : roots(n, random)) expect_proven(GetParam(), n, root);
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

TEST_P(Prove, Layouts) {
  std::mt19937 random(7);
  const Layout layouts[] = {{0, 0, 1, 1},       {0, 0, 0, 1, 1, 1}, {0, 1, 1, 1},
                            {0, 0, 0, 1, 2, 2}, {0, 1, 0, 1},       {2, 0, 1, 0, 2, 1, 2}};
  for (const Layout& hosts : layouts) {
    const auto n = static_cast<int>(hosts.size());
    for (const int root : roots(n, random)) expect_proven(GetParam(), n, root, hosts);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Prove, RandomLayouts) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 100 && !HasFatalFailure(); ++trial) {
    const unsigned n = 2 + random() % 63, host_count = 1 + random() % n;
    Layout hosts;
    for (unsigned rank = 0; rank < n; ++rank)
      hosts.push_back(static_cast<int>(random() % host_count));
    const int root = is_rooted(GetParam()) ? static_cast<int>(random() % n) : 0;
    expect_proven(GetParam(), static_cast<int>(n), root, hosts);
  }
}

/// How often what goes round enters each host.
std::map<int, int> entries(const Shape& shape, const Layout& hosts) {
  std::map<int, int> entered;
  const std::vector<Schedule> all = make_all(shape);
  std::set<std::pair<int, int>> edges;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const Step& step : all[rank].steps) {
      if (step.kind != Step::Kind::send) continue;
      if (edges.insert({static_cast<int>(rank), step.peer}).second &&
          hosts[rank] != hosts[static_cast<std::size_t>(step.peer)])
        ++entered[hosts[static_cast<std::size_t>(step.peer)]];
    }
  }
  return entered;
}

TEST(Ring, EntersEachHostOnce) {
  const Layout hosts{2, 0, 1, 0, 2, 1, 2};
  const Shape gather{
      .op = Op::all_gather, .algorithm = Algorithm::ring, .group_size = 7, .hosts = hosts};
  EXPECT_EQ(entries(gather, hosts), (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
  for (int root = 0; root < 7; ++root) {
    const Shape spread{.op = Op::broadcast,
                       .algorithm = Algorithm::ring,
                       .group_size = 7,
                       .root = root,
                       .hosts = hosts};
    std::map<int, int> others{{0, 1}, {1, 1}, {2, 1}};
    others.erase(hosts[static_cast<std::size_t>(root)]);
    EXPECT_EQ(entries(spread, hosts), others) << "root " << root;
  }
}

TEST_P(Prove, RejectsAScheduleWithAStepRemoved) {
  for (const int n : {4, 5}) {
    for (const Shape& shape : shapes(GetParam(), n, 2, {})) {
      if (shape.in_place) continue;  // some steps move nothing then
      const std::vector<Schedule> right = make_all(shape);
      int removed = 0;
      for (std::size_t rank = 0; rank < right.size(); ++rank) {
        for (std::size_t step = 0; step < right[rank].steps.size(); ++step) {
          std::vector<Schedule> broken = right;
          Schedule& schedule = broken[rank];
          schedule.steps.erase(schedule.steps.begin() + static_cast<std::ptrdiff_t>(step));
          for (std::uint32_t& end : schedule.round_ends) end -= end > step ? 1 : 0;
          EXPECT_NE(disprove(shape, broken), "")
              << name_of(shape.algorithm) << ": rank " << rank << " without step " << step;
          ++removed;
        }
      }
      EXPECT_GE(removed, n - 1);
    }
  }
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

TEST(ProveRejects, AMessageThatIsReceivedInAnotherRound) {
  // Right as long as one segment is under way.
  const Shape shape{.op = Op::broadcast, .algorithm = Algorithm::ring, .group_size = 3};
  std::vector<Schedule> broken = make_all(shape);
  ASSERT_EQ(broken[2].round_ends.size(), 2u);
  broken[2].round_ends = {1};
  EXPECT_NE(disprove(shape, broken).find("in round"), std::string::npos);
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

TEST(ProveRejects, ASendBehindAReceiveOfItsRound) {
  // Who awaits many looks no further in a round.
  const Shape shape{.op = Op::all_to_all, .group_size = 3};
  std::vector<Schedule> broken = make_all(shape);
  std::vector<Step>& steps = broken[1].steps;
  ASSERT_EQ(steps.back().kind, Step::Kind::recv);
  std::rotate(steps.begin(), steps.end() - 1, steps.end());
  EXPECT_NE(disprove(shape, broken).find("begun to receive"), std::string::npos);
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
