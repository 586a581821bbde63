// Calls of CUDA that fail, late copies and copies that never end, while ranks operate on device
// memory: every call ends, all ranks blame the same, and nothing is left behind.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/driver_memory.h"
#include "ranks.h"
#include "standin/program.h"
#include "tutti/test_kit.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using standin::buffer_of;
using standin::DeviceArray;
using standin::Driver;
using standin::TestStream;

constexpr int kRanks = 3;

/// What goes wrong in one round, on whichever rank it meets.
struct Trouble {
  const char* function;
  int nth;
  bool hangs;
};

Trouble make_trouble(std::mt19937& random) {
  // Those that a copy goes through; a pool without memory is no failure.
  static constexpr const char* kFunctions[] = {"cuMemcpyAsync", "cuEventRecord",
                                               "cuStreamWaitEvent", "cuEventQuery"};
  const char* const function = kFunctions[random() % std::size(kFunctions)];
  const bool hangs = random() % 8 == 0;
  return {hangs ? "cuMemcpyAsync" : function, static_cast<int>(random() % 120) + 1, hangs};
}

/// Operations of all kinds until one fails, or there are no more.
void operate(ProcessGroup& world, std::uint32_t seed) {
  std::mt19937 random(seed);  // the same on all ranks
  const TestStream stream(world.rank() % 2);
  std::vector<float> host(500, 1);
  for (int i = 0; i < 8; ++i) {
    const DeviceArray<float> x(stream.device(), random() % 3000 + 1);
    const DeviceArray<float> all(stream.device(), kRanks * x.count());
    std::vector<Work> works;
    switch (random() % 5) {
      case 0:
        world.all_reduce(buffer_of(x, stream));
        break;
      case 1:
        works.push_back(world.all_reduce(buffer_of(x, stream), async));
        works.push_back(world.all_gather(buffer_of(x, stream), buffer_of(all, stream), async));
        break;
      case 2:
        world.broadcast(buffer_of(x, stream), {.root = static_cast<int>(random() % kRanks)});
        break;
      case 3:
        works.push_back(world.all_reduce(buffer_of(x, stream), async));
        world.all_reduce(host);
        break;
      default: {
        const int next = (world.rank() + 1) % kRanks, last = (world.rank() + kRanks - 1) % kRanks;
        const Buffer received =
            Buffer::cuda(all.data(), x.count(), stream.device(), stream.stream().handle);
        world.batch({Message::send(buffer_of(x, stream), next), Message::recv(received, last)});
        break;
      }
    }
    wait_all(works);
    for (Work& work : works) work.wait_host();
  }
}

/// Whether something failed.
bool run_round(std::uint32_t seed) {
  std::mt19937 random(seed);
  const standin::Control& control = *Driver::get().control;
  control.reset();
  control.set_delays(seed, 100);
  const standin::Counts before = control.counts();  // of groups that a device did not let go
  const Trouble trouble = make_trouble(random);
  SCOPED_TRACE(testing::Message() << "seed " << seed << ": call " << trouble.nth << " of "
                                  << trouble.function << (trouble.hangs ? " hangs" : " fails"));
  test_kit::RunOptions options;
  options.deadline = 60s;
  options.init.timeout = trouble.hangs ? 5s : 50s;  // longer than the stall time
  options.init.settings = {
      {"cuda_library", standin::driver_file()}, {"log", "error"}, {"stall_timeout", "300ms"}};
  if (trouble.hangs) {
    control.hang(trouble.function, trouble.nth);
  } else {
    control.fail(trouble.function, trouble.nth, standin::kUnknown);
  }
  std::atomic<int> left{kRanks};
  const auto outcomes = test_kit::collect_ranks(
      kRanks,
      [&](const test_kit::Rank& me) -> std::string {
        ProcessGroup world = init_process_group(me.init);
        try {
          operate(world, seed);
          world.close();
        } catch (const Error&) {
          // What hangs is let go once all have been told, so that what is left can be counted.
          if (--left == 0) control.release();
          throw;
        }
        --left;
        return "";
      },
      options);
  control.release();
  std::optional<std::vector<int>> culprits;
  bool has_failed = false;
  for (const test_kit::Outcome& outcome : outcomes) {
    if (outcome.failure.empty()) continue;
    has_failed = true;
    // A program's own call of CUDA may have been the one. A message that ends by its own time
    // blames whom it awaits, and leaves the group usable.
    if (!outcome.error || trouble.hangs) continue;
    if (!culprits) culprits = outcome.error->context().culprits;
    EXPECT_EQ(outcome.error->context().culprits, *culprits) << outcome.failure;
  }
  if (trouble.hangs) return has_failed;  // a group leaves behind what a device does not let go
  const standin::Counts counts = control.counts();
  EXPECT_EQ(counts.streams, before.streams);
  EXPECT_EQ(counts.events, before.events);
  EXPECT_EQ(counts.pinned_bytes, before.pinned_bytes);
  EXPECT_EQ(counts.device_bytes, before.device_bytes);
  return has_failed;
}

