// A small program on a device, for tests: the same on the stand-in and, where TUTTI_TEST_CUDA=real,
// on CUDA itself. It uses the driver by itself, as a user's program beside Tutti does.
//
//   standin::TestStream stream(0);
//   standin::DeviceArray<float> array(0, {1, 2, 3});
//   standin::delay(stream.stream(), 10ms);               // what comes next, comes late
//   group.all_reduce(Buffer::cuda(array.data(), array.count(), 0, stream.stream()));
//   EXPECT_EQ(array.download(stream.stream()), ...);
//
// Needs tutti_on_device(TARGET) in the CMakeLists. Errors of CUDA are std::runtime_error.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "standin/cuda.h"
#include "tutti/types.h"

namespace tutti::standin {

/// A program that no stand-in was built for, as a bench, has CUDA itself.
#ifndef TUTTI_STANDIN_CUDA
#define TUTTI_STANDIN_CUDA nullptr
#endif

inline bool is_real() {
  const char* const standin = TUTTI_STANDIN_CUDA;
  const char* const chosen = std::getenv("TUTTI_TEST_CUDA");
  return standin == nullptr || (chosen != nullptr && std::string_view(chosen) == "real");
}
/// What TUTTI_CUDA_LIBRARY is for Tutti in this test.
inline const char* driver_file() { return is_real() ? "libcuda.so.1" : TUTTI_STANDIN_CUDA; }

/// The driver's functions that programs here call.
class Driver {
 public:
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

