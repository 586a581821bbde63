// Groups as users see them: misuse, failure, life and death. Ranks are threads unless said
// otherwise.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks.h"
#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test_kit::As;

// ---- forms ------------------------------------------------------------------------------------

TEST(Forms, AReduceOpStandsForTheOptions) {
  on_ranks(2, [](ProcessGroup& world) {
    const int me = world.rank();
    const auto each = [&](const auto& call, int expected) {
      int x = me + 1;
      call(x);
      EXPECT_EQ(x, expected);
    };
    EXPECT_EQ(world.all_reduce_value(me + 1, ReduceOp::product), 2);
    each([&](int& x) { world.reduce(x, ReduceOp::max); }, 2);
    each([&](int& x) { world.reduce(x, ReduceOp::max, async).wait(); }, 2);
    each([&](int& x) { world.reduce(x, async).wait(); }, me == 0 ? 3 : 2);
    each([&](int& x) { world.scan(x, ReduceOp::product); }, me + 1);
    each([&](int& x) { world.scan(x, async).wait(); }, me == 0 ? 1 : 3);
    each([&](int& x) { world.exclusive_scan(x, ReduceOp::product, async).wait(); }, 1);
    std::array<int, 2> both = {me, me + 10}, other = {};
    int mine = 0;
    world.gather(me, both, async).wait();
    world.scatter(both, mine, async).wait();
    EXPECT_EQ(mine, me);
    world.reduce_scatter(both, mine, ReduceOp::max, async).wait();
    world.all_gather(mine, other, async).wait();
    other[static_cast<std::size_t>(1 - me)] = -1;
    world.all_gather(other, async).wait();
    world.all_to_all(other, async).wait();
    EXPECT_EQ(other[0], other[1]);
  });
}

TEST(Forms, ScalarsListsAndValues) {
  on_ranks(3, [](ProcessGroup& world) {
    const float rank = static_cast<float>(world.rank());
    EXPECT_EQ(world.all_reduce_value(rank), 3.0f);
    EXPECT_EQ(world.all_reduce_value(rank, {.op = ReduceOp::max}), 2.0f);

    std::array<float, 2> mine = {rank, rank * 10}, a = {}, b = {}, c = {};
    const std::array<Buffer, 3> list = {Buffer(a), Buffer(b), Buffer(c)};
    world.all_gather(mine, std::span<const Buffer>(list));
    EXPECT_EQ(b, (std::array<float, 2>{1, 10}));
    EXPECT_EQ(c, (std::array<float, 2>{2, 20}));

    a = b = c = {};
    if (world.rank() == 1) {
      world.gather(mine, std::span<const Buffer>(list), {.root = 1});
      EXPECT_EQ(c, (std::array<float, 2>{2, 20}));
    } else {
      world.gather(mine, std::span<const Buffer>(), {.root = 1});
    }

    std::array<float, 2> got = {};
    a = {1, 2}, b = {3, 4}, c = {5, 6};
    const std::array<ConstBuffer, 3> parts = {ConstBuffer(a), ConstBuffer(b), ConstBuffer(c)};
    const auto given =
        world.rank() == 0 ? std::span<const ConstBuffer>(parts) : std::span<const ConstBuffer>();
    world.scatter(given, got);
    EXPECT_EQ(got, (std::array<float, 2>{rank * 2 + 1, rank * 2 + 2}));
  });
}

TEST(Forms, InPlaceWholeBuffers) {
  on_ranks(2, [](ProcessGroup& world) {
    std::array<int, 4> x = {-1, -1, -1, -1};
    const auto rank = static_cast<std::size_t>(world.rank());
    x[2 * rank] = world.rank();
    x[2 * rank + 1] = world.rank() + 10;
    world.all_gather(x);
    EXPECT_EQ(x, (std::array<int, 4>{0, 10, 1, 11}));
    world.reduce_scatter(x);
    EXPECT_EQ(x[2 * rank], 2 * world.rank());
    std::array<int, 2> y = {world.rank() * 2, world.rank() * 2 + 1};
    world.all_to_all(y);
    EXPECT_EQ(y, (std::array<int, 2>{world.rank(), world.rank() + 2}));
  });
}