TEST(DeviceFailures, EndOnAllRanksAndLeaveNothing) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not fail when asked to";
  const int rounds = std::getenv("TUTTI_TEST_FULL") != nullptr ? 1000 : 40;
  int failed = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    failed += run_round(static_cast<std::uint32_t>(round + 1)) ? 1 : 0;
  }
  RecordProperty("failed", failed);
  std::printf("%d of %d rounds met the failure\n", failed, rounds);
  EXPECT_GT(failed, rounds / 4);
}

// ---- what rank 1 finds, and rank 0 is told of

/// Two ranks of a world that fails, and not because they have waited for each other for long.
void on_failing_pair(const std::function<void(ProcessGroup&)>& function,
                     const std::string& stall = "300ms") {
  test_kit::RunOptions options;
  options.deadline = 60s;
  options.init.timeout = 600s;
  options.init.settings = {
      {"cuda_library", standin::driver_file()}, {"log", "error"}, {"stall_timeout", stall}};
  const auto outcomes = test_kit::collect_ranks(
      2,
      [&](const test_kit::Rank& me) -> std::string {
        ProcessGroup world = init_process_group(me.init);
        function(world);
        return "";
      },
      options);
  for (const test_kit::Outcome& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

/// The same; rank 0 has its memory on the host, rank 1 on its device.
void on_mixed_pair(const std::function<void(ProcessGroup&, const Buffer&)>& function) {
  on_failing_pair([&](ProcessGroup& world) {
    const TestStream stream(1);
    const DeviceArray<float> device(1, {1, 2, 3});
    std::vector<float> host = {1, 2, 3};
    world.barrier();
    function(world, world.rank() == 0 ? Buffer(host) : buffer_of(device, stream));
  });
}

/// Rank 0 has its memory on the host, and waits for rank 1.
using Program = std::function<void(ProcessGroup&, const Buffer&)>;

TEST(DeviceFailures, ADeviceThatIsFoundBrokenBeforeACallIsToldToAll) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not fail when asked to";
  const Program programs[] = {
      [](ProcessGroup& world, const Buffer& x) { world.all_reduce(x); },
      [](ProcessGroup& world, const Buffer& x) { world.all_reduce(x, async).wait(); },
      [](ProcessGroup& world, const Buffer& x) { world.all_reduce(std::vector<Buffer>{x}); },
      [](ProcessGroup& world, const Buffer& x) {
        world.rank() == 1 ? world.send(x, 0) : (void)world.recv(x, 1);
      },
      [](ProcessGroup& world, const Buffer& x) {
        world.batch({Message::send(x, 1 - world.rank())});
        world.barrier();
      },
  };
  const standin::Control& control = *Driver::get().control;
  control.reset();
  for (const Program& program : programs) {
    std::barrier told(2);
    on_mixed_pair([&](ProcessGroup& world, const Buffer& x) {
      if (world.rank() == 1) control.fail("cuPointerGetAttributes", 1, standin::kIllegalAddress);
      const Error failure = thrown_by([&] { program(world, x); });
      EXPECT_EQ(failure.code(), ErrorCode::kSystem) << failure.what();
      EXPECT_EQ(failure.context().culprits, std::vector<int>{1});
      expect_text(failure, "CUDA's cuPointerGetAttributes failed on cuda:1: an illegal memory");
      told.arrive_and_wait();
    });
  }
}

/// Blocking; rank 0 has its memory on the host.
struct Call {
  const char* name;
  int copy_out;  // which of its copies that is
  std::function<void(ProcessGroup&, const Buffer&)> run;
};

const Call kCalls[] = {
    {"all_reduce", 2, [](ProcessGroup& world, const Buffer& x) { world.all_reduce(x); }},
    {"broadcast", 1, [](ProcessGroup& world, const Buffer& x) { world.broadcast(x, {.root = 0}); }},
    {"recv", 1,
     [](ProcessGroup& world, const Buffer& x) {
       world.rank() == 0 ? world.send(x, 1) : (void)world.recv(x, 0);
     }},
};

/// What rank 1 does behind the call.
enum class Then : std::uint8_t { nothing, calls_again };

/// Returns what the group fails with.
Error failure_behind(ProcessGroup& world, const Buffer& x, Then then) {
  if (world.rank() == 0) return thrown_by([&] { world.barrier(); });
  if (then == Then::calls_again) return thrown_by([&] { world.all_reduce(x); });
  std::promise<Error> failed;
  world.on_failure([&failed](const Error& failure) { failed.set_value(failure); });
  return failed.get_future().get();
}

void expect_told(const Call& call, Then then) {
  SCOPED_TRACE(call.name);
  const standin::Control& control = *Driver::get().control;
  control.reset();
  std::barrier told(2);
  on_mixed_pair([&](ProcessGroup& world, const Buffer& x) {
    if (world.rank() == 1) control.hang("cuMemcpyAsync", call.copy_out);
    call.run(world, x);
    const Error failure = failure_behind(world, x, then);
    EXPECT_EQ(failure.code(), ErrorCode::kTimeout);
    EXPECT_EQ(failure.context().culprits, std::vector<int>{1});
    expect_text(failure, call.name);
    expect_text(failure, "cuda:1 has been at a copy from the host (stream 0x");
    expect_text(failure, ") for 0.3 s: nothing moves");
    told.arrive_and_wait();
    control.release();
  });
}

TEST(DeviceFailures, AWorkWhoseCopyHangsEndsAlsoWhereTheGroupHasFailedOfAnother) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not hang when asked to";
  const standin::Control& control = *Driver::get().control;
  control.reset();
  const auto fails = [&](ProcessGroup& world) {
    const TestStream stream(1);
    const DeviceArray<float> device(1, {1, 2, 3});
    std::vector<float> host = {1, 2, 3};
    world.barrier();
    if (world.rank() == 0) {
      world.all_reduce(host);
      world.abort("enough");
      return;
    }
    control.hang("cuMemcpyAsync", 2);
    Work work = world.all_reduce(buffer_of(device, stream), async);
    expect_text(thrown_by([&] { work.wait_host(); }), "enough");
    control.release();
  };
  on_failing_pair(fails, "5s");  // rank 0 aborts before that
}

