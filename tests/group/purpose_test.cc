// Operations that a part of the library does on a user's behalf, and the groups it borrows.
#include "ranks.h"
#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

/// What every rank is told when rank 1 gives its all_reduce another purpose than rank 0.
std::vector<std::string> told_about(const Purpose& of_rank_0, const Purpose& of_rank_1,
                                    std::size_t count_on_rank_1 = 5) {
  const auto body = [&](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    std::vector<float> x(me.rank == 0 ? 5 : count_on_rank_1);
    const Where where{"gan.cc", 17 + me.rank, me.rank == 0 ? &of_rank_0 : &of_rank_1};
    return std::string(thrown_by([&] { world.all_reduce(x, ReduceOp::avg, where); }).what());
  };
  std::vector<std::string> told;
  for (const auto& rank : test_kit::collect_ranks(2, body)) {
    EXPECT_EQ(rank.failure, "");
    told.push_back(rank.result);
  }
  return told;
}

TEST(Purpose, RanksThatDifferInItAreToldBoth) {
  const Purpose one{1, "bucket 1 of 2 of DistributedDataParallel 1 (gan.cc:8)"};
  const Purpose other{2, "bucket 1 of 2 of DistributedDataParallel 2 (gan.cc:9)"};
  const std::string cause =
      "the ranks disagree about operation #1: rank 0 called all_reduce(f32 x 5, avg) for bucket 1 "
      "of 2 of DistributedDataParallel 1 (gan.cc:8) at gan.cc:17; rank 1 called all_reduce(f32 x "
      "5, avg) for bucket 1 of 2 of DistributedDataParallel 2 (gan.cc:9) at gan.cc:18. Every rank "
      "must call the same operations in the same order";
  EXPECT_EQ(told_about(one, other),
            (std::vector<std::string>{
                "all_reduce #1 (rank 0) for " + one.text + " at gan.cc:17: " + cause,
                "all_reduce #1 (rank 1) for " + other.text + " at gan.cc:18: " + cause}));
}

TEST(Purpose, ItsWordsMayDiffer) {
  const Purpose one{1, "bucket 1 of 2 of DistributedDataParallel 1 (gan.cc:8)"};
  const Purpose same{1, "bucket 1 of 2 of DistributedDataParallel 1 (role.cc:80)"};
  for (const std::string& told : told_about(one, same, 6)) {  // the counts differ, so it is shown
    EXPECT_NE(told.find("all_reduce(f32 x 5, avg) for " + one.text), std::string::npos) << told;
    EXPECT_NE(told.find("all_reduce(f32 x 6, avg) for " + same.text), std::string::npos) << told;
  }
  on_ranks(2, [&](ProcessGroup& world) {
    float x = 1;
    world.all_reduce(x, {}, {"gan.cc", 17, world.rank() == 0 ? &one : &same});
    EXPECT_EQ(x, 2);
  });
}

TEST(Purpose, ErrorsOfOneRankNameIt) {
  on_ranks(1, [](ProcessGroup& world) {
    const Purpose purpose{1, "bucket 1 of 2 of DistributedDataParallel 1 (gan.cc:8)"};
    EXPECT_STREQ(thrown_by([&] {
                   world.all_reduce(Buffer(nullptr, 3, DType::f32), {}, {"gan.cc", 17, &purpose});
                 }).what(),
                 "all_reduce (rank 0) for bucket 1 of 2 of DistributedDataParallel 1 (gan.cc:8) at "
                 "gan.cc:17: input is null, but 3 elements are needed.");
  });
}

TEST(BorrowedGroup, FollowsItsGroupAndSaysWhenItIsGone) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<ProcessGroup> groups;
    groups.push_back(world.new_group({0, 1}));
    const detail::BorrowedGroup first(groups[0], {}, "first"), second(groups[0], {}, "second");
    EXPECT_EQ(first.number(), 1);
    EXPECT_EQ(second.number(), 2);
    for (int more = 0; more < 3; ++more) groups.push_back(world.new_group({0, 1}));  // they move
    int sum = world.rank();
    first.lock().all_reduce(sum);
    EXPECT_EQ(sum, 1);
    groups.clear();
    EXPECT_FALSE(first.lock().is_member());
    const Where where{"gan.cc", 8};
    const auto borrow = [&] { detail::BorrowedGroup(ProcessGroup(), where, "EMA"); };
    expect_text(thrown_by(borrow), "EMA at gan.cc:8: this group is empty: ");
  });
}

}  // namespace
}  // namespace tutti