TEST(Forms, AsynchronousCallsCompleteInAnyOrderOfWaiting) {
  on_ranks(3, [](ProcessGroup& world) {
    std::vector<int> x(100, world.rank()), y(1, world.rank()), z(5000, 1);
    Work first = world.all_reduce(x, async);
    Work second = world.broadcast(y, {.root = 2}, async);
    Work third = world.all_reduce(z, ReduceOp::sum, async);
    third.wait();
    second.wait();
    first.wait();
    EXPECT_EQ(x[99], 3);
    EXPECT_EQ(y[0], 2);
    EXPECT_EQ(z[4999], 3);
  });
}

TEST(Forms, MessagesWithSeveralTags) {
  on_ranks(2, [](ProcessGroup& world) {
    int one = 0, two = 0;
    if (world.rank() == 0) {
      one = 1, two = 2;
      Work first = world.send(one, 1, {.tag = 1}, async);
      Work second = world.send(two, 1, {.tag = 2}, async);
      first.wait();
      second.wait();
    } else {
      world.recv(two, 0, {.tag = 2});
      world.recv(one, 0, {.tag = 1});
      EXPECT_EQ(one, 1);
      EXPECT_EQ(two, 2);
    }
  });
}

// ---- misuse -----------------------------------------------------------------------------------

TEST(Misuse, EmptyGroupRefusesEverything) {
  ProcessGroup empty;
  EXPECT_FALSE(empty.is_member());
  float x = 0;
  for (const Error& error : {
           thrown_by([&] { empty.all_reduce(x); }),
           thrown_by([&] { (void)empty.rank(); }),
           thrown_by([&] { (void)empty.new_group({0}); }),
       }) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "this group is empty");
  }
  empty.close();  // as of all groups in turn, by who is a member of some
}

TEST(Misuse, BadArgumentsAreRefusedAndLeaveTheGroupUsable) {
  on_ranks(2, [](ProcessGroup& world) {
    std::array<float, 3> x = {1, 1, 1};
    std::array<int, 3> ints = {};
    const int here = __LINE__ + 1;
    const Error root = thrown_by([&] { world.broadcast(x, {.root = 2}); });
    EXPECT_EQ(root.code(), ErrorCode::kInvalidArgument);
    expect_text(root, "broadcast (rank " + std::to_string(world.rank()) + ") at group_test.cc:" +
                          std::to_string(here) + ": root 2 is out of range");
    EXPECT_EQ(root.context().call_site, "group_test.cc:" + std::to_string(here));

    const auto refused = [](const Error& error, const std::string& part) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      expect_text(error, part);
    };
    refused(thrown_by([&] { world.send(x, 7); }), "peer 7 is out of range");
    refused(thrown_by([&] { world.send(x, world.rank()); }),
            "a blocking send to oneself (rank " + std::to_string(world.rank()) +
                ") must find its recv posted, and there is none: call recv with tutti::async "
                "first, or send with tutti::async");
    refused(thrown_by([&] { world.all_reduce(Buffer(nullptr, 3, DType::f32)); }), "input is null");
    refused(thrown_by([&] { world.all_reduce(x, ints); }), "input is of f32, output of i32");
    refused(thrown_by([&] { world.all_gather(x); }), "3 elements cannot be divided");
    refused(thrown_by([&] { world.barrier({.timeout = -1s}); }), "the timeout is negative");
    refused(thrown_by([&] { (void)world.all_reduce(Buffer(nullptr, 3, DType::f32), async); }),
            "input is null");
    const std::array<Buffer, 1> one = {Buffer(x)};
    refused(thrown_by([&] { world.all_gather(x, std::span<const Buffer>(one)); }),
            "the list has 1 buffers, but the group has 2 ranks");
    refused(thrown_by([&] { (void)world.new_group({0, 0}); }), "rank 0 is given twice");
    refused(thrown_by([&] { (void)world.new_group({0, 5}); }), "rank 5 is out of range");

    world.all_reduce(x);
    EXPECT_EQ(x[2], 2.0f);
    EXPECT_FALSE(world.error().has_value());
  });
}