// What the program's stream does before the operation may never end: a collective of others, say.
TEST(DeviceFailures, AFailedWorkIsToldAlsoWhereTheProgramsStreamStands) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not hang when asked to";
  const standin::Control& control = *Driver::get().control;
  control.reset();
  std::barrier told(2);
  const auto fails = [&](ProcessGroup& world) {
    const TestStream stream(1);
    const DeviceArray<float> device(1, {1, 2, 3}), other(1, {1, 2, 3});
    world.barrier();
    if (world.rank() == 1) {
      control.hang("cuMemcpyAsync", 1);
      standin::memory_of(stream).copy_there(device.data(), other.data(), sizeof(float));
      Work work = world.all_reduce(buffer_of(device, stream), async);
      told.arrive_and_wait();
      expect_text(thrown_by([&] { work.wait_host(); }), "enough");
      control.release();
      return;
    }
    told.arrive_and_wait();
    world.abort("enough");
  };
  on_failing_pair(fails, "30s");
}

// ---- a program that is told may use its buffers again

/// The rank whose memory is the host's: a copy fails on the other's device.
void learns_of_the_copy(ProcessGroup& world, std::vector<float>& host) {
  const Error failure = thrown_by([&] {
    world.all_reduce(host);
    world.barrier();
  });
  expect_text(failure, "CUDA's cuMemcpyAsync failed on cuda:1");
}

