// The seam for backends that check nothing themselves: a native barrier with the same number and
// chain runs on the side before each collective.
#include "group/foreign.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "group/foreign_backend.h"
#include "ranks.h"
#include "tutti/log.h"

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
    expect_text(*outcome.error, "foreign_test.cc:");
  }
}

TEST(Foreign, AgreeingRanksGetTheBackendsResults) {
  expect_success(on_foreign(3, Side::native, [](ProcessGroup& world) {
    EXPECT_EQ(world.backend().name, "foreign");
    EXPECT_EQ(world.all_reduce_value(1.0f), 3.0f);
    float x = static_cast<float>(world.rank());
    world.broadcast(x, {.root = 2});
    EXPECT_EQ(x, 2.0f);
    world.barrier();
  }));
}

TEST(Foreign, AsynchronousOnesLaunchInOrderAroundBlockingOnes) {
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

TEST(Foreign, RanksThatWaitForEachOtherOnTheSideAreTold) {
  for (const bool is_work : {false, true}) {
    const auto outcomes = on_foreign(3, Side::native, [&](ProcessGroup& world) {
      float x = 1, y = 2, z = 3;
      if (world.rank() == 0) {
        if (!is_work) return world.all_reduce(x);
        world.all_reduce(x, async).wait();
      } else if (world.rank() == 1) {
        // Behind one that rank 2 has not called.
        Work first = is_work ? world.all_reduce(x, async) : Work();
        world.all_reduce(y);
      } else {
        is_work ? world.recv(z, 0, async).wait() : void(world.recv(z, 0));
      }
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value()) << outcome.rank << ": " << outcome.failure;
      EXPECT_EQ(outcome.error->code(), ErrorCode::kDeadlock) << outcome.failure;
      EXPECT_EQ(outcome.error->context().culprits, (std::vector<int>{0, 2}));
      expect_text(*outcome.error, "rank 0 waits in all_reduce #1(f32 x 1, sum) at foreign_test.cc");
    }
  }
}

TEST(Foreign, NobodyIsStuckInsideTheBackend) {
  const auto table = std::make_shared<ForeignTable>(2);
  table->stick();
  const auto outcomes = test_kit::collect_ranks(2, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::native);
    float x = 1, y = 2;
    std::thread ender;
    if (me.rank == 0) {
      world.all_reduce(x);
    } else {
      // Its part in the collective is in the backend, whatever its program waits for.
      world.on_failure([](const Error&) {});
      Work reduced = world.all_reduce(x, async);
      Work received = world.recv(y, 0, async);
      EXPECT_FALSE(received.wait_for(std::chrono::milliseconds(100)));
      ender = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1800));
        world.abort("enough");
      });
      try {
        received.wait();
      } catch (const Error&) {
        ender.join();
        throw;
      }
    }
    return std::string();
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value()) << outcome.rank << ": " << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kAborted) << outcome.failure;
  }
}

TEST(Foreign, DisagreementStopsTheCallBeforeTheBackendSeesIt) {
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
TEST(Foreign, WithoutItTheDisagreementGoesUnseen) {
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

TEST(Foreign, AbortReachesTheBackend) {
  const auto table = std::make_shared<ForeignTable>(2);
  table->stick();  // its collectives wait until they are aborted
  const auto outcomes = test_kit::collect_ranks(2, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::native);
    float x = 0;
    Work work = world.all_reduce(x, async);
    if (me.rank == 1) {
      table->await_stuck();
      world.abort("enough");
    }
    work.wait();
    return std::string();
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kAborted);
    expect_text(*outcome.error, "enough");
  }
}

TEST(Foreign, AFailureThatWaitThrowsIsNotLogged) {
  static std::mutex mutex;
  static std::string logged;
  set_log_callback([](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    logged.append(line).append("\n");
  });
  on_foreign(2, Side::native, [](ProcessGroup& world) {
    float x = 1;
    if (world.rank() == 1) {
      world.recv(x, 0);
      world.abort("enough");
      return;
    }
    Work work = world.all_reduce(x, async);
    world.send(x, 1, {.buffered = true});
    EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kAborted);
  });
  set_log_callback({});
  const std::lock_guard lock(mutex);
  EXPECT_NE(logged.find("rank 1 aborted the group: enough"), std::string::npos) << logged;
  EXPECT_EQ(logged.find("nobody waited"), std::string::npos) << logged;
}

TEST(Foreign, WhatOneRanksBackendThrowsEndsTheGroupOnAll) {
  for (const bool asynchronous : {false, true}) {
    const auto table = std::make_shared<ForeignTable>(2);
    table->break_on(1);  // rank 0 is inside meanwhile
    const auto outcomes = test_kit::collect_ranks(2, [&](const Rank& me) {
      ProcessGroup world = make_foreign_world(me, table, Side::native);
      float x = 0;
      asynchronous ? world.all_reduce(x, async).wait() : world.all_reduce(x);
      return std::string();
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
      EXPECT_EQ(outcome.error->code(), ErrorCode::kSystem);
      expect_text(*outcome.error, "out of order");
      EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{1});
    }
  }
}