TEST(Misuse, IllegalReduceOperationsAreUnsupportedAndSayWhatToDo) {
  on_ranks(2, [](ProcessGroup& world) {
    int x = 1;
    const Error error = thrown_by([&] { world.all_reduce(x, ReduceOp::avg); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    expect_text(error, "divide");
    float y = 1;
    EXPECT_EQ(thrown_by([&] { world.reduce(y, {.op = ReduceOp::bxor}); }).code(),
              ErrorCode::kUnsupported);
    EXPECT_FALSE(world.supports({Op::all_reduce, DType::f64, ReduceOp::Kind::band, {}}).yes);
    EXPECT_TRUE(world.supports({Op::all_reduce, DType::f64, ReduceOp::Kind::avg, {}}).yes);
    EXPECT_EQ(world.all_reduce_value(1), 2);
  });
}

// ---- failure ----------------------------------------------------------------------------------

TEST(Failure, AnAbortReachesARankThatCloses) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    if (world.rank() == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // after close has begun
        group.abort("enough");
      });
      const Error error = thrown_by([&] { group.close(std::chrono::seconds(20)); });
      other.join();
      EXPECT_EQ(error.code(), ErrorCode::kAborted);
      expect_text(error, "enough");
    } else {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!group.error() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      ASSERT_TRUE(group.error().has_value());
      EXPECT_EQ(group.error()->code(), ErrorCode::kAborted);
    }
  });
}

TEST(Failure, ATemporaryIsNoInputOfAnAsynchronousCall) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<int> all(2);
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { world.send(7, 1 - world.rank(), async).wait(); },
             [&] { world.all_gather(world.rank(), all, async).wait(); },
             [&] { world.all_gather(std::vector<int>{1}, all, async).wait(); },
             [&] { world.all_gather(std::array<int, 1>{1}, all, async).wait(); }}) {
      const Error error = thrown_by(call);
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      expect_text(error, "temporary");
    }
    world.all_gather(world.rank() + 1, all);  // blocking: it lives until the call returns
    EXPECT_EQ(all, (std::vector<int>{1, 2}));
  });
}

TEST(Failure, ItsCallbackMayNotBlock) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    std::promise<std::pair<ErrorCode, std::string>> refused;
    std::vector<Work> works;
    float x = 1, y = 0;
    group.on_failure([&](const Error&) {
      const Error blocking = thrown_by([&] { world.recv(y, 1 - world.rank()); });
      works.push_back(world.send(x, 1 - world.rank(), async));
      works.push_back(world.recv(y, 1 - world.rank(), async));
      refused.set_value({blocking.code(), blocking.what()});
    });
    if (group.rank() == 1) group.abort("for the callbacks");
    const auto [code, text] = refused.get_future().get();
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    EXPECT_NE(text.find("it would block inside a callback of Work::then or on_failure"),
              std::string::npos)
        << text;
    for (Work& work : works) work.wait();
    EXPECT_EQ(y, 1);
  });
}

