// Device memory over backends that see the memory of the host only. On the stand-in of CUDA's
// driver, or with TUTTI_TEST_CUDA=real on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "device/on_device.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using standin::buffer_of;
using standin::DeviceArray;
using standin::is_real;
using standin::TestStream;
using test_kit::run_ranks;

std::string refusal(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(StagingRefusals, WithoutADriverTheReasonIsSaid) {
  if (is_real()) GTEST_SKIP() << "there is a driver";
  if (has_threads()) GTEST_SKIP() << "only processes without threads are forked";
  test_kit::RunOptions without;
  without.as = test_kit::As::processes;  // this process has opened the stand-in
  without.init.settings["cuda_library"] = "/nowhere/libcuda.so.1";
  run_ranks(
      1,
      [](ProcessGroup& world) {
        float host[3] = {};
        const std::string text =
            refusal([&] { world.all_reduce(Buffer::cuda(host, 3, 0)); }, ErrorCode::kUnsupported);
        expect_in(text, "all_reduce #");
        expect_in(text, "/nowhere/libcuda.so.1");
        expect_in(text, "TUTTI_CUDA_LIBRARY");
      },
      without);
}

class Staging : public testing::TestWithParam<int> {};

TEST_P(Staging, EveryOperationAndDtypeHasTheBitsOfTheHost) {
  run_ranks(
      GetParam(),
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        const test_kit::DeviceMemory memory = standin::memory_of(stream);
        const test_kit::ConformanceReport report = test_kit::run_conformance(
            world,
            {.counts = {0, 1, 1000}, .one_variant_in = 4, .canonical = true, .memory = &memory});
        EXPECT_GT(report.cells, 100);
        for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
      },
      on_device());
}

TEST_P(Staging, SomeRanksMayHaveTheirsOnTheHost) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank is no mixed group";
  run_ranks(
      GetParam(),
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        const test_kit::DeviceMemory memory = standin::memory_of(stream);
        const bool on_device = world.rank() % 2 == 1;
        const test_kit::ConformanceReport report =
            test_kit::run_conformance(world, {.counts = {5},
                                              .one_variant_in = 4,
                                              .canonical = true,
                                              .memory = on_device ? &memory : nullptr});
        for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
      },
      on_device());
}

INSTANTIATE_TEST_SUITE_P(Ranks, Staging, testing::Values(1, 2, 3, 4));

/// What the stream is given before and after a call comes before and after it on the device.
TEST(StagingOrder, FollowsTheStream) {
  run_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        std::mt19937 random(static_cast<unsigned>(world.rank()));
        const auto wait_a_little = [&] {
          standin::delay(stream, std::chrono::milliseconds(1 + random() % (is_real() ? 50 : 5)));
        };
        constexpr std::size_t kCounts[] = {1000, std::size_t{6} << 20};
        for (int round = 0; round < 24; ++round) {
          const std::size_t count = kCounts[round % 8 == 7 ? 1 : 0];
          standin::PinnedArray<float> given(stream.device(), count);
          std::fill_n(given.data(), count, static_cast<float>(round + world.rank()));
          DeviceArray<float> x(stream.device(), std::vector<float>(count, -1));
          wait_a_little();
          x.load(given, stream.stream());
          if (round % 2 == 0) {
            world.all_reduce(buffer_of(x, stream));
          } else {
            world.all_reduce(buffer_of(x, stream), async).wait();
          }
          if (round % 3 == 0) wait_a_little();
          const std::vector<float> sum = x.download(stream.stream());
          ASSERT_EQ(sum, std::vector<float>(count, static_cast<float>(2 * round + 1))) << round;
        }
      },
      on_device());
}

TEST(StagingOrder, AsynchronousOnesAndThoseOfTheHostStayInOrder) {
  run_ranks(
      3,
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        DeviceArray<std::int64_t> x(stream.device(), std::vector<std::int64_t>(300, 1));
        std::vector<std::int64_t> y(300, 1);
        std::vector<Work> works;
        // The result of one is the input of the next, though nobody waits between.
        for (int i = 0; i < 8; ++i) {
          works.push_back(world.all_reduce(buffer_of(x, stream), async));
          works.push_back(world.all_reduce(y, async));
        }
        world.barrier();
        wait_all(works);
        EXPECT_EQ(x.download(stream.stream()), std::vector<std::int64_t>(300, 6561));
        EXPECT_EQ(y, std::vector<std::int64_t>(300, 6561));
      },
      on_device());
}

TEST(StagingOrder, LargeOnesGoInPiecesOnAllRanks) {
  run_ranks(
      2,
      [](ProcessGroup& world) {
        constexpr std::size_t kCount = (std::size_t{40} << 20) / sizeof(float) + 7;
        const float own = static_cast<float>(world.rank() + 1);
        const TestStream stream(device_of_rank(world.rank()));
        if (world.rank() == 0) {
          DeviceArray<float> x(stream.device(), std::vector<float>(kCount, own));
          world.all_reduce(buffer_of(x, stream));
          world.all_reduce(buffer_of(x, stream), async).wait();
          EXPECT_EQ(x.download(stream.stream()), std::vector<float>(kCount, 6));
        } else {
          std::vector<float> x(kCount, own);
          world.all_reduce(x);
          world.all_reduce(x, async).wait();
          EXPECT_EQ(x, std::vector<float>(kCount, 6));
        }
      },
      on_device());
}