// ---- messages: matched on the side, moved by the backend

TEST(Foreign, MessagesAreMatchedThenMoved) {
  const auto table = std::make_shared<ForeignTable>(3);
  expect_success(test_kit::collect_ranks(3, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::native);
    if (me.rank != 0) {
      std::vector<float> x(1000, static_cast<float>(me.rank));
      world.send(x, 0, {.tag = me.rank});
      float y = static_cast<float>(10 * me.rank);
      Work second = world.send(y, 0, {.tag = 7}, async);
      Work first = world.send(x, 0, {.tag = 8}, async);
      first.wait();
      second.wait();
    } else {
      std::vector<float> x(1000);
      for (const int from : {2, 1}) {
        world.recv(x, from, {.tag = from});
        EXPECT_EQ(x[999], static_cast<float>(from));
      }
      for (const int from : {1, 2}) {
        float y = 0;
        Work late = world.recv(x, from, {.tag = 8}, async);
        world.recv(y, from, {.tag = 7});
        late.wait();
        EXPECT_EQ(y, static_cast<float>(10 * from));
        EXPECT_EQ(x[0], static_cast<float>(from));
      }
    }
    world.close();
    return std::string();
  }));
  EXPECT_EQ(table->messages(), 6) << "all went through the backend";
}

TEST(Foreign, TheSideCarriesBufferedMessagesAndThoseToOneself) {
  const auto table = std::make_shared<ForeignTable>(2);
  expect_success(test_kit::collect_ranks(2, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::native);
    float x = static_cast<float>(me.rank), y = -1, z = -1;
    world.send(x, 1 - me.rank, {.buffered = true});
    world.recv(y, 1 - me.rank);
    EXPECT_EQ(y, static_cast<float>(1 - me.rank));
    Work to_self = world.send(x, me.rank, {.tag = 3}, async);
    world.recv(z, kAnyRank, {.tag = 3});
    to_self.wait();
    EXPECT_EQ(z, x);
    std::vector<float> large(50'000, x), got(50'000);
    for (int i = 0; i < 100; ++i) world.send(large, 1 - me.rank, {.tag = 4, .buffered = true});
    large.clear();
    world.barrier();
    for (int i = 0; i < 100; ++i) {
      world.recv(got, 1 - me.rank, {.tag = 4});
      EXPECT_EQ(got, std::vector<float>(50'000, static_cast<float>(1 - me.rank)));
    }
    world.close();
    return std::string();
  }));
  EXPECT_EQ(table->messages(), 0);
}

TEST(Foreign, AReceiveFromAnyRankOfAnyCount) {
  const auto table = std::make_shared<ForeignTable>(3);
  expect_success(test_kit::collect_ranks(3, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::native);
    if (me.rank != 0) {
      world.send(std::vector<float>(static_cast<std::size_t>(5000 * me.rank), 1.0f), 0);
    } else {
      int sum = 0;
      for (int i = 0; i < 2; ++i) {
        std::vector<float> x;
        const MessageInfo info = world.recv_resize(x, kAnyRank);
        EXPECT_EQ(x.size(), static_cast<std::size_t>(5000 * info.rank));
        EXPECT_EQ(x, std::vector<float>(info.count, 1.0f));
        sum += info.rank;
      }
      EXPECT_EQ(sum, 3);
      float y = 0;
      const Error nothing = thrown_by(
          [&] { world.recv(y, 1, {.tag = 9, .timeout = std::chrono::milliseconds(20)}); });
      EXPECT_EQ(nothing.code(), ErrorCode::kTimeout);
      Work later = world.recv(y, 1, {.tag = 9, .timeout = std::chrono::milliseconds(20)}, async);
      EXPECT_EQ(thrown_by([&] { later.wait(); }).code(), ErrorCode::kTimeout);
    }
    world.barrier();  // usable all the same
    world.close();
    return std::string();
  }));
}