/// Of an operation in two pieces both are copied in, then out: copy `number` hangs, the next fails.
void hang_and_fail(const standin::Control& control, int number) {
  control.hang("cuMemcpyAsync", number);
  control.fail("cuMemcpyAsync", number + 1, standin::kUnknown);
}
constexpr std::size_t kTwoPieces = std::size_t{5} << 20;

void expect_work_to_be_told_late(int hanging_copy) {
  const standin::Control& control = *Driver::get().control;
  control.reset();
  std::barrier told(2);
  const auto fails = [&](ProcessGroup& world) {
    const TestStream stream(1);
    const DeviceArray<float> device(1, std::vector<float>(kTwoPieces, 1));
    std::vector<float> host(kTwoPieces, 1);
    world.barrier();
    if (world.rank() == 0) {
      learns_of_the_copy(world, host);
      told.arrive_and_wait();
      return;
    }
    hang_and_fail(control, hanging_copy);
    Work work = world.all_reduce(buffer_of(device, stream), async);
    told.arrive_and_wait();
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(work.done());
    control.release();
    expect_text(thrown_by([&] { work.wait_host(); }), "CUDA's cuMemcpyAsync failed on cuda:1");
  };
  on_failing_pair(fails, "5s");
}

TEST(DeviceFailures, AFailedWorkIsToldOnceTheDeviceHasLetGoOfItsMemory) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not hang when asked to";
  for (const int copy : {1, 3}) expect_work_to_be_told_late(copy);
}

void expect_call_to_return_late(int hanging_copy) {
  const standin::Control& control = *Driver::get().control;
  control.reset();
  const auto fails = [&](ProcessGroup& world) {
    const TestStream stream(1);
    const DeviceArray<float> device(1, std::vector<float>(kTwoPieces, 1));
    std::vector<float> host(kTwoPieces, 1);
    world.barrier();
    if (world.rank() == 0) {
      learns_of_the_copy(world, host);
      return;
    }
    hang_and_fail(control, hanging_copy);
    std::atomic<bool> is_released = false;
    std::jthread device_ends([&] {
      std::this_thread::sleep_for(200ms);
      is_released = true;
      control.release();
    });
    const Error failure = thrown_by([&] { world.all_reduce(buffer_of(device, stream)); });
    expect_text(failure, "CUDA's cuMemcpyAsync failed on cuda:1");
    EXPECT_TRUE(is_released);
  };
  on_failing_pair(fails, "5s");
}

TEST(DeviceFailures, AFailedBlockingCallReturnsOnceTheDeviceHasLetGoOfItsMemory) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not hang when asked to";
  for (const int copy : {1, 3}) expect_call_to_return_late(copy);
}

TEST(DeviceFailures, ACopyThatHangsBehindABlockingCallIsTold) {
  if (standin::is_real()) GTEST_SKIP() << "CUDA does not hang when asked to";
  for (const Call& call : kCalls) {
    expect_told(call, Then::nothing);
    expect_told(call, Then::calls_again);
  }
}

}  // namespace
}  // namespace tutti
