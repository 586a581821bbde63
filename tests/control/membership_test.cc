#include "control/membership.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"
#include "control/thread_ranks.h"
#include "op_patience.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

/// Lets all ranks of a test pass once all have come: what one of them then sees of the others is
/// known.
void meet(std::atomic<int>& come, int n) {
  ++come;
  while (come.load() < n) std::this_thread::yield();
}

/// Waits for something that never comes: until the group fails or the patience ends.
WaitResult wait_in_vain(Membership& group, const Request& request, int awaited = -1) {
  OpPatience patience(group, request, awaited);
  return wait(group.waiter(), patience, [] { return false; });
}

std::optional<Error> error_of(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Membership, WaitsAndNotifies) {
  std::vector<std::atomic<std::uint64_t>> flags(4);
  on_thread_ranks(4, [&](Host&, Membership& world) {
    for (std::uint64_t seq = 1; seq <= 200; ++seq) {
      const Request request = collective(Op::barrier, seq);
      world.enter(request);
      flags[static_cast<std::size_t>(world.rank())].store(seq);
      world.notify_all();
      OpPatience patience(world, request, -1);
      const WaitResult result = wait(world.waiter(), patience, [&] {
        for (auto& flag : flags)
          if (flag.load() < seq) return false;
        return true;
      });
      ASSERT_EQ(result, WaitResult::ready);
      world.leave(request);
    }
    world.close(200, collective(Op::barrier, 200).chain, Deadline::after(10s));
  });
}

TEST(Membership, KnowsWhoEnteredOnACore) {
  std::atomic<int> bound{0}, entered{0}, looked{0};
  on_thread_ranks(2, [&](Host&, Membership& world) {
    const int core = ::sched_getcpu();
    EXPECT_FALSE(world.is_on_core(core, 1 - world.rank())) << "it has not entered anything";
    meet(bound, 2);
    cpu_set_t only;
    CPU_ZERO(&only);
    cpu_set_t allowed;
    ::sched_getaffinity(0, sizeof allowed, &allowed);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    CPU_SET(first, &only);
    ::sched_setaffinity(0, sizeof only, &only);
    const Request request = collective(Op::barrier, 1);
    world.enter(request);
    meet(entered, 2);
    EXPECT_TRUE(world.is_on_core(first, 1 - world.rank()));
    EXPECT_TRUE(world.is_on_core(first, -1));
    EXPECT_FALSE(world.is_on_core(first + 1, 1 - world.rank()));
    meet(looked, 2);
    world.leave(request);
    world.close(1, request.chain, Deadline::after(10s));
  });
}

TEST(Membership, AnAbortReachesEveryWait) {
  for (int aborter = 0; aborter < 3; ++aborter) {
    std::atomic<int> callbacks{0};
    std::latch all_called(3);
    on_thread_ranks(3, [&](Host&, Membership& world) {
      world.on_failure([&](const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kAborted);
        ++callbacks;
        all_called.count_down();
      });
      const Request request = collective(Op::all_reduce, 1);
      world.enter(request);
      if (world.rank() == aborter)
        world.fail({ErrorCode::kAborted, "rank 9 called abort: enough", {aborter}, {}});
      EXPECT_EQ(wait_in_vain(world, request), WaitResult::aborted);
      const auto error = error_of([&] { world.throw_cause(request); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::kAborted);
      EXPECT_EQ(error->what(), "all_reduce #1 (rank " + std::to_string(world.rank()) +
                                   ") at train.cc:88: rank 9 called abort: enough");
      EXPECT_EQ(error->context().culprits, std::vector<int>{aborter});
      EXPECT_EQ(error->context().call_site, "train.cc:88");
      world.fail({ErrorCode::kTimeout, "later", {}, {}});
      EXPECT_EQ(world.cause()->code, ErrorCode::kAborted) << "the first cause stays";
      all_called.wait();
    });
    EXPECT_EQ(callbacks.load(), 3);
  }
}

