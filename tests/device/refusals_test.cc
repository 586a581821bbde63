// What programs get wrong with device memory: each is refused, or put up with, in words that say
// what was given and what is there; and the group goes on. On the stand-in of CUDA's driver; what
// does not control that, with TUTTI_TEST_CUDA=real on a device, too.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/on_device.h"
#include "tutti/log.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using standin::buffer_of;
using standin::DeviceArray;
using standin::Driver;
using standin::Gate;
using standin::is_real;
using standin::ManagedArray;
using standin::PinnedArray;
using standin::TestStream;

using Floats = std::vector<float>;

/// `array`, said to be on `device`.
Buffer said_on(const DeviceArray<float>& array, int device, Stream stream = {}) {
  return Buffer::cuda(array.data(), array.count(), device, stream.handle);
}

/// The group goes on as if what was refused had never been called.
void expect_unharmed(ProcessGroup& world) {
  const TestStream stream(device_of_rank(world.rank()));
  const DeviceArray<float> x(stream.device(), Floats(10, 2));
  world.all_reduce(buffer_of(x, stream));
  EXPECT_EQ(x.download(stream.stream()), Floats(10, 2 * static_cast<float>(world.world_size())));
  world.barrier();
}

/// Both forms of a call, and what they say.
void expect_refused(ProcessGroup& world, const Buffer& buffer, ErrorCode code,
                    const std::string& text) {
  const Error blocking = thrown_by([&] { world.all_reduce(buffer); });
  EXPECT_EQ(blocking.code(), code) << blocking.what();
  expect_text(blocking, text);
  expect_text(blocking, "all_reduce");
  const Error asynchronous = thrown_by([&] { world.all_reduce(buffer, async).wait(); });
  EXPECT_EQ(asynchronous.code(), code) << asynchronous.what();
  expect_text(asynchronous, text);
}

using DeviceTrouble = StandinTest;

/// Of a process that has opened no other, so it is the first test of its own.
TEST_F(DeviceTrouble, ADriverThatIsTooOld) {
  if (kNoForks || has_threads()) GTEST_SKIP() << "only processes without threads are forked";
  control->set_driver_version(11030);
  test_kit::RunOptions with_old = on_device();
  with_old.as = test_kit::As::processes;
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const DeviceArray<float> x(device_of_rank(world.rank()), Floats(3, 1));
        expect_refused(world, said_on(x, x.device()), ErrorCode::kUnsupported,
                       "is of version 11.3, and 11.4 is needed: install a newer driver");
        Floats on_host(3, 1);
        world.all_reduce(on_host);  // which needs no driver
        EXPECT_EQ(on_host, Floats(3, 2));
      },
      with_old);
}

TEST(DeviceRefusals, MemoryOfAnotherDevice) {
  if (is_real()) GTEST_SKIP() << "there may be one device";
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const DeviceArray<float> x(1, Floats(3, 1)), y(0, Floats(3, 1));
        const std::string text = "was given as memory of cuda:0, and is memory of cuda:1";
        expect_refused(world, said_on(x, 0), ErrorCode::kInvalidArgument, "input " + text);
        const Error output = thrown_by([&] { world.all_reduce(said_on(y, 0), said_on(x, 0)); });
        expect_text(output, "output " + text);
        const int other = 1 - world.rank();
        expect_text(thrown_by([&] { world.send(said_on(x, 0), other); }), text);
        expect_text(thrown_by([&] { world.recv(said_on(x, 0), other, async).wait(); }), text);
        expect_text(thrown_by([&] {
                      world.batch({Message::send(said_on(y, 0), other),
                                   Message::recv(said_on(x, 0), other)});
                    }),
                    text);
        expect_text(thrown_by([&] {
                      world.all_reduce(std::vector<Buffer>{said_on(y, 0), said_on(x, 0)});
                    }),
                    "buffer 1 of the list " + text);
        expect_unharmed(world);
      },
      on_device());
}