 private:
  template <class Function>
  Function* find(const char* name, bool is_needed = true) const {
    void* const found = ::dlsym(library_, name);
    if (found == nullptr && is_needed) throw std::runtime_error(std::string("no ") + name);
    return reinterpret_cast<Function*>(found);
  }
  Driver() : library_(::dlopen(driver_file(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
    const auto control_of = find<const Control*()>("tutti_standin_cuda", false);
    control = control_of == nullptr ? nullptr : control_of();
    view = find<void*(void*)>("tutti_standin_view", false);
  }
  void* library_;  // from here on members are found in it

 public:
  static void check(int result, const char* function) {
    if (result != kSuccess)
      throw std::runtime_error(std::string(function) + ": " + std::to_string(result));
  }
  void* context(int device) const {
    void* context = nullptr;
    check(init(0), "cuInit");
    check(retain(&context, device), "cuDevicePrimaryCtxRetain");
    return context;
  }
  int device_count() const {
    int count = 0;
    check(init(0), "cuInit");
    check(get_count(&count), "cuDeviceGetCount");
    return count;
  }

  const Control* control = nullptr;  ///< null: it is CUDA itself
  void* (*view)(void*) = nullptr;

#define TUTTI_FOUND(name, symbol, ...) int (*name)(__VA_ARGS__) = find<int(__VA_ARGS__)>(symbol)
  using Address = unsigned long long;
  TUTTI_FOUND(init, "cuInit", unsigned int);
  TUTTI_FOUND(get_count, "cuDeviceGetCount", int*);
  TUTTI_FOUND(retain, "cuDevicePrimaryCtxRetain", void**, int);
  TUTTI_FOUND(push, "cuCtxPushCurrent_v2", void*);
  TUTTI_FOUND(pop, "cuCtxPopCurrent_v2", void**);
  TUTTI_FOUND(get_device, "cuCtxGetDevice", int*);
  TUTTI_FOUND(allocate, "cuMemAlloc_v2", Address*, std::size_t);
  TUTTI_FOUND(allocate_managed, "cuMemAllocManaged", Address*, std::size_t, unsigned int);
  TUTTI_FOUND(free, "cuMemFree_v2", Address);
  TUTTI_FOUND(allocate_pinned, "cuMemHostAlloc", void**, std::size_t, unsigned int);
  TUTTI_FOUND(free_pinned, "cuMemFreeHost", void*);
  TUTTI_FOUND(copy, "cuMemcpyAsync", Address, Address, std::size_t, void*);
  TUTTI_FOUND(set_bytes, "cuMemsetD8Async", Address, unsigned char, std::size_t, void*);
  TUTTI_FOUND(make_stream, "cuStreamCreate", void**, unsigned int);
  TUTTI_FOUND(destroy_stream, "cuStreamDestroy_v2", void*);
  TUTTI_FOUND(query, "cuStreamQuery", void*);
  TUTTI_FOUND(synchronize, "cuStreamSynchronize", void*);
  TUTTI_FOUND(begin_capture, "cuStreamBeginCapture_v2", void*, int);
  TUTTI_FOUND(end_capture, "cuStreamEndCapture", void*, void**);
  TUTTI_FOUND(destroy_graph, "cuGraphDestroy", void*);
  TUTTI_FOUND(launch_host, "cuLaunchHostFunc", void*, void (*)(void*), void*);
#undef TUTTI_FOUND
};

/// A device is current in this thread while it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    Driver::check(Driver::get().push(Driver::get().context(device)), "cuCtxPushCurrent");
  }
  ~OnDevice() {
    void* popped = nullptr;
    (void)Driver::get().pop(&popped);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

/// Waits until all that the stream was given is done.
inline void synchronize(Stream stream) {
  Driver::check(Driver::get().synchronize(stream.handle), "cuStreamSynchronize");
}

/// A stream of the program, which does not wait for the default one.
class TestStream {
 public:
  explicit TestStream(int device) : device_(device) {
    const OnDevice current(device);
    Driver::check(Driver::get().make_stream(&handle_, 1), "cuStreamCreate");
  }
  ~TestStream() {
    const OnDevice current(device_);
    (void)Driver::get().destroy_stream(handle_);
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  Stream stream() const { return {handle_}; }
  int device() const { return device_; }
  void synchronize() const {
    const OnDevice current(device_);
    standin::synchronize(stream());
  }
  bool is_idle() const {
    const OnDevice current(device_);
    return Driver::get().query(handle_) == kSuccess;
  }
  /// What it is given until end_capture() goes into a graph, and is not run.
  void begin_capture() const {
    constexpr int kThreadLocal = 1;
    const OnDevice current(device_);
    Driver::check(Driver::get().begin_capture(handle_, kThreadLocal), "cuStreamBeginCapture");
  }
  void end_capture() const {
    const OnDevice current(device_);
    void* graph = nullptr;
    Driver::check(Driver::get().end_capture(handle_, &graph), "cuStreamEndCapture");
    if (graph != nullptr) (void)Driver::get().destroy_graph(graph);
  }

 private:
  const int device_;
  void* handle_ = nullptr;
};

/// What the stream is given next begins so much later.
inline void delay(const TestStream& stream, std::chrono::microseconds by) {
  const OnDevice current(stream.device());
  const auto sleep = [](void* count) {
    std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::intptr_t>(count)));
  };
  void* const count = reinterpret_cast<void*>(static_cast<std::intptr_t>(by.count()));
  Driver::check(Driver::get().launch_host(stream.stream().handle, sleep, count),
                "cuLaunchHostFunc");
}

/// What the stream is given next waits until this is opened, or gone.
class Gate {
 public:
  explicit Gate(const TestStream& stream) : is_open_(kept()) {
    const OnDevice current(stream.device());
    const auto wait = [](void* is_open) {
      while (!static_cast<std::atomic<bool>*>(is_open)->load())
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    };
    Driver::check(Driver::get().launch_host(stream.stream().handle, wait, &is_open_),
                  "cuLaunchHostFunc");
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() { is_open_ = true; }

 private:
  /// Until the process ends: a broken device may leave the one who waits behind.
  static std::atomic<bool>& kept() {
    static std::mutex mutex;
    static auto& all = *new std::deque<std::atomic<bool>>;
    const std::lock_guard lock(mutex);
    return all.emplace_back(false);
  }
  std::atomic<bool>& is_open_;
};

enum class From : std::uint8_t { device, pinned, managed };

/// Memory of a program; `data` may be used by the host if it is not of the device.
template <class T, From kFrom>
class Array {
 public:
  Array(int device, std::size_t count) : device_(device), count_(count) {
    const OnDevice current(device);
    const Driver& driver = Driver::get();
    constexpr unsigned int kGlobal = 1, kPortable = 1;
    if (kFrom == From::pinned) {
      void* memory = nullptr;
      Driver::check(driver.allocate_pinned(&memory, byte_count(), kPortable), "cuMemHostAlloc");
      data_ = static_cast<T*>(memory);
      return;
    }
    Driver::Address address = 0;
    if (kFrom == From::managed) {
      Driver::check(driver.allocate_managed(&address, byte_count(), kGlobal), "cuMemAllocManaged");
    } else {
      Driver::check(driver.allocate(&address, byte_count()), "cuMemAlloc");
    }
    data_ = reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
  }
  Array(int device, const std::vector<T>& values) : Array(device, values.size()) { upload(values); }
  Array(int device, std::initializer_list<T> values) : Array(device, std::vector<T>(values)) {}
  ~Array() {
    const OnDevice current(device_);
    (void)(kFrom == From::pinned ? Driver::get().free_pinned(data_)
                                 : Driver::get().free(address()));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  std::size_t count() const { return count_; }
  std::size_t byte_count() const { return count_ * sizeof(T); }
  int device() const { return device_; }
  /// Of memory that the host may use.
  std::span<T> host() const requires(kFrom != From::device) { return {data_, count_}; }

  /// In order with the stream, whose work it waits for. `values`: as many as it has.
  void upload(const std::vector<T>& values, Stream stream = {}) {
    copy(address(), address_of(values.data()), stream);
    wait(stream);
  }
  /// As upload().
  std::vector<T> download(Stream stream = {}) const {
    std::vector<T> values(count_);
    copy(address_of(values.data()), address(), stream);
    wait(stream);
    return values;
  }
  /// In order with the stream, and returns at once. `other`: has as many.
  template <From kOther>
  void load(const Array<T, kOther>& other, Stream stream) {
    copy(address(), address_of(other.data()), stream);
  }

 private:
  static Driver::Address address_of(const T* pointer) {
    return static_cast<Driver::Address>(reinterpret_cast<std::uintptr_t>(pointer));
  }
  Driver::Address address() const { return address_of(data_); }
  void copy(Driver::Address to, Driver::Address from, Stream stream) const {
    const OnDevice current(device_);
    Driver::check(Driver::get().copy(to, from, byte_count(), stream.handle), "cuMemcpyAsync");
  }
  void wait(Stream stream) const {
    const OnDevice current(device_);
    synchronize(stream);
  }

  const int device_;
  const std::size_t count_;
  T* data_ = nullptr;
};

template <class T>
using DeviceArray = Array<T, From::device>;
template <class T>
using PinnedArray = Array<T, From::pinned>;
template <class T>
using ManagedArray = Array<T, From::managed>;

}  // namespace tutti::standin