TEST(Membership, AFailureThatAMemberHasPublishedComesBeforeOnesOwn) {
  std::atomic<bool> failed{false};
  on_thread_ranks(2, [&](Host&, Membership& world) {
    if (world.rank() == 0) {
      world.fail({ErrorCode::kAborted, "first", {0}, {}});
      failed.store(true);
    } else {
      while (!failed.load()) std::this_thread::yield();
      // Judged from what the first has left behind, before anything here has heard of it.
      world.fail({ErrorCode::kCollectiveMismatch, "second", {0}, {}});
    }
    EXPECT_EQ(world.cause()->text, "first");
  });
}

TEST(Membership, ManyThatFindACauseAtOnceReportOne) {
  constexpr int kRanks = 4, kRounds = 100;
  std::array<std::atomic<int>, kRounds> come{};
  std::array<std::array<std::string, kRounds>, kRanks> texts;
  on_thread_ranks(kRanks, [&](Host& host, Membership& world) {
    const int rank = world.rank();
    for (int round = 0; round < kRounds; ++round) {
      const GroupId id = 100 + static_cast<GroupId>(round);
      const auto group = host.make_membership({id, "group", all_ranks(kRanks), rank});
      group->meet(nullptr, Where::current(), Deadline::after(20s));
      meet(come[static_cast<std::size_t>(round)], kRanks);
      if (rank > 0) group->fail({ErrorCode::kTimeout, "found by " + std::to_string(rank), {}, {}});
      while (group->abort_word().load() == 0) std::this_thread::yield();
      texts[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round)] = group->cause()->text;
    }
  });
  for (std::size_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(texts[rank], texts[0]);
}

// ---- deadlines