TEST(Failure, AbortReachesEveryRankWithItsReason) {
  on_ranks(3, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1, 2});
    std::atomic<int> calls{0};
    std::promise<ErrorCode> told;
    group.on_failure([&](const Error& error) {
      if (calls.fetch_add(1) == 0) told.set_value(error.code());
    });
    if (group.rank() == 1) {
      group.abort("out of coffee");
    } else {
      const Error error = thrown_by([&] { group.barrier(); });
      EXPECT_EQ(error.code(), ErrorCode::kAborted);
      expect_text(error, "out of coffee");
    }
    EXPECT_EQ(told.get_future().get(), ErrorCode::kAborted);
    for (int again = 0; again < 2; ++again) {
      const Error later = thrown_by([&] { group.barrier(); });
      EXPECT_EQ(later.code(), ErrorCode::kAborted);
      expect_text(later, "out of coffee");
      EXPECT_EQ(later.context().culprits, std::vector<int>{1});
    }
    ASSERT_TRUE(group.error().has_value());
    EXPECT_EQ(group.error()->code(), ErrorCode::kAborted);
    EXPECT_EQ(thrown_by([&] { group.close(); }).code(), ErrorCode::kAborted);
    // The world lives on, and so do new groups of a failed one.
    world.barrier();
    EXPECT_EQ(calls.load(), 1);
  });
}

TEST(Failure, AnAbortNeedNoReason) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    if (group.rank() == 0) group.abort("");
    const std::string told = thrown_by([&] { group.barrier(); }).what();
    EXPECT_TRUE(told.ends_with(": rank 0 aborted the group")) << told;
  });
}

TEST(Failure, AnExceptionThatUnwindsAbortsAtOnce) {
  const auto outcomes = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    if (me.rank == 0) throw std::runtime_error("a bug of the program");
    const auto begin = std::chrono::steady_clock::now();
    try {
      world.barrier();
    } catch (const Error&) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
      throw;
    }
    return std::string();
  });
  EXPECT_EQ(outcomes[0].failure, "a bug of the program");
  ASSERT_TRUE(outcomes[1].error.has_value());
  EXPECT_EQ(outcomes[1].error->code(), ErrorCode::kAborted);
}

// Rank 1 leaves a group with an exception, which unwinds on rank 0 through the world as well.
TEST(Failure, WhatUnwindsFromAnotherGroupNamesWhoBeganIt) {
  const auto outcomes = test_kit::collect_ranks(3, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    try {
      ProcessGroup pair = world.new_group({0, 1});
      if (me.rank == 1) throw std::runtime_error("a bug of the program");
      if (me.rank == 0) pair.barrier();
    } catch (const std::runtime_error&) {
      if (me.rank == 0) throw;
    }
    world.barrier();
    return std::string();
  });
  for (const int rank : {1, 2}) {
    const auto& error = outcomes[static_cast<std::size_t>(rank)].error;
    ASSERT_TRUE(error.has_value()) << rank;
    EXPECT_EQ(error->code(), ErrorCode::kAborted);
    EXPECT_EQ(error->context().culprits, (std::vector<int>{0, 1}));
    const std::string told = error->what();
    EXPECT_NE(told.find("rank 0 aborted the group: it left the group while an exception unwound; "
                        "its program had been told: "),
              std::string::npos)
        << told;
    EXPECT_NE(told.find("rank 1 aborted the group: it left the group while an exception unwound"),
              std::string::npos)
        << told;
  }
}

TEST(Failure, DisagreementIsNamedOnEveryRank) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    float x = static_cast<float>(group.rank());
    std::optional<Error> error;
    try {
      group.broadcast(x, {.root = group.rank()});  // each believes to be the root
      group.close();
    } catch (const Error& caught) {
      error = caught;
    }
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kCollectiveMismatch);
    expect_text(*error, "group_test.cc:");
  });
}

TEST(Failure, DeadlineNamesWhoHasNotCome) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    std::promise<void> told;
    group.on_failure([&](const Error&) { told.set_value(); });
    if (group.rank() == 0) {
      const Error error = thrown_by([&] { group.barrier({.timeout = 50ms}); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_EQ(error.context().culprits, std::vector<int>{1});
    }
    // Until the news is here rank 1 could still meet rank 0's half of that barrier.
    ASSERT_EQ(told.get_future().wait_for(20s), std::future_status::ready);
    EXPECT_EQ(thrown_by([&] { group.barrier(); }).code(), ErrorCode::kTimeout);
  });
}