TEST(DeviceRefusals, MemoryOfTheHostOrNot) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        expect_unharmed(world);  // from now on memory of the host is looked at, too
        const DeviceArray<float> x(0, Floats(3, 1));
        Floats host(3, 1);
        const Buffer as_host(x.data(), 3, DType::f32);
        expect_refused(world, as_host, ErrorCode::kInvalidArgument,
                       "input was given as memory of cpu, and is memory of cuda:0");
        expect_refused(world, Buffer::cuda(host.data(), 3, 0), ErrorCode::kInvalidArgument,
                       "input was given as memory of cuda:0, and is memory of cpu");
        expect_text(thrown_by([&] {
                      world.all_reduce(std::vector<Buffer>{host, as_host});
                    }),
                    "buffer 1 of the list was given as memory of cpu, and is memory of cuda:0");
        expect_text(thrown_by([&] {
                      world.all_reduce(std::vector<Buffer>{Buffer::cuda(host.data(), 3, 0)});
                    }),
                    "buffer 0 of the list was given as memory of cuda:0, and is memory of cpu");
        expect_unharmed(world);
      },
      on_device());
}

TEST(DeviceRefusals, InputAndOutputOnTwoDevices) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const DeviceArray<float> x(0, Floats(3, 1));
        Floats host(3, 1);
        const Error error = thrown_by([&] { world.all_reduce(said_on(x, 0), host); });
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        expect_text(error, "input is on cuda:0, output on cpu: they must be on one device");
        expect_unharmed(world);
      },
      on_device());
}

TEST(DeviceRefusals, InputAndOutputWithTwoStreams) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream first(0), second(0);
        const DeviceArray<float> x(0, Floats(3, 1)), y(0, Floats(3, 0));
        const Error error =
            thrown_by([&] { world.all_reduce(buffer_of(x, first), buffer_of(y, second)); });
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        expect_text(error, "input and output have different streams");
        expect_unharmed(world);
      },
      on_device());
}

TEST(DeviceRefusals, ADeviceThatIsNotThere) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const DeviceArray<float> x(0, Floats(3, 1));
        expect_refused(world, said_on(x, 77), ErrorCode::kInvalidArgument, "cuda:77");
        expect_refused(world, said_on(x, -1), ErrorCode::kInvalidArgument, "cuda:-1");
        const Error empty = thrown_by([&] { world.all_reduce(Buffer::cuda(x.data(), 0, 77)); });
        expect_text(empty, "there is no device cuda:77: this process sees ");
        expect_text(empty, "CUDA_VISIBLE_DEVICES");
        expect_unharmed(world);
      },
      on_device());
}

TEST(DeviceRefusals, AStreamOfAnotherDevice) {
  if (is_real()) GTEST_SKIP() << "there may be one device";
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream there(1);
        const DeviceArray<float> x(0, Floats(3, 1));
        const std::string text = "its stream is one of cuda:1, and its memory is of cuda:0";
        expect_refused(world, said_on(x, 0, there.stream()), ErrorCode::kInvalidArgument, text);
        const int other = 1 - world.rank();
        expect_text(thrown_by([&] { world.send(said_on(x, 0, there.stream()), other); }), text);
        expect_text(thrown_by([&] {
                      world.all_reduce(std::vector<Buffer>{said_on(x, 0, there.stream())});
                    }),
                    text);
        expect_unharmed(world);
      },
      on_device());
}

/// Those without a handle of their own belong to every device.
TEST(DeviceRefusals, DefaultStreamsAreNotRefused) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const int device = device_of_rank(world.rank());
        for (const std::uintptr_t handle : {0, 1, 2}) {
          const Stream stream{reinterpret_cast<void*>(handle)};
          const DeviceArray<float> x(device, Floats(3, 1));
          world.all_reduce(said_on(x, device, stream));
          EXPECT_EQ(x.download(stream), Floats(3, 2)) << handle;
        }
      },
      on_device());
}

TEST(DeviceRefusals, ManagedMemoryIsTakenAsEither) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        constexpr std::size_t kCount = (std::size_t{256} << 10) / sizeof(float);
        const TestStream stream(device_of_rank(world.rank()));
        const ManagedArray<float> x(stream.device(), Floats(kCount, 1));
        const Buffer on_device =
            Buffer::cuda(x.data(), kCount, stream.device(), stream.stream().handle);
        world.all_reduce(on_device);
        world.all_reduce(on_device, async).wait_host();
        stream.synchronize();
        EXPECT_EQ(Floats(x.host().begin(), x.host().end()), Floats(kCount, 4));
        world.all_reduce(x.host());
        EXPECT_EQ(Floats(x.host().begin(), x.host().end()), Floats(kCount, 8));
      },
      on_device());
}

