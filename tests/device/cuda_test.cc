// CUDA's driver as Tutti uses it, on the stand-in; what does not control that runs on CUDA, too
// (TUTTI_TEST_CUDA=real).
#include "device/cuda.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "standin/program.h"
#include "tutti/error.h"

namespace tutti::device {
namespace {

using namespace std::chrono_literals;
using standin::Control;
using standin::DeviceArray;
using standin::Gate;
using standin::ManagedArray;
using standin::PinnedArray;
using standin::TestStream;

#if defined(__has_feature)
constexpr bool kTsan = __has_feature(thread_sanitizer);
#else
constexpr bool kTsan = false;
#endif

std::atomic<bool> was_opened = false;

const Cuda& cuda() {
  const Cuda& cuda = Cuda::open(standin::driver_file());
  was_opened = true;
  return cuda;
}

/// The error of a call that fails.
std::string error_of(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// Skips where there is nothing to control; leaves the stand-in as it was.
class OnStandin : public testing::Test {
 protected:
  void SetUp() override {
    if (standin::is_real()) GTEST_SKIP() << "this is CUDA itself";
    control = standin::Driver::get().control;
    control->reset();
  }
  void TearDown() override {
    if (control != nullptr) control->reset();
  }
  const Control* control = nullptr;
};

/// As the first of a process: one that was opened stays.
class CudaOpen : public OnStandin {
 protected:
  void SetUp() override {
    OnStandin::SetUp();
    if (was_opened) GTEST_SKIP() << "CUDA is open in this process";
  }
  std::string refusal(const char* file = standin::driver_file()) {
    return error_of(ErrorCode::kUnsupported, [&] { Cuda::open(file); });
  }
};

TEST_F(CudaOpen, NamesAFileThatIsNotThere) {
  const std::string error = refusal("/nowhere/libcuda.so.1");
  EXPECT_NE(error.find("/nowhere/libcuda.so.1"), std::string::npos) << error;
  EXPECT_NE(error.find("TUTTI_CUDA_LIBRARY"), std::string::npos) << error;
  EXPECT_NE(error.find("install NVIDIA's driver"), std::string::npos) << error;
}

TEST_F(CudaOpen, NamesWhatAnotherLibraryLacks) {
  const std::string error = refusal("libm.so.6");
  EXPECT_NE(error.find("libm.so.6 has no cuInit"), std::string::npos) << error;
}

TEST_F(CudaOpen, ADriverThatIsTooOld) {
  control->set_driver_version(11030);
  const std::string error = refusal();
  EXPECT_NE(error.find("is of version 11.3, and 11.4 is needed"), std::string::npos) << error;
  EXPECT_EQ(control->calls("cuInit"), 0U);
}

TEST_F(CudaOpen, NoDevice) {
  control->set_device_count(0);
  const std::string error = refusal();
  EXPECT_NE(error.find("no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)"),
            std::string::npos)
      << error;
}

TEST_F(CudaOpen, DevicesThatAreNotVisible) {
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  EXPECT_NE(refusal().find("CUDA_ERROR_NO_DEVICE"), std::string::npos);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(CudaOpen, ProgramsThatATestOnlyStartsAreToldByTheirEnvironment) {
  ::setenv("TUTTI_TEST_CUDA_DEVICES", "0", 1);
  control->reset();
  EXPECT_NE(refusal().find("CUDA_ERROR_NO_DEVICE"), std::string::npos);
  ::unsetenv("TUTTI_TEST_CUDA_DEVICES");
}

TEST_F(CudaOpen, AnErrorWithoutAName) {
  control->fail("cuInit", 1, 12345);
  EXPECT_NE(refusal().find("cuInit: error 12345"), std::string::npos);
}

TEST_F(CudaOpen, OnlyVisibleDevicesCount) {
  control->set_device_count(4);
  ::setenv("CUDA_VISIBLE_DEVICES", "2,0,7,1", 1);
  const Cuda& opened = cuda();  // as CUDA has it: those before the first that is not there
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(opened.device_count(), 2);
  EXPECT_EQ(opened.bus_id(0), "0000:3D:00.0");
  EXPECT_EQ(opened.bus_id(1), "0000:3B:00.0");
}

TEST(LibraryTest, FindsWhatIsThere) {
  const Library library(standin::driver_file(), {"CUDA", "SETTING", "remedy"});
  EXPECT_EQ(library.file(), standin::driver_file());
  EXPECT_EQ(library.find<int(int)>("cuNothing"), nullptr);
  int version = 0;
  EXPECT_EQ(library.need<int(int*)>("cuDriverGetVersion")(&version), 0);
  EXPECT_GT(version, 11000);
  const std::string error =
      error_of(ErrorCode::kUnsupported, [&] { library.need<void()>("cuNothing"); });
  EXPECT_NE(error.find("has no cuNothing"), std::string::npos) << error;
  EXPECT_NE(error.find("remedy, or name its file in SETTING"), std::string::npos) << error;
}

TEST(CudaTest, KnowsItsDevices) {
  EXPECT_GE(cuda().driver_version(), 11040);
  ASSERT_GE(cuda().device_count(), 1);
  EXPECT_GE(cuda().bus_id(0).size(), std::string("0000:3b:00.0").size());
  EXPECT_EQ(&cuda(), &Cuda::open("/nowhere"));  // the first file counts
  const Current current(cuda(), 0);
  EXPECT_GT(cuda().free_bytes(), 0U);
}

TEST(CudaTest, NamesADeviceThatIsNotThere) {
  const std::string error =
      error_of(ErrorCode::kInvalidArgument, [] { const Current current(cuda(), 77); });
  EXPECT_NE(error.find("there is no device cuda:77"), std::string::npos) << error;
  error_of(ErrorCode::kInvalidArgument, [] { const Current current(cuda(), -1); });
  error_of(ErrorCode::kSystem, [] { (void)cuda().bus_id(77); });
}

void expect_place(const void* pointer, Place::Kind kind, int index) {
  const Place place = cuda().place_of(pointer);
  EXPECT_EQ(place.kind, kind);
  EXPECT_EQ(place.index, index);
}

TEST(CudaTest, KnowsWhereMemoryIs) {
  for (int device = 0; device < cuda().device_count(); ++device) {
    const DeviceArray<char> array(device, 1000);
    expect_place(array.data(), Place::Kind::device, device);
    expect_place(array.data() + 500, Place::Kind::device, device);
    expect_place(array.data() + 999, Place::Kind::device, device);
    const ManagedArray<char> managed(device, 1000);
    expect_place(managed.data() + 999, Place::Kind::managed, device);
  }
  const PinnedArray<char> pinned(0, 1000);
  expect_place(pinned.data() + 999, Place::Kind::pinned, 0);
  const int local = 0;
  const std::vector<char> heap(1000);
  expect_place(&local, Place::Kind::host, 0);
  expect_place(heap.data(), Place::Kind::host, 0);
}

TEST_F(OnStandin, AnAllocationEndsWhereItEnds) {
  const DeviceArray<char> array(0, 1000);
  expect_place(array.data() + 1000, Place::Kind::host, 0);
  expect_place(array.data() - 1, Place::Kind::host, 0);
  expect_place(nullptr, Place::Kind::host, 0);
}

TEST(CudaTest, CopiesBetweenAnyTwoPlaces) {
  const Current current(cuda(), 0);
  const OwnStream own(cuda());
  std::vector<int> values(100'000), back(values.size());
  std::iota(values.begin(), values.end(), 5);
  const std::size_t byte_count = values.size() * sizeof(int);
  const DeviceArray<int> first(0, values.size());
  const DeviceArray<int> second(cuda().device_count() - 1, values.size());
  const PinnedArray<int> pinned(0, values.size());
  const ManagedArray<int> managed(0, values.size());
  cuda().copy(first.data(), values.data(), byte_count, own.stream());
  cuda().copy(second.data(), first.data(), byte_count, own.stream());
  cuda().copy(pinned.data(), second.data(), byte_count, own.stream());
  cuda().copy(managed.data(), pinned.data(), byte_count, own.stream());
  cuda().copy(back.data(), managed.data(), byte_count, own.stream());
  standin::synchronize(own.stream());
  EXPECT_EQ(back, values);
}

TEST(CudaTest, OnlyMemoryOfTheHostItDoesNotKnowIsWaitedFor) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  const PinnedArray<int> pinned(0, 1);
  const DeviceArray<int> array(0, {1});
  pinned.host()[0] = 2;
  std::optional<Gate> gate(stream);
  cuda().copy(array.data(), pinned.data(), sizeof(int), stream.stream());
  EXPECT_FALSE(stream.is_idle());
  int value = 0;
  auto blocked = std::async(std::launch::async, [&] {
    const Current there(cuda(), 0);
    cuda().copy(&value, array.data(), sizeof(int), stream.stream());
  });
  EXPECT_EQ(blocked.wait_for(20ms), std::future_status::timeout);
  gate.reset();
  blocked.get();
  stream.synchronize();
  EXPECT_EQ(value, 2);
}

TEST(CudaTest, PinnedMemoryIsTheHosts) {
  const Current current(cuda(), 0);
  auto* const memory = static_cast<char*>(cuda().try_pinned(1 << 16));
  ASSERT_NE(memory, nullptr);
  std::fill_n(memory, 1 << 16, 'x');
  EXPECT_EQ(cuda().place_of(memory).kind, Place::Kind::pinned);
  cuda().free_pinned(memory);
}

TEST(CudaTest, KnowsWhatIsBeingCaptured) {
  const TestStream stream(0);
  EXPECT_FALSE(cuda().is_capturing(stream.stream()));
  stream.begin_capture();
  EXPECT_TRUE(cuda().is_capturing(stream.stream()));
  stream.end_capture();
  EXPECT_FALSE(cuda().is_capturing(stream.stream()));
  stream.synchronize();
}

/// cudaErrorStreamCaptureImplicit: another stream, for which it would wait, is being captured.
TEST_F(OnStandin, TheDefaultStreamBesideACaptureCountsAsCaptured) {
  const Current current(cuda(), 0);
  control->fail("cuStreamIsCapturing", 1, 906);
  EXPECT_TRUE(cuda().is_capturing({}));
  EXPECT_FALSE(cuda().is_capturing({}));
}

TEST_F(OnStandin, AFunctionThatFailsIsNamed) {
  const Current current(cuda(), 0);
  control->fail("cuStreamCreate", 2, standin::kOutOfMemory);
  const OwnStream first(cuda());
  const std::string error = error_of(ErrorCode::kSystem, [] { const OwnStream own(cuda()); });
  EXPECT_NE(error.find("cuStreamCreate failed on cuda:0: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"),
            std::string::npos)
      << error;
  const OwnStream third(cuda());
  EXPECT_EQ(control->calls("cuStreamCreate"), 3U);
  EXPECT_EQ(control->counts().streams, 2U);
}

TEST_F(OnStandin, ACopyBeyondAnAllocationFails) {
  const Current current(cuda(), 0);
  const OwnStream own(cuda());
  const DeviceArray<char> array(0, 1000);
  char bytes[8] = {};
  const std::string error = error_of(
      ErrorCode::kSystem, [&] { cuda().copy(array.data() + 993, bytes, 8, own.stream()); });
  EXPECT_NE(error.find("cuMemcpyAsync failed on cuda:0: invalid argument"), std::string::npos)
      << error;
}

TEST_F(OnStandin, MemoryHasLimits) {
  const Current current(cuda(), 0);
  control->set_pinned_limit(1000);
  control->set_device_limit(5000);
  EXPECT_EQ(cuda().try_pinned(1001), nullptr);
  void* const memory = cuda().try_pinned(1000);
  EXPECT_EQ(cuda().try_pinned(1), nullptr);
  EXPECT_EQ(control->counts().pinned_bytes, 1000U);
  cuda().free_pinned(memory);
  EXPECT_EQ(control->counts().pinned_bytes, 0U);
  const DeviceArray<char> array(0, 4000);
  EXPECT_EQ(cuda().free_bytes(), 1000U);
  EXPECT_THROW(DeviceArray<char>(0, 1001), std::runtime_error);
  EXPECT_EQ(control->counts().device_bytes, 4000U);
}

TEST_F(OnStandin, ABrokenDeviceSaysWhatItsProgramDid) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  {
    OwnStream own(cuda());
    Event event(cuda());
    event.record(own.stream());
    control->break_device(standin::kIllegalAddress);
    const std::string error = error_of(ErrorCode::kSystem, [&] { (void)event.done(); });
    EXPECT_NE(error.find("an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS); a "
                         "kernel that the program gave the device has failed"),
              std::string::npos)
        << error;
    error_of(ErrorCode::kSystem, [] { const Event another(cuda()); });
    error_of(ErrorCode::kSystem, [&] { (void)cuda().place_of(&own); });
    EXPECT_EQ(cuda().try_pinned(1), nullptr);
    const Current again(cuda(), 0);
  }
  EXPECT_EQ(control->counts().events, 0U);  // what frees still does
  EXPECT_EQ(control->counts().streams, 1U);
}

TEST_F(OnStandin, WorkCanBreakTheDeviceLater) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  const PinnedArray<int> pinned(0, {1});
  const DeviceArray<int> array(0, {2});
  control->fail_later("cuMemcpyAsync", 1, standin::kLaunchFailed);
  Gate gate(stream);
  cuda().copy(array.data(), pinned.data(), sizeof(int), stream.stream());
  Event behind(cuda());
  behind.record(stream.stream());
  EXPECT_FALSE(behind.done());
  gate.open();
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
  EXPECT_NE(
      error_of(ErrorCode::kSystem, [&] { (void)behind.done(); }).find("CUDA_ERROR_LAUNCH_FAILED"),
      std::string::npos);
  control->reset();
  EXPECT_EQ(array.download(stream.stream()), std::vector<int>{2});
}

TEST_F(OnStandin, ACopyCanHang) {
  const Current current(cuda(), 0);
  const OwnStream own(cuda());
  const PinnedArray<int> pinned(0, {7});
  const DeviceArray<int> array(0, {0});
  Event behind(cuda());
  control->hang("cuMemcpyAsync", 1);
  cuda().copy(array.data(), pinned.data(), sizeof(int), own.stream());
  behind.record(own.stream());
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(behind.done());
  control->release();
  EXPECT_EQ(array.download(own.stream()), std::vector<int>{7});
  EXPECT_TRUE(behind.done());
}

TEST_F(OnStandin, TheHostCannotUseDeviceMemory) {
  const DeviceArray<char> array(0, {'a', 'b'});
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(::write(ends[1], array.data(), 2), -1);  // as any other use, but that it ends nothing
  EXPECT_EQ(errno, EFAULT);
  void* const view = standin::Driver::get().view(array.data() + 1);
  EXPECT_EQ(::write(ends[1], view, 1), 1);
  char read = 0;
  EXPECT_EQ(::read(ends[0], &read, 1), 1);
  EXPECT_EQ(read, 'b');
  EXPECT_EQ(standin::Driver::get().view(&read), nullptr);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(OnStandin, AChildCannotUseIt) {
  const Current current(cuda(), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(standin::Driver::get().init(0));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), standin::kNotInitialized);
}

TEST_F(OnStandin, AChildIsToldWhyItCannotUseIt) {
  (void)cuda();
  const pid_t child = ::fork();
  if (child == 0) {
    std::string error;
    try {
      (void)cuda().place_of(&child);
    } catch (const Error& failure) {
      error = failure.what();
    }
    ::_exit(error.find("forked after CUDA was used") == std::string::npos ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(OnStandin, ACallWithoutACurrentDeviceFails) {
  const std::string error = error_of(ErrorCode::kSystem, [] { const OwnStream own(cuda()); });
  EXPECT_NE(error.find("CUDA_ERROR_INVALID_CONTEXT"), std::string::npos) << error;
}

TEST_F(OnStandin, AHostFunctionCannotCallIt) {
  const standin::OnDevice current(0);
  const TestStream stream(0);
  int result = 0;
  const auto call = [](void* to) {
    *static_cast<int*>(to) = standin::Driver::get().query(nullptr);
  };
  standin::Driver::check(standin::Driver::get().launch_host(stream.stream().handle, call, &result),
                         "");
  stream.synchronize();
  EXPECT_EQ(result, standin::kNotPermitted);
}

TEST_F(OnStandin, MemoryFreedInUseIsCounted) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  void* const pinned = cuda().try_pinned(4);
  const DeviceArray<int> array(0, {3});
  Gate gate(stream);
  cuda().copy(pinned, array.data(), 4, stream.stream());
  cuda().free_pinned(pinned);
  EXPECT_EQ(control->counts().freed_in_use, 1U);
  gate.open();
  stream.synchronize();
}

int device_now() {
  int device = -1;
  EXPECT_EQ(standin::Driver::get().get_device(&device), standin::kSuccess);
  return device;
}

TEST(CurrentTest, LeavesWhatWasThere) {
  const int last = cuda().device_count() - 1;
  const Current outer(cuda(), 0);
  {
    const Current inner(cuda(), last);
    EXPECT_EQ(device_now(), last);
  }
  EXPECT_EQ(device_now(), 0);
  std::thread([last] {
    const Current there(cuda(), last);
    EXPECT_EQ(device_now(), last);
  }).join();
  EXPECT_EQ(device_now(), 0);
}

TEST(EventTest, IsDoneUntilItIsRecorded) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  Event event(cuda());
  EXPECT_TRUE(event.done());
  event.order(stream.stream());
  stream.synchronize();
}

TEST(EventTest, IsDoneWhenItsStreamHasComeToIt) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  Event event(cuda());
  for (int i = 0; i < 3; ++i) {
    Gate gate(stream);
    event.record(stream.stream());
    EXPECT_FALSE(event.done());
    gate.open();
    stream.synchronize();
    EXPECT_TRUE(event.done());
  }
}

TEST(EventTest, OrdersTwoStreams) {
  const Current current(cuda(), 0);
  const TestStream from(0), to(0);
  DeviceArray<int> array(0, {0});
  const PinnedArray<int> pinned(0, {0});
  Event event(cuda());
  for (int i = 1; i <= 20; ++i) {
    standin::delay(from, 1ms);
    const PinnedArray<int> next(0, {i});
    array.load(next, from.stream());
    event.record(from.stream());
    event.order(to.stream());
    cuda().copy(pinned.data(), array.data(), sizeof(int), to.stream());
    to.synchronize();
    ASSERT_EQ(pinned.host()[0], i);
  }
}

TEST(EventTest, WhoWaitsMeansTheRecordThereWas) {
  const Current current(cuda(), 0);
  const TestStream from(0), to(0);
  Event event(cuda());
  event.record(from.stream());
  event.order(to.stream());
  Gate gate(from);
  event.record(from.stream());
  to.synchronize();  // does not wait for the second
  EXPECT_FALSE(event.done());
  gate.open();
  from.synchronize();
}

TEST(EventTest, Moves) {
  const Current current(cuda(), 0);
  const TestStream stream(0);
  Event first(cuda());
  Gate gate(stream);
  first.record(stream.stream());
  Event second(std::move(first));
  EXPECT_FALSE(second.done());
  Event third(cuda());
  third = std::move(second);
  EXPECT_FALSE(third.done());
  gate.open();
  stream.synchronize();
}

TEST(EventTest, OrdersStreamsOfTwoDevices) {
  if (cuda().device_count() < 2) GTEST_SKIP() << "one device";
  const TestStream from(0), to(1);
  const Current current(cuda(), 0);
  Event event(cuda());
  error_of(ErrorCode::kSystem, [&] { event.record(to.stream()); });
  DeviceArray<int> source(0, {1}), target(1, {0});
  const PinnedArray<int> pinned(0, {2});
  standin::delay(from, 5ms);
  source.load(pinned, from.stream());
  event.record(from.stream());
  event.order(to.stream());
  target.load(source, to.stream());
  EXPECT_EQ(target.download(to.stream()), std::vector<int>{2});
}

TEST_F(OnStandin, NothingIsLeft) {
  const Current current(cuda(), 0);
  const auto before = control->counts();
  {
    const OwnStream own(cuda());
    Event event(cuda());
    Event other(std::move(event));
    other.record(own.stream());
    const DeviceArray<int> array(0, {1});
    const auto counts = control->counts();
    EXPECT_EQ(counts.streams, before.streams + 1);
    EXPECT_EQ(counts.events, before.events + 1);
  }
  const auto after = control->counts();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.device_bytes, before.device_bytes);
  EXPECT_EQ(after.pinned_bytes, before.pinned_bytes);
  EXPECT_EQ(after.freed_in_use, 0U);
}

/// One counter goes from stream to stream, ordered by events; each step adds one on the host.
TEST_F(OnStandin, DelaysDoNotBreakTheOrder) {
  control->set_delays(41, 200);
  const Current current(cuda(), 0);
  const TestStream streams[] = {TestStream(0), TestStream(0), TestStream(0)};
  DeviceArray<int> array(0, {0});
  Event event(cuda());
  std::mt19937 random(7);
  constexpr int kSteps = 300;
  const auto add = [](void* at) { ++*static_cast<int*>(standin::Driver::get().view(at)); };
  for (int i = 0; i < kSteps; ++i) {
    const Stream stream = streams[random() % 3].stream();
    event.order(stream);
    standin::Driver::check(standin::Driver::get().launch_host(stream.handle, add, array.data()),
                           "cuLaunchHostFunc");
    event.record(stream);
  }
  event.order(streams[0].stream());
  EXPECT_EQ(array.download(streams[0].stream()), std::vector<int>{kSteps});
}

/// There and back through two streams; `value`: one that no other round has.
void go_round(int device, int value) {
  const Current current(cuda(), device);
  const OwnStream there(cuda()), back(cuda());
  Event event(cuda());
  const PinnedArray<int> from(device, {value, value + 1}), to(device, 2);
  const DeviceArray<int> array(device, 2);
  cuda().copy(array.data(), from.data(), from.byte_count(), there.stream());
  event.record(there.stream());
  event.order(back.stream());
  cuda().copy(to.data(), array.data(), to.byte_count(), back.stream());
  event.record(back.stream());
  while (!event.done()) std::this_thread::yield();
  EXPECT_EQ(to.host()[0], value);
  EXPECT_EQ(to.host()[1], value + 1);
  EXPECT_EQ(cuda().place_of(array.data() + 1).index, device);
}

TEST_F(OnStandin, ThreadsShareIt) {
  control->set_delays(3, 100);
  (void)cuda();
  const auto before = control->counts();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([thread] {
      for (int i = 0; i < 50; ++i) go_round(thread % cuda().device_count(), 1000 * thread + i);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(control->counts().streams, before.streams);
  EXPECT_EQ(control->counts().events, before.events);
  EXPECT_EQ(control->counts().pinned_bytes, before.pinned_bytes);
  EXPECT_EQ(control->counts().device_bytes, before.device_bytes);
  EXPECT_EQ(control->counts().freed_in_use, 0U);
}

/// What was made before goes, whatever fails.
TEST_F(OnStandin, NothingIsLeftOfWhatFails) {
  const auto before = control->counts();
  const char* const functions[] = {"cuStreamCreate",   "cuEventCreate", "cuMemHostAlloc",
                                   "cuMemAlloc_v2",    "cuMemcpyAsync", "cuEventRecord",
                                   "cuStreamWaitEvent"};
  int failed = 0;
  for (const char* const function : functions)
    for (int nth = 1; nth <= 2; ++nth) {
      control->reset();
      control->fail(function, nth, standin::kUnknown);
      try {
        go_round(0, nth);
      } catch (const std::exception&) {
        ++failed;
      }
      EXPECT_EQ(control->counts().streams, before.streams) << function;
      EXPECT_EQ(control->counts().events, before.events) << function;
      EXPECT_EQ(control->counts().pinned_bytes, before.pinned_bytes) << function;
      EXPECT_EQ(control->counts().device_bytes, before.device_bytes) << function;
    }
  EXPECT_EQ(failed, 11);  // three functions are called once
}

/// The delays are real: without an event a reader on another stream comes too early.
TEST_F(OnStandin, DelaysShowAMissingEvent) {
  if (kTsan && std::getenv("TUTTI_TEST_RACE") == nullptr) GTEST_SKIP() << "it is a data race";
  const Current current(cuda(), 0);
  const TestStream from(0), to(0);
  DeviceArray<int> array(0, {0});
  const PinnedArray<int> one(0, {1});
  int early = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    array.upload({0});
    control->set_delays(seed, 2000);
    array.load(one, from.stream());
    early += array.download(to.stream())[0] == 0 ? 1 : 0;
    from.synchronize();
    control->set_delays(0, 0);
  }
  EXPECT_GT(early, 0);
  EXPECT_LT(early, 20);
}

TEST_F(OnStandin, TheDefaultStreamWorks) {
  const Current current(cuda(), 0);
  control->set_delays(1, 1000);
  DeviceArray<int> array(0, {4});
  const PinnedArray<int> pinned(0, {5});
  array.load(pinned, Stream{});
  Event event(cuda());
  event.record(Stream{});
  EXPECT_EQ(array.download(Stream{}), std::vector<int>{5});
  EXPECT_TRUE(event.done());
}

}  // namespace
}  // namespace tutti::device