TEST(Failure, AnAsynchronousBarrierHasItsOwnDeadline) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    if (group.rank() == 0) {
      Work work = group.barrier({.timeout = 50ms}, async);
      const Error error = thrown_by([&] { work.wait(); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_EQ(error.context().culprits, std::vector<int>{1});
    }
    world.barrier();
  });
}

TEST(Failure, RanksOfASubgroupAreToldWithThoseOfTheWorld) {
  on_ranks(3, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({1, 2});
    if (world.rank() == 1) {
      const Error error = thrown_by([&] { group.barrier({.timeout = 50ms}); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_EQ(error.context().culprits, std::vector<int>{1});
      expect_text(error, "barrier #1 of group world/1-2 (rank 0)");
      expect_text(error, "rank 1 (world rank 2, pid ");
    }
    world.barrier();
  });
}

TEST(Misuse, ADtypeThatDoesNotExistIsRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    float x = 1;
    const Error error = thrown_by([&] { world.all_reduce(Buffer(&x, 1, static_cast<DType>(77))); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "dtype 77 does not exist");
    world.all_reduce(x);  // and the group stays usable
    EXPECT_EQ(x, 2.0f);
  });
}

TEST(Misuse, NewGroupNamesItselfAndTheCall) {
  on_ranks(2, [](ProcessGroup& world) {
    const Error error = thrown_by([&] { world.new_group({0, 5}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.context().op, "new_group");
    expect_text(error, "new_group({0, 5}) (rank");
    expect_text(error, "group_test.cc:");
  });
}

TEST(Life, ACloseThatFailedSaysSoAgain) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    if (group.rank() == 0) {
      const Error first = thrown_by([&] { group.close(50ms); });
      const Error second = thrown_by([&] { group.close(); });
      EXPECT_EQ(first.code(), ErrorCode::kTimeout);
      EXPECT_EQ(second.code(), ErrorCode::kTimeout);
      EXPECT_EQ(second.context().culprits, first.context().culprits);
      EXPECT_NE(second.context().call_site, first.context().call_site) << "each has its own line";
      expect_text(second, "closed before, which failed: close of group world/0-1 (rank 0) at ");
    }
    world.barrier();
  });
}

TEST(Life, AFinishedWorkMayOutliveItsGroup) {
  on_ranks(2, [](ProcessGroup& world) {
    float x = 1;
    Work work;
    {
      ProcessGroup group = world.new_group({0, 1});
      work = group.all_reduce(x, async);
      work.wait();
      group.close();
    }
    EXPECT_TRUE(work.done());
    EXPECT_EQ(x, 2.0f);
  });
}

// ---- life -------------------------------------------------------------------------------------

TEST(Life, NewGroupsKeepTheOrderGivenAndNonMembersGetTheEmptyOne) {
  on_ranks(4, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({3, 1});
    EXPECT_EQ(group.is_member(), world.rank() == 1 || world.rank() == 3);
    if (!group.is_member()) return;
    EXPECT_EQ(group.rank(), world.rank() == 3 ? 0 : 1);
    EXPECT_EQ(group.world_size(), 2);
    EXPECT_EQ(std::vector<int>(group.world_ranks().begin(), group.world_ranks().end()),
              (std::vector<int>{3, 1}));
    int x = world.rank();
    group.broadcast(x);
    EXPECT_EQ(x, 3);
    ProcessGroup alone = group.new_group({1});
    if (alone.is_member()) {
      EXPECT_EQ(alone.world_ranks()[0], 1);
      EXPECT_EQ(alone.all_reduce_value(5), 5);
    }
  });
}