TEST(DeviceRefusals, PinnedMemoryIsTheHosts) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        expect_unharmed(world);
        const PinnedArray<float> x(device_of_rank(world.rank()), Floats(10, 1));
        world.all_reduce(x.host());
        EXPECT_EQ(Floats(x.host().begin(), x.host().end()), Floats(10, 2));
        expect_refused(world, Buffer::cuda(x.data(), 10, 0), ErrorCode::kInvalidArgument,
                       "input was given as memory of cuda:0, and is memory of cpu");
        expect_unharmed(world);
      },
      on_device());
}

TEST(DeviceRefusals, ACaptureIntoAGraph) {
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        const DeviceArray<float> x(stream.device(), Floats(3, 1));
        stream.begin_capture();
        const Buffer captured = buffer_of(x, stream);
        expect_refused(world, captured, ErrorCode::kUnsupported,
                       "its stream is being captured into a CUDA graph");
        const int other = 1 - world.rank();
        expect_text(thrown_by([&] { world.recv(captured, other, async).wait(); }), "CUDA graph");
        expect_text(thrown_by([&] { world.all_reduce(std::vector<Buffer>{captured}); }),
                    "CUDA graph");
        stream.end_capture();
        world.all_reduce(captured);
        EXPECT_EQ(x.download(stream.stream()), Floats(3, 2));
        expect_unharmed(world);
      },
      on_device());
}

// ---- memory

