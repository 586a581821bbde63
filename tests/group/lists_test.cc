// Lists of buffers in place of one: what they give, and what is wrong with them.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "ranks.h"

namespace tutti {
namespace {

using Floats = std::vector<float>;

void expect_refused(const std::function<void()>& call, const std::string& part) {
  const Error error = thrown_by(call);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  expect_text(error, part);
}

/// Values whose sums round, different on every rank.
Floats values(const ProcessGroup& world, std::size_t count, std::size_t salt) {
  Floats made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i] = 1.0f / static_cast<float>(i + 3 * salt + static_cast<std::size_t>(world.rank()) + 1);
  }
  return made;
}

/// A list combined in one operation, and the same buffers one by one.
void check_coalesced(ProcessGroup& world, ReduceOp op, bool asynchronous) {
  std::vector<Floats> apart;
  for (const std::size_t count : {5, 0, 1, 1000, 17}) {
    apart.push_back(values(world, count, apart.size()));
  }
  std::vector<Floats> together = apart;
  std::vector<Buffer> list(together.begin(), together.end());
  for (Floats& each : apart) world.all_reduce(each, op);
  if (asynchronous) {
    Work work = world.all_reduce(list, {.op = op}, async);
    list.clear();
    work.wait();
  } else {
    world.all_reduce(list, {.op = op});
  }
  EXPECT_EQ(together, apart);
}

TEST(Coalesced, HasTheBitsOfSeparateOperations) {
  const auto check = [](ProcessGroup& world) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul_sum(0.3)}) {
      for (const bool asynchronous : {false, true}) check_coalesced(world, op, asynchronous);
    }
  };
  for (const test_kit::As as : every_kind()) {
    for (const int ranks : {1, 2, 3}) on_ranks(ranks, check, {.as = as});
  }
}

TEST(Coalesced, OfNothingIsAnOperation) {
  on_ranks(2, [](ProcessGroup& world) {
    Floats none;
    world.all_reduce(std::vector<Buffer>(), {.op = ReduceOp::avg});
    world.all_reduce(std::vector<Buffer>{none}, {}, async).wait();
  });
}

TEST(Coalesced, MixedDtypesAndNullAreRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    Floats x(3);
    std::vector<int> y(3);
    expect_refused(
        [&] {
          world.all_reduce(std::vector<Buffer>{x, y});
        },
        "buffer 1 of the list is of i32, the first of f32");
    const Buffer null(nullptr, 3, DType::f32);
    expect_refused(
        [&] {
          world.all_reduce(std::vector<Buffer>{x, null});
        },
        "buffer 1 of the list is null");
    const Buffer negative(x.data(), static_cast<std::size_t>(-1), DType::f32);
    expect_refused(
        [&] {
          world.all_reduce(std::vector<Buffer>{x, negative});
        },
        "may have been negative");
    const Buffer elsewhere(x.data(), 3, DType::f32, {.kind = Device::Kind::cuda});
    EXPECT_EQ(thrown_by([&] { world.all_reduce(std::vector<Buffer>{elsewhere}); }).code(),
              ErrorCode::kUnsupported);
    world.all_reduce(x);
  });
}

TEST(Coalesced, ListsOfOneSumThatDifferAreADisagreement) {
  test_kit::collect_ranks(2, [](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    Floats two(2), three(3);
    const Error error = thrown_by([&] {
      world.all_reduce(me.rank == 0 ? std::vector<Buffer>{two, three}
                                    : std::vector<Buffer>{three, two});
    });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
    expect_text(error, "they differ in the buffers of a list");
    return {};
  });
}

TEST(Coalesced, KeepsOwnersUntilTheEnd) {
  std::atomic<bool> seen{false};
  on_ranks(2, [&](ProcessGroup& world) {
    auto owned = std::make_shared<Floats>(4, 1.0f);
    const std::weak_ptr<Floats> watched = owned;
    Buffer buffer(*owned);
    buffer.source = &owned;
    buffer.retain = [](const void* source) -> std::shared_ptr<const void> {
      return *static_cast<const std::shared_ptr<Floats>*>(source);
    };
    while (world.rank() == 1 && !seen.load()) std::this_thread::yield();
    Work work = world.all_reduce(std::vector<Buffer>{buffer}, {}, async);
    owned.reset();
    if (world.rank() == 0) {
      EXPECT_FALSE(watched.expired());
    }
    seen.store(true);
    work.wait();
    work = Work();
    EXPECT_TRUE(watched.expired());
  });
}