TEST(StagingOrder, RanksThatWaitForEachOtherAreTold) {
  const auto outcomes = test_kit::collect_ranks(
      2,
      [](const test_kit::Rank& me) -> std::string {
        ProcessGroup world = init_process_group(me.init);
        ProcessGroup other = world.new_group({0, 1});
        const TestStream stream(device_of_rank(world.rank()));
        const DeviceArray<float> x(stream.device(), {1, 2, 3});
        ProcessGroup& first = world.rank() == 0 ? world : other;
        first.all_reduce(buffer_of(x, stream), async).wait();
        return "";
      },
      on_device());
  for (const test_kit::Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kDeadlock) << outcome.failure;
  }
}

TEST(StagingWork, EndsOnTheDevice) {
  run_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        DeviceArray<float> x(stream.device(), std::vector<float>(1000, 1));
        std::atomic<bool> called{false};
        Work work = world.all_reduce(buffer_of(x, stream), async).then([&](const Error* failure) {
          EXPECT_EQ(failure, nullptr);
          called = true;
        });
        work.wait_host();
        EXPECT_TRUE(work.done());
        EXPECT_TRUE(called);
        Work second = world.all_reduce(buffer_of(x, stream), async);
        second.wait();
        second.wait_host();
        EXPECT_TRUE(second.done());
        EXPECT_EQ(x.download(stream.stream()), std::vector<float>(1000, 4));
      },
      on_device());
}

TEST(StagingMessages, BatchesAnySourceAndCancel) {
  run_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        const int other = 1 - world.rank();
        DeviceArray<int> out(stream.device(), std::vector<int>(500, world.rank() + 1));
        DeviceArray<int> in(stream.device(), std::vector<int>(500, 0));
        world.batch({Message::send(buffer_of(out, stream), other),
                     Message::recv(buffer_of(in, stream), other)});
        EXPECT_EQ(in.download(stream.stream()), std::vector<int>(500, other + 1));
        Work never = world.recv(buffer_of(in, stream), other, {.tag = 9}, async);
        EXPECT_TRUE(never.cancel());
        EXPECT_THROW(never.wait(), Error);
        if (world.rank() == 0) {
          world.send(buffer_of(out, stream), 1);
        } else {
          EXPECT_EQ(world.recv(buffer_of(in, stream), kAnyRank).rank, 0);
          EXPECT_EQ(in.download(stream.stream()), std::vector<int>(500, 1));
        }
      },
      on_device());
}

TEST(StagingLists, GoThroughTheHost) {
  run_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream stream(0);
        const float own = static_cast<float>(world.rank());
        DeviceArray<float> x(0, {own, 1}), y(0, {2, own, 3});
        std::vector<float> z = {own};
        world.all_reduce(std::vector<Buffer>{buffer_of(x, stream), z, buffer_of(y, stream)});
        EXPECT_EQ(x.download(stream.stream()), (std::vector<float>{1, 2}));
        EXPECT_EQ(y.download(stream.stream()), (std::vector<float>{4, 1, 6}));
        EXPECT_EQ(z, (std::vector<float>{1}));
        DeviceArray<float> mine(0, {own, own}), a(0, {9, 9}), b(0, {9, 9});
        world
            .all_gather(buffer_of(mine, stream),
                        std::vector<Buffer>{buffer_of(a, stream), buffer_of(b, stream)}, async)
            .wait();
        EXPECT_EQ(a.download(stream.stream()), (std::vector<float>{0, 0}));
        EXPECT_EQ(b.download(stream.stream()), (std::vector<float>{1, 1}));
        world.reduce_scatter(std::vector<ConstBuffer>{buffer_of(a, stream), buffer_of(b, stream)},
                             buffer_of(mine, stream));
        EXPECT_EQ(mine.download(stream.stream()), (std::vector<float>{2 * own, 2 * own}));
      },
      on_device());
}

TEST(StagingRefusals, NameWhatWasSaidAndWhatIs) {
  run_ranks(
      1,
      [](ProcessGroup& world) {
        const TestStream stream(0);
        DeviceArray<float> x(0, {1, 2, 3});
        float host[3] = {};
        expect_in(
            refusal([&] { world.all_reduce(Buffer::cuda(host, 3, 0, stream.stream().handle)); },
                    ErrorCode::kInvalidArgument),
            "input was given as memory of cuda:0, and is memory of cpu");
        world.all_reduce(buffer_of(x, stream));
        expect_in(refusal([&] { world.all_reduce(Buffer(x.data(), 3, DType::f32)); },
                          ErrorCode::kInvalidArgument),
                  "input was given as memory of cpu, and is memory of cuda:0");
        refusal([&] { world.all_reduce(Buffer::cuda(x.data(), 3, 77, stream.stream().handle)); },
                ErrorCode::kInvalidArgument);
        world.all_reduce(buffer_of(x, stream));  // none of it has harmed the group
        EXPECT_EQ(x.download(stream.stream()), (std::vector<float>{1, 2, 3}));
      },
      on_device());
}

}  // namespace
}  // namespace tutti
