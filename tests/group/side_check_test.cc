// The seam for backends that check nothing themselves: a native barrier with the same number and
// chain runs on the side before each collective.
#include "group/side_check.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "group/foreign_backend.h"
#include "ranks.h"

namespace tutti {
namespace {

using test_kit::Outcome;
using test_kit::Rank;

/// Runs `function` on thread-ranks of a foreign world; returns how each rank ended.
std::vector<Outcome> on_foreign(int ranks, Side side,
                                const std::function<void(ProcessGroup&)>& function) {
  const auto table = std::make_shared<ForeignTable>(ranks);
  return test_kit::collect_ranks(ranks, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, side);
    function(world);
    world.close();
    return std::string();
  });
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.failure, "") << outcome.rank;
}

void expect_mismatch(const std::vector<Outcome>& outcomes, const std::string& part) {
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value()) << outcome.rank << ": " << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.failure;
    expect_text(*outcome.error, part);
    expect_text(*outcome.error, "side_check_test.cc:");
  }
}

TEST(SideCheck, AgreeingRanksGetTheBackendsResults) {
  expect_success(on_foreign(3, Side::native, [](ProcessGroup& world) {
    EXPECT_EQ(world.backend().name, "foreign");
    EXPECT_EQ(world.all_reduce_value(1.0f), 3.0f);
    float x = static_cast<float>(world.rank());
    world.broadcast(x, {.root = 2});
    EXPECT_EQ(x, 2.0f);
    world.barrier();
  }));
}

TEST(SideCheck, AsynchronousOnesLaunchInOrderAroundBlockingOnes) {
  expect_success(on_foreign(2, Side::native, [](ProcessGroup& world) {
    float a = 1, b = 2, c = 3, d = 4;
    Work first = world.all_reduce(a, async);
    Work second = world.all_reduce(b, async);
    world.all_reduce(c);
    Work third = world.all_reduce(d, async);
    third.wait();
    second.wait();
    first.wait();
    EXPECT_EQ(a, 2.0f);
    EXPECT_EQ(b, 4.0f);
    EXPECT_EQ(c, 6.0f);
    EXPECT_EQ(d, 8.0f);
    float e = 5;
    world.all_reduce(e, async).detach();  // close ends it
    world.close();
    EXPECT_EQ(e, 10.0f);
  }));
}

TEST(SideCheck, DisagreementStopsTheCallBeforeTheBackendSeesIt) {
  expect_mismatch(on_foreign(2, Side::native,
                             [](ProcessGroup& world) {
                               std::vector<float> x(world.rank() == 0 ? 3 : 4, 1.0f);
                               world.all_reduce(x);
                               ADD_FAILURE() << "wrong data was combined";
                             }),
                  "all_reduce");
  expect_mismatch(on_foreign(2, Side::native,
                             [](ProcessGroup& world) {
                               float x = 1;
                               Work work = world.broadcast(x, {.root = world.rank()}, async);
                               work.wait();
                               ADD_FAILURE() << "wrong data was combined";
                             }),
                  "broadcast");
}

/// The planted defect: without the side group the same program gets wrong sums and no error.
TEST(SideCheck, WithoutItTheDisagreementGoesUnseen) {
  for (const Outcome& outcome : on_foreign(2, Side::none, [](ProcessGroup& world) {
         std::vector<float> x(world.rank() == 0 ? 3 : 4, 1.0f);
         world.all_reduce(x);
         if (world.rank() == 1) {
           EXPECT_EQ(x[3], 1.0f) << "half of a sum";
         }
       })) {
    // close compares the chains all the same.
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch);
  }
}

TEST(SideCheck, AbortReachesTheBackend) {
  const auto outcomes = on_foreign(2, Side::native, [](ProcessGroup& world) {
    float x = 0;
    if (world.rank() == 1) world.abort("enough");
    world.recv(x, 1 - world.rank());  // the foreign recv waits until it is aborted
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kAborted);
    expect_text(*outcome.error, "enough");
  }
}

TEST(SideCheck, SubgroupsHaveTheirOwn) {
  expect_mismatch(on_foreign(3, Side::native,
                             [](ProcessGroup& world) {
                               ProcessGroup group = world.new_group({2, 1, 0});
                               float x = 1;
                               group.broadcast(x, {.root = group.rank() == 0 ? 1 : 2});
                             }),
                  "broadcast");
}

TEST(SideCheck, NothingToCheckInAWorldOfOne) {
  expect_success(on_foreign(1, Side::native, [](ProcessGroup& world) {
    EXPECT_EQ(world.all_reduce_value(7.0f), 7.0f);
    float x = 1;
    Work work = world.all_reduce(x, async);
    work.wait();
  }));
}

TEST(SideCheck, UnsupportedIsSaidBeforeAnythingHappens) {
  expect_success(on_foreign(2, Side::native, [](ProcessGroup& world) {
    const Error error = thrown_by([&] { (void)world.all_reduce_value(1.0); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    expect_text(error, "foreign knows f32 only");
    EXPECT_EQ(world.all_reduce_value(1.0f), 2.0f);
  }));
}

// ---- threads and observers, which need a group made by hand ------------------------------------

/// Says when the first operation has been entered.
class Doorman final : public Observer {
 public:
  void entered(const Request&) noexcept override {
    if (entries_++ == 0) first_.set_value();
  }
  void left(const Request&, const Error* failure) noexcept override {
    ++exits_;
    failures_ += failure != nullptr ? 1 : 0;
  }
  void wait_for_first() { first_.get_future().wait(); }
  int entries() const { return entries_; }
  int exits() const { return exits_; }
  int failures() const { return failures_; }

 private:
  std::promise<void> first_;
  std::atomic<int> entries_{0}, exits_{0}, failures_{0};
};

TEST(Threads, ASecondOneIsToldBothCallSites) {
  const auto table = std::make_shared<ForeignTable>(2);
  const auto doorman = std::make_shared<Doorman>();
  std::promise<void> refused;
  expect_success(test_kit::collect_ranks(2, [&](const Rank& me) {
    ProcessGroup world =
        make_foreign_world(me, table, Side::native, me.rank == 0 ? doorman : nullptr);
    float x = 1;
    if (me.rank == 1) {
      refused.get_future().wait();
      world.all_reduce(x);
      return std::string();
    }
    int line = 0;
    auto first = std::async(std::launch::async, [&] {
      line = __LINE__ + 1;
      world.all_reduce(x);
    });
    doorman->wait_for_first();
    const Error error = thrown_by([&] { world.barrier(); });
    const int second_line = __LINE__ - 1;
    refused.set_value();
    first.get();
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "another thread is in a call on this group (at side_check_test.cc:" +
                           std::to_string(line));
    expect_text(error, "called at side_check_test.cc:" + std::to_string(second_line));
    EXPECT_EQ(x, 2.0f);
    return std::string();
  }));
}

TEST(Observers, SeeBlockingAndAsynchronousOperationsAndFailures) {
  const auto table = std::make_shared<ForeignTable>(1);
  const auto doorman = std::make_shared<Doorman>();
  expect_success(test_kit::collect_ranks(1, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::none, doorman);
    float x = 1;
    world.all_reduce(x);
    Work work = world.all_reduce(x, async);
    work.wait();
    EXPECT_EQ(doorman->entries(), 2);
    EXPECT_EQ(doorman->exits(), 2);
    world.abort("enough");
    EXPECT_THROW(world.all_reduce(x), Error);  // never entered
    EXPECT_EQ(doorman->failures(), 0);
    return std::string();
  }));
}

}  // namespace
}  // namespace tutti