/// Waits until `is_true`, a minute at most.
template <class Condition>
bool becomes(Condition&& is_true) {
  for (int i = 0; i < 60'000 && !is_true(); ++i) std::this_thread::sleep_for(1ms);
  return is_true();
}

using Owned = std::shared_ptr<DeviceArray<float>>;

/// A buffer whose Work shares its owner, as a tensor's does.
Buffer shared(const Owned& array, const TestStream& stream) {
  const auto retain = [](const void* source) -> std::shared_ptr<const void> {
    return *static_cast<const Owned*>(source);
  };
  Buffer buffer(array->data(), array->count(), DType::f32,
                {Device::Kind::cuda, static_cast<std::int16_t>(array->device())}, &array, retain);
  buffer.stream = stream.stream();
  return buffer;
}

/// What `start` is given is let go of at once, while the device has not come to it.
void expect_kept(const TestStream& stream, const std::function<Work(const Buffer&)>& start) {
  auto array = std::make_shared<DeviceArray<float>>(stream.device(), Floats(1000, 3));
  const std::weak_ptr<DeviceArray<float>> watched = array;
  Gate gate(stream);
  Work work;
  std::thread opener([&gate] {  // for what waits for its copy
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  work = start(shared(array, stream));
  const bool has_copied = work.done();
  array.reset();
  EXPECT_TRUE(has_copied || !watched.expired());
  opener.join();
  work.wait_host();
  EXPECT_TRUE(work.done());
  work = {};
  EXPECT_TRUE(becomes([&] { return watched.expired(); }));
}

TEST(DeviceMemory, IsKeptByTheWorkThatUsesIt) {
  const std::size_t freed_before = is_real() ? 0 : Driver::get().control->counts().freed_in_use;
  on_ranks(
      2,
      [](ProcessGroup& world) {
        const TestStream stream(device_of_rank(world.rank()));
        const int other = 1 - world.rank();
        DeviceArray<float> all(stream.device(), Floats(2000, 0));
        for (int round = 0; round < 3; ++round) {
          expect_kept(stream, [&](const Buffer& x) { return world.all_reduce(x, async); });
          expect_kept(stream, [&](const Buffer& x) {
            return world.all_gather(x, buffer_of(all, stream), async);
          });
          EXPECT_EQ(all.download(stream.stream()), Floats(2000, 3));
          expect_kept(stream, [&](const Buffer& x) {
            if (world.rank() == 0) return world.send(x, other, async);
            return world.recv(x, other, async);
          });
        }
      },
      on_device());
  if (!is_real()) {
    EXPECT_EQ(Driver::get().control->counts().freed_in_use, freed_before);
  }
}

TEST_F(DeviceTrouble, LargePinnedMemoryIsKeptWhereTheLimitAllowsIt) {
  on_ranks(
      2,
      [this](ProcessGroup& world) {
        constexpr std::size_t kCount = std::size_t{2} << 20;
        const TestStream stream(device_of_rank(world.rank()));
        const DeviceArray<float> x(stream.device(), Floats(kCount, 1));
        const DeviceArray<float> all(stream.device(), 2 * kCount);  // 24 MiB in one piece
        const auto gather = [&] {
          world.all_gather(buffer_of(x, stream), buffer_of(all, stream));
          stream.synchronize();
          world.barrier();
        };
        gather();
        const std::uint64_t calls = control->calls("cuMemHostAlloc");
        constexpr std::uint64_t kRounds = 10;
        for (std::uint64_t i = 0; i < kRounds; ++i) gather();
        // Two ranks that keep nothing allocate 20 times. One that a thread is just giving back
        // may be missed once.
        EXPECT_LT(control->calls("cuMemHostAlloc") - calls, kRounds);
        // Larger ones drive it out, and go themselves.
        const std::size_t kept = control->counts().pinned_bytes;
        world.barrier();  // both have counted before one allocates more
        const DeviceArray<float> large(stream.device(), 3 * kCount);
        const DeviceArray<float> larger(stream.device(), 6 * kCount);
        world.all_gather(buffer_of(large, stream), buffer_of(larger, stream));
        stream.synchronize();
        world.barrier();
        EXPECT_TRUE(becomes([&] { return control->counts().pinned_bytes < kept; }));
      },
      on_device());
}

/// What is too large to be kept is given back, whoever is the last to use it.
TEST_F(DeviceTrouble, LargePinnedMemoryIsGivenBack) {
  const standin::Counts before = control->counts();
  on_ranks(
      2,
      [this, &before](ProcessGroup& world) {
        constexpr std::size_t kCount = std::size_t{17} << 20;
        const TestStream stream(device_of_rank(world.rank()));
        const DeviceArray<float> x(stream.device(), Floats(kCount, 1));
        const DeviceArray<float> all(stream.device(), 2 * kCount);
        const int other = 1 - world.rank();
        world.all_gather(buffer_of(x, stream), buffer_of(all, stream), async).wait_host();
        if (world.rank() == 0) {
          world.send(buffer_of(x, stream), other, async).wait_host();
        } else {
          world.recv(buffer_of(x, stream), other, async).wait_host();
        }
        world.barrier();
        EXPECT_TRUE(becomes([&] {
          return control->counts().pinned_bytes - before.pinned_bytes < (std::size_t{1} << 20);
        })) << control->counts().pinned_bytes
            << " bytes";
      },
      on_device());
  EXPECT_EQ(control->counts().pinned_bytes, before.pinned_bytes);
}

TEST_F(DeviceTrouble, OutOfPinnedMemory) {
  control->set_pinned_limit(std::size_t{1} << 20);
  std::vector<std::string> lines;
  set_log_callback([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  test_kit::RunOptions with_warnings = on_device();
  with_warnings.init.settings["log"] = "warn";
  on_ranks(
      2,
      [](ProcessGroup& world) {
        constexpr std::size_t kCount = std::size_t{1} << 20;
        const TestStream stream(device_of_rank(world.rank()));
        DeviceArray<float> x(stream.device(), Floats(kCount, 1));
        for (int i = 0; i < 2; ++i) {
          world.all_reduce(buffer_of(x, stream));
          world.all_reduce(buffer_of(x, stream), async).wait();
        }
        EXPECT_EQ(x.download(stream.stream()), Floats(kCount, 16));
      },
      with_warnings);
  set_log_callback({});
  std::erase_if(lines, [](const std::string& line) {
    return line.find("of pinned memory left") == std::string::npos;
  });
  ASSERT_EQ(lines.size(), 2U) << "one of each rank";
  EXPECT_NE(lines[0].find("memory that is not pinned is used, which is slower; see ulimit -l and "
                          "TUTTI_STAGING_BYTES"),
            std::string::npos)
      << lines[0];
}

/// The address space of this process.
std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(DeviceTrouble, NoMemoryOnTheHost) {
  if (kNoForks || kKeepsFreed) GTEST_SKIP() << "a sanitizer needs address space of its own";
  const auto gather = [this](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    expect_unharmed(world);
    constexpr std::size_t kCount = std::size_t{32} << 20;
    const TestStream stream(0);
    const DeviceArray<float> x(0, kCount), y(0, kCount);
    control->set_pinned_limit(0);
    ::rlimit before{};
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
    const ::rlimit tight{mapped_bytes() + (std::size_t{64} << 20), before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
    std::optional<Error> error;
    try {
      world.all_gather(buffer_of(x, stream), buffer_of(y, stream));  // in one piece
    } catch (const Error& thrown) {
      error = thrown;
    }
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
    return error && error->code() == ErrorCode::kSystem ? error->what() : "no error";
  };
  const std::string said = test_kit::collect_ranks(1, gather, on_device())[0].result;
  EXPECT_NE(said.find("the host has no 268435456 bytes of memory to move the memory of cuda:0 "
                      "through"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("ulimit -a"), std::string::npos) << said;
}

// ---- what the program did before

TEST_F(DeviceTrouble, AKernelOfTheProgramThatFailed) {
  const auto outcomes = test_kit::collect_ranks(
      2,
      [this](const test_kit::Rank& me) -> std::string {
        ProcessGroup world = init_process_group(me.init);
        const TestStream stream(device_of_rank(me.rank));
        const DeviceArray<float> x(stream.device(), Floats(3, 1));
        world.all_reduce(buffer_of(x, stream));
        stream.synchronize();
        world.barrier();
        if (me.rank == 0) control->break_device(standin::kIllegalAddress);
        const Error error = thrown_by([&] {
          for (int i = 0; i < 1000; ++i) world.all_reduce(buffer_of(x, stream));
        });
        return error.what();
      },
      on_device());
  // Both ranks are of one process, whose devices fail together: each finds its own or is told.
  for (const test_kit::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.failure, "");
    EXPECT_NE(outcome.result.find(": an illegal memory access was encountered "
                                  "(CUDA_ERROR_ILLEGAL_ADDRESS); a kernel that the program gave "
                                  "the device has failed"),
              std::string::npos)
        << outcome.result;
  }
}

/// What a child of this process says when it uses device memory in a world of its own.
std::string said_by_child() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string said = "nothing";
    try {
      InitOptions init = on_device().init;
      init.rank = 0;
      init.world_size = 1;
      init.store = make_memory_store();
      ProcessGroup world = init_process_group(init);
      Floats x(3, 1);
      world.all_reduce(Buffer::cuda(x.data(), x.size(), 0));
    } catch (const std::exception& failure) {
      said = failure.what();
    }
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t size = ::read(ends[0], said.data(), said.size());
  said.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  return said;
}

TEST(DeviceRefusals, AChildThatWasForkedAfterCudaWasUsed) {
  if (kNoForks || has_threads()) GTEST_SKIP() << "only processes without threads are forked";
  const DeviceArray<float> x(0, 3);  // the program's own use; it has no world
  const std::string said = said_by_child();
  EXPECT_NE(said.find("all_reduce"), std::string::npos) << said;
  EXPECT_NE(said.find("a process that was forked after CUDA was used cannot use it"),
            std::string::npos)
      << said;
}

TEST(DeviceRefusals, AChildOfAProcessWithAWorld) {
  if (kNoForks || kKeepsFreed)
    GTEST_SKIP() << "a sanitizer follows no child of a process with threads";
  on_ranks(
      1,
      [](ProcessGroup& world) {
        expect_unharmed(world);
        const std::string said = said_by_child();
        EXPECT_NE(said.find("in a forked child of a process that has a world"), std::string::npos)
            << said;
        expect_unharmed(world);
      },
      on_device());
}

}  // namespace
}  // namespace tutti