/// A collective that waits for a rank must not keep that rank's message from being moved.
TEST(Foreign, MessagesAreTakenBackOnTheSide) {
  expect_success(on_foreign(2, Side::native, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::vector<float> out(5000, 1), in(5000);
    if (world.rank() == 0) {
      const auto soon = std::chrono::milliseconds(20);
      const Error error = thrown_by([&] { world.send(out, 1, {.timeout = soon}); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      expect_text(error, "send (rank 0) at foreign_test.cc:");
      expect_text(error,
                  ") has posted no recv with tag 0 for send(f32 x 5000, to 1, tag 0) in 0.02 s; ");
      expect_text(error, ". Nothing was sent and the group stays usable");
      Work late = world.send(out, 1, {.timeout = soon}, async);
      EXPECT_EQ(thrown_by([&] { late.wait(); }).code(), ErrorCode::kTimeout);
    }
    Work recv = world.recv(in, other, {.tag = 8}, async);
    EXPECT_TRUE(recv.cancel());
    EXPECT_EQ(thrown_by([&] { recv.wait(); }).code(), ErrorCode::kCancelled);
    world.barrier();
    out.assign(out.size(), 2);
    EXPECT_EQ(world.sendrecv(out, in, {.to = other, .from = kAnyRank}).rank, other);
    EXPECT_EQ(in, out);
    EXPECT_EQ(world.sendrecv(out, in, {.to = kNoRank, .from = kNoRank}).count, 0u);
  }));
}

TEST(Foreign, MessagesMoveWhileACollectiveWaits) {
  const auto table = std::make_shared<ForeignTable>(2);
  expect_success(test_kit::collect_ranks(2, [&](const Rank& me) {
    ProcessGroup world = make_foreign_world(me, table, Side::native);
    std::vector<float> x(10'000, 1.0f);
    float sum = 1;
    if (me.rank == 0) {
      Work collective = world.all_reduce(sum, async);
      Work message = world.recv(x, 1, async);
      message.wait();
      collective.wait();
    } else {
      world.send(x, 0);
      world.all_reduce(sum);
    }
    EXPECT_EQ(sum, 2.0f);
    world.close();
    return std::string();
  }));
}

TEST(Foreign, CountsThatOnlyTwoRanksShareAreComparedBeforeTheBackendIsCalled) {
  const auto outcomes = on_foreign(3, Side::native, [](ProcessGroup& world) {
    const std::vector<std::size_t> counts = {1, 2, 3};
    std::vector<float> own(world.rank() == 1 ? 3 : counts[static_cast<std::size_t>(world.rank())]);
    std::vector<float> all(6);
    world.gatherv(own, all, counts, {.root = 0}, {"sort.cc", 30 + world.rank()});
    ADD_FAILURE() << "the backend was called";
  });
  for (const Outcome& outcome : outcomes) {
    const std::string rank = std::to_string(&outcome - outcomes.data());
    ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch);
    EXPECT_EQ(outcome.error->context().culprits, (std::vector<int>{0, 1}));
    EXPECT_EQ(std::string(outcome.error->what()),
              "gatherv #1 (rank " + rank + ") at sort.cc:3" + rank +
                  ": rank 1's gatherv #1 at sort.cc:31 sends 3 elements to rank 0, whose gatherv "
                  "#1 at sort.cc:30 has a count of 2 for them. The counts of both ends must agree");
  }
}

TEST(Foreign, SubgroupsHaveTheirOwn) {
  expect_mismatch(on_foreign(3, Side::native,
                             [](ProcessGroup& world) {
                               ProcessGroup group = world.new_group({2, 1, 0});
                               float x = 1;
                               group.broadcast(x, {.root = group.rank() == 0 ? 1 : 2});
                             }),
                  "broadcast");
}

TEST(Foreign, NothingToCheckInAWorldOfOne) {
  expect_success(on_foreign(1, Side::native, [](ProcessGroup& world) {
    EXPECT_EQ(world.all_reduce_value(7.0f), 7.0f);
    float x = 1;
    Work work = world.all_reduce(x, async);
    work.wait();
  }));
}

TEST(Foreign, UnsupportedIsSaidBeforeAnythingHappens) {
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
    expect_text(error, "another thread is in a call on this group (at foreign_test.cc:" +
                           std::to_string(line));
    expect_text(error, ") at foreign_test.cc:" + std::to_string(second_line) + ": ");
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

/// Aborts its group once a recv is posted.
class Saboteur final : public Observer {
 public:
  explicit Saboteur(ProcessGroup& world) : world_(world) {}
  void entered(const Request& request) noexcept override {
    if (request.op == Op::recv) world_.abort("in between");
  }
  void left(const Request&, const Error*) noexcept override {}

 private:
  ProcessGroup& world_;
};

TEST(Observers, AGroupThatFailsBetweenTheTwoMessagesOfSendrecvIsToldOnce) {
  static std::mutex mutex;
  static std::string logged;
  set_log_callback([](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    logged.append(line).append("\n");
  });
  expect_success(test_kit::collect_ranks(1, [](const Rank& me) {
    ProcessGroup world;
    const auto add_native = [](group::Parts& made, const GroupSpec& spec) {
      made.backend = native::make_native(spec);
    };
    world = make_world_on(me, add_native, std::make_shared<Saboteur>(world));
    int x = 1, y = 0;
    const Error error = thrown_by([&] { world.sendrecv(x, y, {.to = 0, .from = 0}); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_EQ(error.context().op, "send");
    return std::string();
  }));
  set_log_callback({});
  const std::lock_guard lock(mutex);
  EXPECT_NE(logged.find("aborted the group: in between"), std::string::npos) << logged;
  EXPECT_EQ(logged.find("nobody waited"), std::string::npos) << logged;
}

}  // namespace
}  // namespace tutti
