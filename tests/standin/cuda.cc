// The driver's functions, and the control of the stand-in.
#include "standin/cuda.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "standin/memory.h"
#include "standin/stream.h"
#include "standin/trouble.h"

#define TUTTI_DRIVER __attribute__((visibility("default"))) int

namespace tutti::standin {

namespace {

using DevicePointer = unsigned long long;

/// What belongs to no stream and to no memory.
class Process {
 public:
  static Process& get() {
    static auto& process = *new Process;  // streams use it until the process ends
    return process;
  }

  int init();
  /// Not before init(), and not in a child: its threads are the parent's.
  bool is_usable() const { return process_ == ::getpid(); }
  std::vector<int> visible();  ///< the numbers that CUDA_VISIBLE_DEVICES leaves
  int device_count() const { return visible_count_; }
  void* context(int device) { return &contexts_[device]; }
  int device_of(void* context) const {
    for (int i = 0; i < device_count(); ++i)
      if (context == &contexts_[i]) return i;
    return -1;
  }
  std::shared_ptr<Stream> default_stream(int device);
  std::uint64_t next_stream() { return stream_count_++; }
  void set_count(int count) { all_count_ = std::clamp(count, 0, kMostDevices); }
  void reset();

  std::atomic<int> version{13000};

 private:
  Process() { reset(); }
  static unsigned long setting(const char* name, unsigned long otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
  }

  std::atomic<pid_t> process_{0};  ///< that has called cuInit
  std::atomic<std::uint64_t> stream_count_{0};
  std::atomic<int> all_count_{2}, visible_count_{0};
  std::mutex mutex_;
  std::vector<int> visible_;                               // mutex_
  std::shared_ptr<Stream> default_streams_[kMostDevices];  // mutex_
  char contexts_[kMostDevices] = {};                       // only their addresses mean something
};

int Process::init() {
  if (process_ != 0 && !is_usable()) return kNotInitialized;
  std::vector<int> seen;
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES"); list != nullptr) {
    const char* const end = list + std::strlen(list);
    for (int i = 0; list < end; ++list) {
      const auto [rest, error] = std::from_chars(list, end, i);
      if (error != std::errc{} || i < 0 || i >= all_count_) break;
      seen.push_back(i);
      list = rest;
    }
  } else {
    for (int i = 0; i < all_count_; ++i) seen.push_back(i);
  }
  if (seen.empty()) return kNoDevice;
  const std::lock_guard lock(mutex_);
  visible_ = std::move(seen);
  visible_count_ = static_cast<int>(visible_.size());
  process_ = ::getpid();
  return kSuccess;
}

std::vector<int> Process::visible() {
  const std::lock_guard lock(mutex_);
  return visible_;
}

std::shared_ptr<Stream> Process::default_stream(int device) {
  const std::lock_guard lock(mutex_);
  auto& stream = default_streams_[device];
  if (stream == nullptr) stream = std::make_shared<Stream>(device, device);
  return stream;
}

void Process::reset() {
  set_count(static_cast<int>(setting("TUTTI_TEST_CUDA_DEVICES", 2)));
  version = 13000;
  stream_count_ = kMostDevices;
  Delays::get().set(setting("TUTTI_TEST_CUDA_SEED", 0),
                    static_cast<unsigned int>(setting("TUTTI_TEST_CUDA_DELAY", 0)));
}

thread_local std::vector<int> devices_of_thread;  // their contexts, the current one last
thread_local bool is_in_host_function = false;

int current_device() { return devices_of_thread.back(); }

/// What every function of the driver is: `body` returns its result.
template <class Body>
int called(std::size_t index, Body body) {
  const About& about = kFunctions[index];
  Trouble& trouble = Trouble::get();
  const Injected injected = trouble.meet(index);
  if (injected.result != kSuccess) return injected.result;
  if (about.needs != Needs::nothing) {
    if (is_in_host_function) return kNotPermitted;
    if (!Process::get().is_usable()) return kNotInitialized;
  }
  const auto broken = [&] {
    return about.when_broken == WhenBroken::works ? kSuccess : trouble.broken();
  };
  if (about.when_broken == WhenBroken::fails && broken() != kSuccess) return broken();
  if (about.needs == Needs::context && devices_of_thread.empty()) return kInvalidContext;
  if (injected.is_ignored) return kSuccess;
  const int result = body(injected);
  return broken() != kSuccess ? broken() : result;
}

/// Null: no such stream, or none of a current device.
std::shared_ptr<Stream> find_stream(void* handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number > 2) return Living<Stream>::get().find(handle);  // 1, 2: the default ones by name
  return devices_of_thread.empty() ? nullptr : Process::get().default_stream(current_device());
}