TEST(Life, RanksOfAHostAreCountedInTheGroup) {
  test_kit::RunOptions options;
  options.hosts = {0, 1, 0, 1};
  const auto look_around = [](ProcessGroup& world) {
    const int rank = world.rank();
    EXPECT_EQ(world.local_rank(), rank / 2);
    EXPECT_EQ(world.local_world_size(), 2);
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    EXPECT_EQ(world.host(), name);
    ProcessGroup group = world.new_group({3, 0, 1});
    if (!group.is_member()) return;
    EXPECT_EQ(group.local_rank(), rank == 1 ? 1 : 0);
    EXPECT_EQ(group.local_world_size(), rank == 0 ? 1 : 2);
  };
  on_ranks(4, look_around, options);
}

TEST(Life, TheSameRanksAskedForTwiceAreTwoGroups) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup one = world.new_group({0, 1}), two = world.new_group({0, 1});
    int x = 1, y = 2;
    Work first = one.all_reduce(x, async);
    Work second = two.all_reduce(y, async);
    second.wait();
    first.wait();
    EXPECT_EQ(x, 2);
    EXPECT_EQ(y, 4);
  });
}

TEST(Life, ClosedGroupsRefuseCallsAndCloseTwiceIsFine) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    group.barrier();
    group.close();
    group.close();
    const Error error = thrown_by([&] { group.barrier(); });
    EXPECT_EQ(error.code(), ErrorCode::kClosed);
    EXPECT_EQ(thrown_by([&] { (void)group.new_group({0}); }).code(), ErrorCode::kClosed);
    group.abort("nothing to abort");
    EXPECT_FALSE(group.error().has_value());
  });
}

TEST(Life, CloseNamesWhoHasNotLeft) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    if (group.rank() == 0) {
      const Error error = thrown_by([&] { group.close(50ms); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      expect_text(error, "1");
    }
    world.barrier();
    if (group.rank() == 1) group.close();  // compares with the goodbye it finds
  });
}

TEST(Life, CloseSaysWhereItWasCalledAndThatOperationsAreUnderWay) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    int value = 0;
    Work receive;
    if (group.rank() == 0) {
      receive = group.recv(value, 1, async);
      const Error error = thrown_by([&] { group.close(50ms); });
      expect_text(error, "(rank 0) at group_test.cc:");
      expect_text(error, ": 1 asynchronous operation is still under way: wait for it before");
      expect_text(error, "; rank 0 is in recv");
      EXPECT_NE(error.context().call_site, "");
    }
    world.barrier();
    if (group.rank() == 1) group.send(1, 0);
    receive.wait();
    EXPECT_EQ(value, group.rank() == 0 ? 1 : 0);
  });
}

TEST(Life, TheDestructorIsBounded) {
  on_ranks(2, [](ProcessGroup& world) {
    auto group = std::make_unique<ProcessGroup>(world.new_group({0, 1}));
    if (world.rank() == 0) {
      const auto begin = std::chrono::steady_clock::now();
      group.reset();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
    }
    world.barrier();
  });
}

TEST(Life, MovedFromGroupsAreEmptyAndAssignmentClosesTheOldOne) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup group = world.new_group({0, 1});
    ProcessGroup moved = std::move(group);
    EXPECT_FALSE(group.is_member());  // NOLINT(bugprone-use-after-move): the state is documented
    moved = world.new_group({1, 0});
    EXPECT_EQ(moved.all_reduce_value(1), 2);
  });
}

TEST(Life, GroupsWorkInProcessesToo) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  on_ranks(3,
           [](ProcessGroup& world) {
             EXPECT_EQ(world.all_reduce_value(world.rank()), 3);
             ProcessGroup pair = world.new_group({2, 0});
             if (pair.is_member()) {
               EXPECT_EQ(pair.all_reduce_value(1), 2);
             }
             std::vector<double> x(10'000, world.rank());
             Work work = world.all_reduce(x, async);
             work.wait();
             EXPECT_EQ(x[9999], 3.0);
           },
           {.as = As::processes});
}

}  // namespace
}  // namespace tutti
