#include "control/membership.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>

#include "control/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

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
                                   "): rank 9 called abort: enough");
      EXPECT_EQ(error->context().culprits, std::vector<int>{aborter});
      EXPECT_EQ(error->context().call_site, "train.cc:88");
      world.fail({ErrorCode::kTimeout, "later", {}, {}});
      EXPECT_EQ(world.cause()->code, ErrorCode::kAborted) << "the first cause stays";
      all_called.wait();
    });
    EXPECT_EQ(callbacks.load(), 3);
  }
}

}  // namespace
}  // namespace tutti::control