template <class Body>
int on_stream(void* handle, Body body) {
  const auto stream = find_stream(handle);
  return stream == nullptr ? kInvalidHandle : body(*stream);
}

template <class Body>
int on_event(void* handle, Body body) {
  const auto event = Living<Event>::get().find(handle);
  return event == nullptr ? kInvalidHandle : body(*event);
}

const void* pointer(DevicePointer address) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
}

/// CUpointer_attribute. `at`: none, if it is memory that CUDA does not know.
int answer(int attribute, const Allocation* at, const void* pointer, void* data) {
  constexpr int kMemoryType = 2, kDevicePointer = 3, kHostPointer = 4, kIsManaged = 8, kOrdinal = 9;
  constexpr unsigned int kHost = 1, kDevice = 2;
  const bool is_pinned = at != nullptr && at->kind == MemoryKind::pinned;
  const auto put = [data](auto value) {
    std::memcpy(data, &value, sizeof value);
    return kSuccess;
  };
  switch (attribute) {
    case kMemoryType:
      return put(at == nullptr ? 0U : is_pinned ? kHost : kDevice);
    case kDevicePointer:
      return put(at == nullptr ? nullptr : pointer);
    case kHostPointer:
      return put(at == nullptr || at->kind == MemoryKind::device ? nullptr : pointer);
    case kIsManaged:
      return put(at != nullptr && at->kind == MemoryKind::managed ? 1U : 0U);
    case kOrdinal:
      return put(at == nullptr ? -2 : at->device);
    default:
      return kInvalidValue;
  }
}

struct ErrorText {
  int result;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kIllegalState, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed now"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int give_text(int result, const char* ErrorText::*part, const char** text) {
  for (const ErrorText& error : kErrors) {
    if (error.result != result) continue;
    *text = error.*part;
    return kSuccess;
  }
  *text = nullptr;
  return kInvalidValue;
}

void reset() {
  Trouble::get().reset();
  Memory::get().reset();
  Process::get().reset();
}

Counts counts() {
  std::size_t device_bytes = 0;
  for (int i = 0; i < kMostDevices; ++i) device_bytes += Memory::get().device_bytes(i);
  return {Living<Stream>::get().count(), Living<Event>::get().count(), Memory::get().pinned_bytes(),
          device_bytes, Memory::get().freed_in_use()};
}