void check_every_form(ProcessGroup& world) {
  const int me = world.rank();
  const std::vector<int> own = {me, 10 + me};
  const std::vector<int> all = {0, 10, 1, 11, 2, 12};
  for (const bool asynchronous : {false, true}) {
    std::vector<std::vector<int>> parts(3, std::vector<int>(2));
    const std::vector<Buffer> outputs(parts.begin(), parts.end());
    const auto joined = [&] {
      std::vector<int> whole;
      for (const auto& part : parts) whole.insert(whole.end(), part.begin(), part.end());
      return whole;
    };
    asynchronous ? world.all_gather(own, outputs, {}, async).wait()
                 : world.all_gather(own, outputs);
    EXPECT_EQ(joined(), all);
    asynchronous ? world.gather(own, outputs, {.root = 2}, async).wait()
                 : world.gather(own, outputs, {.root = 2});
    EXPECT_EQ(joined(), all);
    const std::vector<ConstBuffer> inputs(parts.begin(), parts.end());
    std::vector<int> mine(2);
    asynchronous ? world.scatter(inputs, mine, {.root = 1}, async).wait()
                 : world.scatter(inputs, mine, {.root = 1});
    EXPECT_EQ(mine, own);
    asynchronous ? world.reduce_scatter(inputs, mine, {}, async).wait()
                 : world.reduce_scatter(inputs, mine);
    EXPECT_EQ(mine, (std::vector<int>{3 * me, 3 * (10 + me)}));
    asynchronous ? world.all_to_all(inputs, outputs, {}, async).wait()
                 : world.all_to_all(inputs, outputs);
    EXPECT_EQ(joined(), (std::vector<int>{me, 10 + me, me, 10 + me, me, 10 + me}));
  }
}

TEST(Lists, EveryFormGivesWhatTheConcatenatedOneGives) {
  for (const test_kit::As as : every_kind()) on_ranks(3, check_every_form, {.as = as});
}

TEST(Lists, OfAnExchangeMayBeUneven) {
  on_ranks(3, [](ProcessGroup& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    std::vector<std::vector<int>> sent, received;
    for (std::size_t peer = 0; peer < 3; ++peer) {
      sent.emplace_back(2 * me + peer, world.rank());
      received.emplace_back(2 * peer + me, -1);
    }
    world.all_to_all(std::vector<ConstBuffer>(sent.begin(), sent.end()),
                     std::vector<Buffer>(received.begin(), received.end()));
    for (std::size_t peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(received[peer], std::vector<int>(2 * peer + me, static_cast<int>(peer)));
    }
  });
}

/// Parts of 1, 2 and 3 elements, from every rank to every one.
void check_uneven(ProcessGroup& world, bool asynchronous) {
  const int me = world.rank();
  const auto mine = static_cast<std::size_t>(me) + 1;
  const std::vector<int> own(mine, 10 + me);
  std::vector<std::vector<int>> parts = {std::vector<int>(1), std::vector<int>(2),
                                         std::vector<int>(3)};
  const std::vector<Buffer> outputs(parts.begin(), parts.end());
  const auto expect_parts = [&] {
    for (int rank = 0; rank < 3; ++rank) {
      const auto count = static_cast<std::size_t>(rank) + 1;
      EXPECT_EQ(parts[count - 1], std::vector<int>(count, 10 + rank));
    }
  };
  asynchronous ? world.all_gather(own, outputs, async).wait() : world.all_gather(own, outputs);
  expect_parts();
  if (me == 2) parts = {{0}, {0, 0}, {0, 0, 0}};
  const std::vector<Buffer> at_root =
      me == 2 ? std::vector<Buffer>(parts.begin(), parts.end()) : std::vector<Buffer>();
  const RootedOptions root = {.root = 2};
  asynchronous ? world.gather(own, at_root, root, async).wait() : world.gather(own, at_root, root);
  expect_parts();
  const std::vector<ConstBuffer> inputs(parts.begin(), parts.end());
  const std::vector<ConstBuffer> from_root = me == 2 ? inputs : std::vector<ConstBuffer>();
  std::vector<int> got(mine);
  asynchronous ? world.scatter(from_root, got, root, async).wait()
               : world.scatter(from_root, got, root);
  EXPECT_EQ(got, own);
  asynchronous ? world.reduce_scatter(inputs, got, async).wait()
               : world.reduce_scatter(inputs, got);
  EXPECT_EQ(got, std::vector<int>(mine, 3 * (10 + me)));
}

TEST(Lists, PartsMayDifferInCount) {
  const auto check = [](ProcessGroup& world) {
    for (const bool asynchronous : {false, true}) check_uneven(world, asynchronous);
  };
  for (const test_kit::As as : every_kind()) on_ranks(3, check, {.as = as});
}

TEST(Lists, OfStructsAreMovedAndNotCombined) {
  struct Point {
    float x, y;
  };
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<Point> a(3), b(3);
    expect_text(thrown_by([&] {
                  world.all_reduce({a, b});
                }),
                "buffer 0 of the list is of structs or enums, which can be moved but not combined");
    world.all_to_all({a, a}, {b, b});
  });
}

TEST(Lists, WrongOnesAreRefusedAndTheGroupStaysUsable) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<int> a(2), b(2), odd(3), out(2);
    expect_refused([&] { world.reduce_scatter(std::vector<ConstBuffer>{a}, out); },
                   "the list has 1 buffers, but the group has 2 ranks");
    expect_refused(
        [&] {
          world.reduce_scatter(std::vector<ConstBuffer>{odd, odd}, out);
        },
        "of the list, this rank's own, holds 3 x i32, but output has 2 x i32");
    expect_refused([&] { world.all_to_all(std::vector<ConstBuffer>{a}, std::vector<Buffer>{b}); },
                   "input needs one count for each of the 2 ranks of the group, and has 1");
    world.barrier();
  });
}

}  // namespace
}  // namespace tutti