TEST(Membership, ALateMemberIsNamedWithWhatItDoes) {
  std::atomic<int> come{0};
  on_thread_ranks(3, [&](Host&, Membership& world) {
    Request first = collective(Op::broadcast, 1, 10, 0, 70);
    world.enter(first);
    world.leave(first);
    Request second = collective(Op::all_reduce, 2);
    second.arrive = Deadline::after(60ms);
    if (world.rank() != 1) world.enter(second);
    meet(come, 3);
    if (world.rank() != 1) {
      EXPECT_EQ(wait_in_vain(world, second), WaitResult::aborted);
    } else {
      // In user code; it learns of the failure from the others.
      while (world.abort_word().load() == 0) std::this_thread::yield();
    }
    const auto error = error_of([&] { world.throw_cause(second); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kTimeout);
    EXPECT_EQ(error->context().culprits, std::vector<int>{1});
    // The late rank reads it as well: so it says whose wait this was.
    const std::string own =
        "all_reduce #2 (rank " + std::to_string(world.rank()) + ") at train.cc:88: after ";
    EXPECT_TRUE(contains(error->what(), own + "0.06 s in rank ")) << error->what();
    EXPECT_TRUE(
        contains(error->what(), "'s all_reduce #2(f32 x 1000, sum) at train.cc:88: rank 1 (pid "))
        << error->what();
    EXPECT_TRUE(contains(error->what(),
                         "had not entered; it last completed broadcast #1(f32 x 10, "
                         "root 0) at train.cc:70"))
        << error->what();
  });
}

TEST(Membership, ThoseFurthestBehindAreToBlame) {
  // Rank 0 waits in #3 for rank 1, which waits in #2 for rank 2, which is in user code after #1.
  std::atomic<int> entered{0};
  on_thread_ranks(3, [&](Host&, Membership& world) {
    const auto last = static_cast<std::uint64_t>(3 - world.rank());
    Request request;
    for (std::uint64_t seq = 1; seq <= last; ++seq) {
      request = collective(Op::broadcast, seq, 1, 0);
      world.enter(request);
      if (seq < last || world.rank() == 2) world.leave(request);
    }
    meet(entered, 3);
    request.arrive = Deadline::after(world.rank() == 0 ? 50ms : 10s);
    if (world.rank() == 2) {
      while (world.abort_word().load() == 0) std::this_thread::yield();
    } else {
      EXPECT_EQ(wait_in_vain(world, request, world.rank() + 1), WaitResult::aborted);
    }
    EXPECT_EQ(world.cause()->code, ErrorCode::kTimeout);
    EXPECT_EQ(world.cause()->culprits, std::vector<int>{2});
  });
}

TEST(Membership, BytesThatMoveKeepAnOperationAlive) {
  std::atomic<bool> done{false};
  std::atomic<int> entered{0};
  std::atomic<Deadline::Clock::duration> longest{};  // between two that move
  on_thread_ranks(2, [&](Host&, Membership& world) {
    Request request = collective(Op::all_reduce, 1);
    request.stall = Deadline::after(150ms);
    world.enter(request);
    meet(entered, 2);
    if (world.rank() == 0) {
      const auto began = Deadline::Clock::now();
      auto last = began;
      const auto note = [&] {
        const auto now = Deadline::Clock::now();
        longest = std::max(longest.load(), now - last);
        last = now;
      };
      while (Deadline::Clock::now() < began + 500ms) {
        std::this_thread::sleep_for(10ms);
        world.progressed();
        note();
      }
      note();
      done.store(true);
      world.notify_all();
      EXPECT_EQ(wait_in_vain(world, request), WaitResult::aborted);
    } else {
      OpPatience patience(world, request, 0);
      const WaitResult result = wait(world.waiter(), patience, [&] { return done.load(); });
      while (!done.load()) std::this_thread::yield();
      // Else the thread that moves the bytes was held up itself.
      if (longest.load() < 100ms) {
        EXPECT_EQ(result, WaitResult::ready);
      }
      EXPECT_EQ(wait_in_vain(world, request, 0), WaitResult::aborted);
    }
    EXPECT_EQ(world.cause()->code, ErrorCode::kTimeout);
    EXPECT_TRUE(contains(world.cause()->text, "no byte has moved for 0.15 s"))
        << world.cause()->text;
  });
}

TEST(Membership, AReceiveGivesUpAndTheGroupStaysUsable) {
  std::atomic<bool> gave_up{false};
  on_thread_ranks(2, [&](Host&, Membership& world) {
    if (world.rank() == 0) {
      Request request = collective(Op::recv, 0, 10, -1, 55);
      request.message = {.peer = 1, .tag = 7};
      request.arrive = Deadline::after(40ms);
      world.enter(request);
      EXPECT_EQ(wait_in_vain(world, request, 1), WaitResult::gave_up);
      const auto error = error_of([&] { world.throw_gave_up(request); });
      EXPECT_EQ(error->code(), ErrorCode::kTimeout);
      EXPECT_TRUE(contains(error->what(), "recv (rank 0) at train.cc:55: nothing came from rank 1"))
          << error->what();
      EXPECT_TRUE(contains(
          error->what(),
          "with tag 7 for recv(f32 x 10, from 1, tag 7) in 0.04 s; "
          "it has completed no collective yet. Nothing was received and the group stays usable"))
          << error->what();
      world.leave(request);
      gave_up.store(true);
    }
    while (!gave_up.load()) std::this_thread::yield();
    EXPECT_FALSE(world.cause());
    world.close(0, 0, Deadline::after(10s));
  });
}

TEST(Membership, SaysWhoIsAwaitedAndDoublesThePause) {
  static std::mutex mutex;
  static std::vector<std::string> lines;
  set_log_callback([](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  const auto awaited_lines = [] {
    const std::lock_guard lock(mutex);
    std::vector<std::string> found;
    for (const auto& line : lines)
      if (contains(line, "waiting") && contains(line, "all_reduce #1")) found.push_back(line);
    return found;
  };
  Deadline::Clock::duration waited{};
  const net::Fd memory = Board::make(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      HostOptions options;
      options.board_fd = memory.get();
      options.rank = rank;
      options.world_size = 2;
      options.first_line_after = 50ms;
      const auto host = Host::join(options);
      const auto world = host->make_membership({kWorld, "world", all_ranks(2), rank});
      world->meet(nullptr, Where::current(), Deadline::after(20s));
      Request request = collective(Op::all_reduce, 1);
      if (rank == 0) {
        const auto began = Deadline::Clock::now();
        world->enter(request);
        wait_in_vain(*world, request);
        waited = Deadline::Clock::now() - began;
      } else {
        while (awaited_lines().size() < 3 && world->abort_word().load() == 0)
          std::this_thread::sleep_for(1ms);
        world->fail({ErrorCode::kAborted, "enough", {}, {}});
      }
    });
  for (auto& thread : threads) thread.join();
  set_log_callback({});
  // One line each after 50, 100 and 200 ms, or later.
  const auto awaited = awaited_lines();
  ASSERT_GE(awaited.size(), 3u);
  EXPECT_LE(50ms * (1 << (awaited.size() - 1)), waited);
  EXPECT_TRUE(contains(awaited[0], "all_reduce #1 (rank 0) at train.cc:")) << awaited[0];
  EXPECT_TRUE(contains(awaited[0], " s for rank 1 (pid ")) << awaited[0];
  EXPECT_TRUE(contains(awaited[0], "which has completed no collective yet")) << awaited[0];
}

// ---- disagreement

TEST(Membership, AskingFindsADisagreement) {
  std::atomic<int> come{0};
  on_thread_ranks(3, [&](Host&, Membership& world) {
    const Request request = world.rank() == 2 ? collective(Op::broadcast, 1, 1000, 2, 91)
                                              : collective(Op::all_reduce, 1, 1000, -1, 88);
    world.enter(request);
    meet(come, 3);
    EXPECT_EQ(wait_in_vain(world, request), WaitResult::aborted);
    EXPECT_EQ(world.cause()->code, ErrorCode::kCollectiveMismatch);
    EXPECT_EQ(world.cause()->culprits, std::vector<int>{2});
    EXPECT_EQ(
        world.cause()->text,
        "the ranks disagree about operation #1: ranks 0-1 called all_reduce(f32 x 1000, sum) at "
        "train.cc:88; rank 2 called broadcast(f32 x 1000, root 2) at train.cc:91. Every rank must "
        "call the same operations in the same order");
  });
}

TEST(Membership, AskingLooksIntoThePast) {
  // Rank 1 has run ahead by two operations, the first of which was another one.
  std::atomic<bool> ahead{false};
  on_thread_ranks(2, [&](Host&, Membership& world) {
    if (world.rank() == 1) {
      for (std::uint64_t seq = 1; seq <= 3; ++seq) {
        const Request request = collective(Op::broadcast, seq, seq == 1 ? 5 : 6, 1);
        world.enter(request);
        if (seq < 3) world.leave(request);
      }
      ahead.store(true);
      while (world.abort_word().load() == 0) std::this_thread::yield();
    } else {
      while (!ahead.load()) std::this_thread::yield();
      const Request request = collective(Op::broadcast, 1, 6, 1);
      world.enter(request);
      EXPECT_EQ(wait_in_vain(world, request, 1), WaitResult::aborted);
    }
    EXPECT_EQ(world.cause()->code, ErrorCode::kCollectiveMismatch);
    EXPECT_TRUE(contains(world.cause()->text,
                         "operation #1: rank 0 called broadcast(f32 x 6, root 1) at "
                         "train.cc:88; rank 1 called broadcast(f32 x 5, root 1)"))
        << world.cause()->text;
  });
}

TEST(Membership, TwoRootsAreFoundByClosing) {
  // P7's smallest case: neither reads the other, both return, then close.
  on_thread_ranks(2, [&](Host&, Membership& world) {
    const Request request = collective(Op::broadcast, 1, 10, world.rank(), 60 + world.rank());
    world.enter(request);
    world.leave(request);
    const auto error = error_of([&] { world.close(1, request.chain, Deadline::after(10s)); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCollectiveMismatch);
    EXPECT_TRUE(contains(error->what(),
                         "rank 0 called broadcast(f32 x 10, root 0) at train.cc:60; rank 1 "
                         "called broadcast(f32 x 10, root 1) at train.cc:61"))
        << error->what();
  });
}

TEST(Membership, OneOperationMoreIsFoundByClosing) {
  std::atomic<int> come{0};
  on_thread_ranks(3, [&](Host&, Membership& world) {
    const std::uint64_t last = world.rank() == 1 ? 2 : 1;
    Request request;
    for (std::uint64_t seq = 1; seq <= last; ++seq) {
      request = collective(Op::broadcast, seq, 10, 1);
      world.enter(request);
      world.leave(request);
    }
    meet(come, 3);
    const auto error = error_of([&] { world.close(last, request.chain, Deadline::after(10s)); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCollectiveMismatch);
    EXPECT_EQ(error->what(),
              "close of group world (rank " + std::to_string(world.rank()) +
                  "): the ranks did not call the same number of collectives: 2 by rank 1, 1 by "
                  "ranks 0, 2. Rank " +
                  std::to_string(world.cause()->culprits.at(0)) +
                  " left without #2, on rank 1 broadcast(f32 x 10, root 1) at train.cc:88. Every "
                  "rank must call the same operations in the same order");
  });
}

TEST(Membership, WhatAPeerWasSeenToDoIsEnough) {
  on_thread_ranks(2, [&](Host&, Membership& world) {
    const Request request = collective(Op::all_reduce, 1, 8);
    world.enter(request);
    if (world.rank() == 0) {
      Description seen;
      seen.seq = 1;
      seen.chain = 4711;
      seen.count = 9;
      seen.op = static_cast<std::uint8_t>(Op::barrier);
      world.fail_mismatch(request, 1, &seen);
    }
    EXPECT_EQ(wait_in_vain(world, request), WaitResult::aborted);
    EXPECT_EQ(world.cause()->code, ErrorCode::kCollectiveMismatch);
    EXPECT_TRUE(contains(world.cause()->text, "rank 1 called barrier")) << world.cause()->text;
  });
}

// ---- leaving

TEST(Membership, WhoLeftInOrderIsNamedByWhoNeedsHim) {
  on_thread_ranks(2, [&](Host&, Membership& world) {
    Request request = collective(Op::broadcast, 1, 10, 1);
    world.enter(request);
    world.leave(request);
    if (world.rank() == 1) {
      const auto error = error_of([&] { world.close(1, request.chain, Deadline::after(10s)); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::kClosed);
      return;
    }
    request = collective(Op::all_reduce, 2);
    world.enter(request);
    EXPECT_EQ(wait_in_vain(world, request), WaitResult::aborted);
    EXPECT_EQ(world.cause()->code, ErrorCode::kClosed);
    EXPECT_TRUE(contains(world.cause()->text, "rank 1 (pid "));
    EXPECT_TRUE(
        contains(world.cause()->text,
                 ") left the group after 1 collective, while rank 0 is in all_reduce #2(f32 "
                 "x 1000, sum) at train.cc:88. Collectives called so far: 2 by rank 0, 1 by "
                 "rank 1. Every rank must call the same operations before it leaves"))
        << world.cause()->text;
    EXPECT_EQ(world.cause()->culprits, std::vector<int>{1});
  });
}

TEST(Membership, CloseNamesWhoHasNotLeftAndALaterLeaverStillCompares) {
  std::atomic<bool> gave_up{false};
  on_thread_ranks(2, [&](Host&, Membership& world) {
    const Request request = collective(Op::broadcast, 1, 10, world.rank());
    world.enter(request);
    world.leave(request);
    if (world.rank() == 0) {
      const auto error = error_of([&] { world.close(1, request.chain, Deadline::after(50ms)); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::kTimeout);
      EXPECT_EQ(error->context().culprits, std::vector<int>{1});
      EXPECT_TRUE(contains(error->what(),
                           "close of group world (rank 0): rank 1 has not left after "
                           "0.05 s; rank 1 (pid "))
          << error->what();
      gave_up.store(true);
      return;
    }
    while (!gave_up.load()) std::this_thread::yield();
    EXPECT_FALSE(world.cause()) << "that one rank gave up closing concerns nobody else";
    const auto error = error_of([&] { world.close(1, request.chain, Deadline::after(10s)); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCollectiveMismatch);
  });
}

TEST(Membership, ManyGroupsOneAfterAnotherAndAThousandAtATime) {
  on_thread_ranks(2, [&](Host& host, Membership& world) {
    for (GroupId id = 1; id <= 200; ++id) {
      const auto group =
          host.make_membership({id, "one of many", world_ranks({1, 0}), 1 - world.rank()});
      const Request request = collective(Op::barrier, 1);
      group->enter(request);
      group->leave(request);
      group->close(1, request.chain, Deadline::after(10s));
    }
    std::vector<std::unique_ptr<Membership>> groups;
    const auto error = error_of([&] {
      for (GroupId id = 1000; id < 3000; ++id) {
        auto group = host.make_membership({id + static_cast<GroupId>(world.rank()) * 5000,
                                           "too many", world_ranks({world.rank()}), 0});
        group->meet(&world, Where::current(), Deadline::after(10s));
        groups.push_back(std::move(group));
      }
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kSystem);
    EXPECT_EQ(groups.size(), 1023u) << "and the world";
    EXPECT_TRUE(contains(error->what(), "1024 groups")) << error->what();
    for (auto& group : groups) group->close(0, 0, Deadline::after(10s));
  });
}

TEST(Membership, AFailureIsFoundByWhoMakesTheGroupLater) {
  std::atomic<bool> failed{false};
  on_thread_ranks(2, [&](Host& host, Membership& world) {
    if (world.rank() == 0) {
      const auto group = host.make_membership({5, "early", world_ranks({0, 1}), 0});
      group->fail({ErrorCode::kAborted, "stop", {0}, {}});
      failed.store(true);
      while (failed.load()) std::this_thread::yield();
    } else {
      while (!failed.load()) std::this_thread::yield();
      const auto group = host.make_membership({5, "early", world_ranks({0, 1}), 1});
      ASSERT_TRUE(group->cause());
      EXPECT_EQ(group->cause()->text, "stop");
      failed.store(false);
    }
    EXPECT_FALSE(world.cause());
  });
}

/// Its verdict is behind hundreds of others, and whoever entered them has long gone on.
TEST(Membership, AFailureIsFoundByWhoMakesTheGroupMuchLater) {
  constexpr GroupId kFirst = 100, kLast = 699;
  std::atomic<bool> failed{false};
  on_thread_ranks(2, [&](Host& host, Membership& world) {
    const auto make = [&](GroupId id) {
      return host.make_membership({id, "early", world_ranks({0, 1}), world.rank()});
    };
    if (world.rank() == 0) {
      for (GroupId id = kFirst; id <= kLast; ++id)
        make(id)->fail({ErrorCode::kAborted, "stop", {0}, {}});
      failed.store(true);
      while (failed.load()) std::this_thread::yield();
    } else {
      while (!failed.load()) std::this_thread::yield();
      for (const GroupId id : {kFirst, kFirst + 300, kLast}) {
        const auto cause = make(id)->cause();
        ASSERT_TRUE(cause) << id;
        EXPECT_EQ(cause->code, ErrorCode::kAborted);
        EXPECT_EQ(cause->culprits, std::vector<int>{0});
      }
      failed.store(false);
    }
    EXPECT_FALSE(world.cause());
  });
}

// ---- progress

class CountDown final : public Driver {
 public:
  Step step() noexcept override {
    if (left.load() == 0) return Step::idle;
    if (!gate.load()) return Step::waiting;
    left.fetch_sub(1);
    return Step::moved;
  }
  void ask(Deadline::Clock::time_point, Deadline::Clock::time_point*) noexcept override { ++asked; }
  std::atomic<int> left{0};
  std::atomic<bool> gate{false};
  std::atomic<int> asked{0};
};

TEST(Membership, TheProgressThreadDrivesWhatIsQueued) {
  on_thread_ranks(2, [&](Host&, Membership& world) {
    CountDown driver;
    world.add_driver(driver);
    driver.left.store(10);
    world.wake_driver();
    while (driver.asked.load() == 0) std::this_thread::yield();
    driver.gate.store(true);
    ring(*world.waiter().bell);  // as a peer does after it has written
    while (driver.left.load() != 0) std::this_thread::yield();
    world.remove_driver(driver);
    driver.left.store(1);
    world.wake_driver();
  });
}

}  // namespace
}  // namespace tutti::control