constexpr Control kControl = {
    .reset = reset,
    .set_device_count = [](int count) { Process::get().set_count(count); },
    .set_driver_version = [](int version) { Process::get().version = version; },
    .set_delays = [](std::uint64_t seed, unsigned int most) { Delays::get().set(seed, most); },
    .set_pinned_limit = [](std::size_t bytes) { Memory::get().set_pinned_limit(bytes); },
    .set_device_limit = [](std::size_t bytes) { Memory::get().set_device_limit(bytes); },
    .fail =
        [](const char* name, int nth, int result) {
          Trouble::get().inject(Trouble::known(name), nth, Trouble::Kind::fail, result);
        },
    .fail_later =
        [](const char* name, int nth, int result) {
          Trouble::get().inject(Trouble::known(name), nth, Trouble::Kind::fail_later, result);
        },
    .hang =
        [](const char* name, int nth) {
          Trouble::get().inject(Trouble::known(name), nth, Trouble::Kind::hang, kSuccess);
        },
    .release = [] { Trouble::get().release(); },
    .ignore =
        [](const char* name, int nth) {
          Trouble::get().inject(Trouble::known(name), nth, Trouble::Kind::ignore, kSuccess);
        },
    .break_device = [](int result) { Trouble::get().break_device(result); },
    .counts = counts,
    .calls = [](const char* name) { return Trouble::get().calls(Trouble::known(name)); },
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const Control* tutti_standin_cuda() { return &kControl; }

__attribute__((visibility("default"))) void* tutti_standin_view(void* device_pointer) {
  Place place;
  if (Memory::get().place(device_pointer, 0, &place) != kSuccess) return nullptr;
  return place.owner == nullptr ? nullptr : place.bytes;
}

TUTTI_DRIVER cuInit(unsigned int flags) {
  return called(function("cuInit"), [&](const Injected&) -> int {
    return flags != 0 ? kInvalidValue : Process::get().init();
  });
}

TUTTI_DRIVER cuDriverGetVersion(int* version) {
  return called(function("cuDriverGetVersion"), [&](const Injected&) {
    *version = Process::get().version;
    return kSuccess;
  });
}

TUTTI_DRIVER cuDeviceGetCount(int* count) {
  return called(function("cuDeviceGetCount"), [&](const Injected&) {
    *count = Process::get().device_count();
    return kSuccess;
  });
}

TUTTI_DRIVER cuDeviceGetPCIBusId(char* text, int capacity, int device) {
  return called(function("cuDeviceGetPCIBusId"), [&](const Injected&) {
    const std::vector<int> visible = Process::get().visible();
    if (device < 0 || device >= static_cast<int>(visible.size())) return kInvalidDevice;
    const int length = std::snprintf(text, static_cast<std::size_t>(capacity), "0000:%02X:00.0",
                                     0x3B + visible[static_cast<std::size_t>(device)]);
    return length < capacity ? kSuccess : kInvalidValue;
  });
}

TUTTI_DRIVER cuDevicePrimaryCtxRetain(void** context, int device) {
  return called(function("cuDevicePrimaryCtxRetain"), [&](const Injected&) {
    if (device < 0 || device >= Process::get().device_count()) return kInvalidDevice;
    *context = Process::get().context(device);
    return kSuccess;
  });
}

TUTTI_DRIVER cuCtxPushCurrent_v2(void* context) {
  return called(function("cuCtxPushCurrent_v2"), [&](const Injected&) {
    const int device = Process::get().device_of(context);
    if (device < 0) return kInvalidContext;
    devices_of_thread.push_back(device);
    return kSuccess;
  });
}

TUTTI_DRIVER cuCtxPopCurrent_v2(void** context) {
  return called(function("cuCtxPopCurrent_v2"), [&](const Injected&) {
    if (devices_of_thread.empty()) return kInvalidContext;
    if (context != nullptr) *context = Process::get().context(current_device());
    devices_of_thread.pop_back();
    return kSuccess;
  });
}

TUTTI_DRIVER cuCtxGetCurrent(void** context) {
  return called(function("cuCtxGetCurrent"), [&](const Injected&) {
    *context = devices_of_thread.empty() ? nullptr : Process::get().context(current_device());
    return kSuccess;
  });
}

TUTTI_DRIVER cuCtxGetDevice(int* device) {
  return called(function("cuCtxGetDevice"), [&](const Injected&) {
    *device = current_device();
    return kSuccess;
  });
}

TUTTI_DRIVER cuPointerGetAttributes(unsigned int count, int* attributes, void** data,
                                    DevicePointer address) {
  return called(function("cuPointerGetAttributes"), [&](const Injected&) -> int {
    const auto at = Memory::get().find(pointer(address));
    for (unsigned int i = 0; i < count; ++i) {
      const int result = answer(attributes[i], at.get(), pointer(address), data[i]);
      if (result != kSuccess) return result;
    }
    return kSuccess;
  });
}

TUTTI_DRIVER cuMemcpyAsync(DevicePointer to_address, DevicePointer from_address,
                           std::size_t byte_count, void* handle) {
  return called(function("cuMemcpyAsync"), [&](const Injected& injected) {
    return on_stream(handle, [&](Stream& stream) -> int {
      Place to, from;
      for (const auto& [place, address] : {std::pair(&to, to_address), {&from, from_address}}) {
        const Result result = Memory::get().place(pointer(address), byte_count, place);
        if (result != kSuccess) return result;
      }
      const bool blocks = to.owner == nullptr || from.owner == nullptr;
      const auto count = stream.push({.work =
                                          [to, from, byte_count] {
                                            if (byte_count > 0)
                                              std::memmove(to.bytes, from.bytes, byte_count);
                                          },
                                      .injected = injected});
      if (blocks) stream.wait(count);
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuMemsetD8Async(DevicePointer address, unsigned char value, std::size_t byte_count,
                             void* handle) {
  return called(function("cuMemsetD8Async"), [&](const Injected& injected) {
    return on_stream(handle, [&](Stream& stream) -> int {
      Place to;
      const Result result = Memory::get().place(pointer(address), byte_count, &to);
      if (result != kSuccess || to.owner == nullptr) return kInvalidValue;
      stream.push({.work = [to, value, byte_count] { std::memset(to.bytes, value, byte_count); },
                   .injected = injected});
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuMemAlloc_v2(DevicePointer* address, std::size_t byte_count) {
  return called(function("cuMemAlloc_v2"), [&](const Injected&) {
    void* given = nullptr;
    const auto result =
        Memory::get().allocate(MemoryKind::device, current_device(), byte_count, &given);
    *address = reinterpret_cast<std::uintptr_t>(given);
    return result;
  });
}

TUTTI_DRIVER cuMemAllocManaged(DevicePointer* address, std::size_t byte_count, unsigned int flags) {
  return called(function("cuMemAllocManaged"), [&](const Injected&) {
    constexpr unsigned int kGlobal = 1, kHost = 2;
    if (flags != kGlobal && flags != kHost) return kInvalidValue;
    void* given = nullptr;
    const auto result =
        Memory::get().allocate(MemoryKind::managed, current_device(), byte_count, &given);
    *address = reinterpret_cast<std::uintptr_t>(given);
    return result;
  });
}

TUTTI_DRIVER cuMemFree_v2(DevicePointer address) {
  return called(function("cuMemFree_v2"),
                [&](const Injected&) { return Memory::get().free(pointer(address), false); });
}

TUTTI_DRIVER cuMemHostAlloc(void** memory, std::size_t byte_count, unsigned int) {
  return called(function("cuMemHostAlloc"), [&](const Injected&) {
    return Memory::get().allocate(MemoryKind::pinned, current_device(), byte_count, memory);
  });
}

TUTTI_DRIVER cuMemFreeHost(void* memory) {
  return called(function("cuMemFreeHost"),
                [&](const Injected&) { return Memory::get().free(memory, true); });
}

TUTTI_DRIVER cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return called(function("cuMemGetInfo_v2"), [&](const Injected&) {
    *total = Memory::get().device_limit();
    const std::size_t used = Memory::get().device_bytes(current_device());
    *free = *total > used ? *total - used : 0;
    return kSuccess;
  });
}

TUTTI_DRIVER cuStreamCreate(void** handle, unsigned int flags) {
  return called(function("cuStreamCreate"), [&](const Injected&) {
    if (flags > 1) return kInvalidValue;
    *handle = Living<Stream>::get().add(
        std::make_shared<Stream>(current_device(), Process::get().next_stream()));
    return kSuccess;
  });
}

TUTTI_DRIVER cuStreamDestroy_v2(void* handle) {
  return called(function("cuStreamDestroy_v2"), [&](const Injected&) {
    const auto stream = Living<Stream>::get().take(handle);
    if (stream == nullptr) return kInvalidHandle;
    stream->end();
    return kSuccess;
  });
}

TUTTI_DRIVER cuStreamWaitEvent(void* handle, void* event_handle, unsigned int) {
  return called(function("cuStreamWaitEvent"), [&](const Injected& injected) {
    return on_stream(handle, [&](Stream& stream) {
      return on_event(event_handle, [&](Event& event) {
        const auto point = event.latest();
        if (point == nullptr || event.is_captured) return kSuccess;
        stream.push({.work = [point] { point->wait(); }, .is_order = true, .injected = injected});
        return kSuccess;
      });
    });
  });
}

TUTTI_DRIVER cuStreamQuery(void* handle) {
  return called(function("cuStreamQuery"), [&](const Injected&) {
    return on_stream(handle, [](Stream& stream) {
      if (stream.is_capturing) return kCaptureUnsupported;
      return stream.is_idle() ? kSuccess : kNotReady;
    });
  });
}

TUTTI_DRIVER cuStreamSynchronize(void* handle) {
  return called(function("cuStreamSynchronize"), [&](const Injected&) {
    return on_stream(handle, [](Stream& stream) {
      if (stream.is_capturing) return kCaptureUnsupported;
      stream.wait_all();
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuStreamIsCapturing(void* handle, int* status) {
  return called(function("cuStreamIsCapturing"), [&](const Injected&) {
    return on_stream(handle, [&](Stream& stream) {
      *status = stream.is_capturing ? 1 : 0;
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuStreamGetCtx(void* handle, void** context) {
  return called(function("cuStreamGetCtx"), [&](const Injected&) {
    return on_stream(handle, [&](Stream& stream) {
      *context = Process::get().context(stream.device);
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuStreamBeginCapture_v2(void* handle, int) {
  return called(function("cuStreamBeginCapture_v2"), [&](const Injected&) {
    return on_stream(handle, [](Stream& stream) {
      if (stream.number < kMostDevices) return kCaptureUnsupported;
      return stream.is_capturing.exchange(true) ? kIllegalState : kSuccess;
    });
  });
}

TUTTI_DRIVER cuStreamEndCapture(void* handle, void** graph) {
  return called(function("cuStreamEndCapture"), [&](const Injected&) {
    return on_stream(handle, [&](Stream& stream) {
      *graph = nullptr;
      return stream.is_capturing.exchange(false) ? kSuccess : kIllegalState;
    });
  });
}

TUTTI_DRIVER cuGraphDestroy(void* graph) {
  return called(function("cuGraphDestroy"),
                [&](const Injected&) { return graph == nullptr ? kInvalidValue : kSuccess; });
}

TUTTI_DRIVER cuLaunchHostFunc(void* handle, void (*host_function)(void*), void* data) {
  return called(function("cuLaunchHostFunc"), [&](const Injected& injected) {
    return on_stream(handle, [&](Stream& stream) {
      stream.push({.work =
                       [host_function, data] {
                         is_in_host_function = true;
                         host_function(data);
                         is_in_host_function = false;
                       },
                   .injected = injected});
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuEventCreate(void** handle, unsigned int) {
  return called(function("cuEventCreate"), [&](const Injected&) {
    *handle = Living<Event>::get().add(std::make_shared<Event>(current_device()));
    return kSuccess;
  });
}

TUTTI_DRIVER cuEventDestroy_v2(void* handle) {
  return called(function("cuEventDestroy_v2"), [&](const Injected&) {
    return Living<Event>::get().take(handle) == nullptr ? kInvalidHandle : kSuccess;
  });
}

TUTTI_DRIVER cuEventRecord(void* event_handle, void* handle) {
  return called(function("cuEventRecord"), [&](const Injected& injected) {
    return on_stream(handle, [&](Stream& stream) {
      return on_event(event_handle, [&](Event& event) {
        if (event.device != stream.device) return kInvalidHandle;
        event.is_captured = stream.is_capturing.load();
        const auto point = std::make_shared<Point>();
        event.set_latest(point);
        stream.push({.work = [point] { point->reach(); }, .is_order = true, .injected = injected});
        return kSuccess;
      });
    });
  });
}

TUTTI_DRIVER cuEventQuery(void* handle) {
  return called(function("cuEventQuery"), [&](const Injected&) {
    return on_event(handle, [](Event& event) {
      if (event.is_captured) return kCapturedEvent;
      const auto point = event.latest();
      return point == nullptr || point->is_reached() ? kSuccess : kNotReady;
    });
  });
}

TUTTI_DRIVER cuEventSynchronize(void* handle) {
  return called(function("cuEventSynchronize"), [&](const Injected&) {
    return on_event(handle, [](Event& event) {
      if (event.is_captured) return kCapturedEvent;
      if (const auto point = event.latest(); point != nullptr) point->wait();
      return kSuccess;
    });
  });
}

TUTTI_DRIVER cuGetErrorName(int result, const char** text) {
  return called(function("cuGetErrorName"),
                [&](const Injected&) { return give_text(result, &ErrorText::name, text); });
}

TUTTI_DRIVER cuGetErrorString(int result, const char** text) {
  return called(function("cuGetErrorString"),
                [&](const Injected&) { return give_text(result, &ErrorText::text, text); });
}

}  // extern "C"

}  // namespace tutti::standin
