// Calls that find no memory: nobody waits for their part.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "group/foreign_backend.h"
#include "ranks.h"
#include "refused_memory.h"
#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using Call = std::function<void(ProcessGroup&, std::span<float>)>;

/// Of rank 1 the memory that it asks for as the `until`th in `call` is refused. How often the ranks
/// have been told of it.
int count_told(std::size_t until, const Call& call) {
  std::atomic<int> told{0};
  const auto body = [&](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    std::vector<float> data(1000, 1);
    try {  // one rank may be in the last call of these when the other one is refused memory
      world.all_reduce(data);
      world.all_reduce(data, async).wait();
      refuse_own_memory(me.rank == 1 ? until : 0);
      call(world, data);
      refuse_own_memory(0);
      world.barrier();
    } catch (const Error& failure) {
      refuse_own_memory(0);
      told += 1;
      EXPECT_EQ(failure.code(), ErrorCode::kSystem) << failure.what();
      EXPECT_EQ(failure.context().culprits, std::vector<int>{1}) << failure.what();
      expect_text(failure, "refused memory");
    }
    return {};
  };
  for (const test_kit::Outcome& outcome : test_kit::collect_ranks(2, body, {}))
    EXPECT_EQ(outcome.failure, "");
  return told;
}

void expect_all_told(const Call& call) {
  int most = 0;
  for (std::size_t until = 1; until <= 12; ++until) {
    const int told = count_told(until, call);
    EXPECT_NE(told, 1) << "allocation " << until;
    most = std::max(most, told);
  }
  EXPECT_EQ(most, 2);
}

TEST(GroupMemory, ACollectiveThatCannotBeginFailsTheGroup) {
  expect_all_told(
      [](ProcessGroup& world, std::span<float> data) { world.all_reduce(data, async).wait(); });
}

TEST(GroupMemory, AMessageThatCannotBeginFailsTheGroup) {
  expect_all_told([](ProcessGroup& world, std::span<float> data) {
    if (world.rank() == 1) world.recv(data, 0, async).wait();
    if (world.rank() == 0) world.send(data, 1);
  });
}

/// Which of the ranks' threads is refused it is not known; all are told the same.
TEST(GroupMemory, TheThreadOfAForeignBackendFailsTheGroup) {
  for (std::size_t first = 1; first <= 30; ++first) {
    const std::size_t count = 1 + first % 3;
    SCOPED_TRACE(std::to_string(count) + " from " + std::to_string(first));
    const auto table = std::make_shared<ForeignTable>(2);
    std::array<std::vector<int>, 2> culprits;
    const auto body = [&](const test_kit::Rank& me) -> std::string {
      ProcessGroup world = make_foreign_world(me, table, Side::native);
      float x = 1;
      world.all_reduce(x);
      if (me.rank == 0) refuse_memory_of("tutti-progress", first, count);
      try {
        world.all_reduce(x, async).wait();
        world.all_reduce(x, async).wait();
      } catch (const Error& failure) {
        EXPECT_EQ(failure.code(), ErrorCode::kSystem) << failure.what();
        expect_text(failure, "refused memory");
        culprits[static_cast<std::size_t>(me.rank)] = failure.context().culprits;
      }
      return {};
    };
    for (const test_kit::Outcome& outcome : test_kit::collect_ranks(2, body, {}))
      EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(culprits[0], culprits[1]);
    if (first == 1) {
      EXPECT_EQ(culprits[0].size(), 1u);
    }
  }
  refuse_memory_of(nullptr, 0, 0);
}

}  // namespace
}  // namespace tutti
