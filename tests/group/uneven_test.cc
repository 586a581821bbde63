// The v-variants as users see them: misuse and disagreement. That their results are right is the
// conformance suite's to show.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "ranks.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using Counts = std::vector<std::size_t>;

template <class Call>
void expect_refused(Call call, const std::string& part) {
  const Error error = thrown_by(call);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  expect_text(error, part);
}

TEST(Uneven, WrongCountsAreRefusedAndTheGroupStaysUsable) {
  on_ranks(2, [](ProcessGroup& world) {
    std::array<float, 5> all = {};
    std::array<float, 2> two = {};
    const Buffer own = Buffer(all.data(), world.rank() == 0 ? 2 : 3, DType::f32);
    expect_refused([&] { world.all_gatherv(own, all, Counts{5}); },
                   "output needs one count for each of the 2 ranks of the group, and has 1");
    expect_refused(
        [&] {
          world.all_gatherv(own, all, Counts{2, 2});
        },
        "output has 5 elements, but its counts add up to 4");
    expect_refused([&] { world.all_gatherv(own, all, Counts{4, 1}); }, "but the counts give ");
    expect_refused(
        [&] {
          world.all_gatherv(own, all, Counts{std::size_t(-1), 6});
        },
        "the count may have been negative");
    expect_refused(
        [&] {
          world.all_to_allv(all, Counts{2, 3}, all, Counts{2, 3});
        },
        "pass two buffers that do not overlap");
    std::array<float, 5> other = {};
    expect_refused(
        [&] {
          world.all_to_allv(all, Counts{2, 3}, other, Counts{3, 2});
        },
        "elements from rank " + std::to_string(world.rank()) + " to itself, and ");
    expect_refused(
        [&] {
          world.reduce_scatterv(all, two, Counts{1, 4});
        },
        "output has 2 elements, but the counts give ");
    const std::size_t mine = world.rank() == 0 ? 2 : 3;
    std::vector<float> part(mine, static_cast<float>(world.rank()));
    world.all_gatherv(part, all, Counts{2, 3});
    EXPECT_EQ(all, (std::array<float, 5>{0, 0, 1, 1, 1}));
  });
}

TEST(Uneven, CountsThatMustBeAlikeAndDifferAreADisagreement) {
  test_kit::collect_ranks(2, [](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    std::vector<int> part(me.rank == 0 ? 2 : 3), all(5 + static_cast<std::size_t>(me.rank));
    const Error error = thrown_by([&] {
      world.all_gatherv(part, all, me.rank == 0 ? Counts{2, 3} : Counts{3, 3});
    });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
    EXPECT_EQ(error.context().op, "all_gatherv");
    return {};
  });
}

TEST(Uneven, CountsWithOneSumThatDifferAreNotBlamedOnThePast) {
  test_kit::collect_ranks(2, [](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    std::vector<int> part(me.rank == 0 ? 2 : 4), all(5);
    const Error error = thrown_by([&] {
      world.all_gatherv(part, all, me.rank == 0 ? Counts{2, 3} : Counts{1, 4});
    });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
    expect_text(error, "called all_gatherv(i32 x 5)");
    expect_text(error, "(their counts differ)");
    return {};
  });
}

TEST(Uneven, EndsOfAnEdgeThatDisagreeAreNamedOnBothRanks) {
  for (const std::size_t received : {std::size_t{0}, std::size_t{2}, std::size_t{300'000}}) {
    const auto outcomes = test_kit::collect_ranks(2, [&](const test_kit::Rank& me) -> std::string {
      ProcessGroup world = init_process_group(me.init);
      // Rank 0 sends 3 elements to rank 1, which awaits another number.
      const Counts sends = me.rank == 0 ? Counts{0, 3} : Counts{0, 0};
      const Counts receives = me.rank == 0 ? Counts{0, 0} : Counts{received, 0};
      std::vector<int> in(me.rank == 0 ? 3 : 0), out(me.rank == 0 ? 0 : received);
      const Error error = thrown_by([&] {
        world.all_to_allv(in, sends, out, receives, {}, {"sort.cc", 10 + me.rank});
        world.barrier({}, {"sort.cc", 20});  // the sender may have left by then
      });
      EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
      EXPECT_EQ(error.context().culprits, (std::vector<int>{0, 1})) << "which is wrong, none knows";
      return error.what();
    });
    const std::string cause =
        ": rank 0's all_to_allv #1 at sort.cc:10 sends 3 elements to rank 1, whose all_to_allv #1 "
        "at sort.cc:11 has a count of " +
        std::to_string(received) + " for them. The counts of both ends must agree";
    EXPECT_EQ(outcomes[1].result, "all_to_allv #1 (rank 1) at sort.cc:11" + cause);
    // Rank 0 may learn of it in that call, in the next one, or before that has a number.
    const std::string& told = outcomes[0].result;
    EXPECT_TRUE(told == "all_to_allv #1 (rank 0) at sort.cc:10" + cause ||
                told == "barrier #2 (rank 0) at sort.cc:20" + cause ||
                told == "barrier (rank 0) at sort.cc:20" + cause)
        << told;
  }
}

TEST(Uneven, AsynchronousCallsKeepTheCounts) {
  on_ranks(3, [](ProcessGroup& world) {
    std::vector<int> part(static_cast<std::size_t>(world.rank()), world.rank()), all(3);
    Work work;
    {
      Counts counts = {0, 1, 2};
      work = world.all_gatherv(part, all, counts, {}, async);
      counts.assign(3, 77);
    }
    work.wait();
    EXPECT_EQ(all, (std::vector<int>{1, 2, 2}));
  });
}

}  // namespace
}  // namespace tutti
