#include "device/cuda.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "base/wait.h"
#include "device/visible.h"
#include "tutti/error.h"

namespace tutti::device {

namespace {

constexpr const char* kFile = "libcuda.so.1";
constexpr Library::About kAbout = {"CUDA's driver library", "TUTTI_CUDA_LIBRARY",
                                   "install NVIDIA's driver (on Debian: apt install libcuda1)"};
/// The first with everything that is called here.
constexpr int kOldestDriver = 11040;
/// What every program with a device has opened before it can use one.
constexpr const char* kDriverNodes[] = {"/dev/nvidiactl", "/dev/dxg"};

using DevicePointer = unsigned long long;
constexpr int kSuccess = 0, kNotInitialized = 3, kNotReady = 600;
/// What a kernel leaves behind for every later call: an illegal address, a failed assertion, ...
constexpr int kOfKernels[] = {700, 702, 710, 714, 715, 716, 717, 718, 719};
constexpr unsigned int kNonBlocking = 1, kNoTiming = 2;
// CUpointer_attribute and CUmemorytype
constexpr int kMemoryType = 2, kIsManaged = 8, kOrdinal = 9;
constexpr unsigned int kHostMemory = 1, kDeviceMemory = 2;

DevicePointer device_pointer(const void* pointer) noexcept {
  return static_cast<DevicePointer>(reinterpret_cast<std::uintptr_t>(pointer));
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

struct Cuda::Functions {
  explicit Functions(const Library& library)
      : init(library.need<int(unsigned int)>("cuInit")),
        version(library.need<int(int*)>("cuDriverGetVersion")),
        count(library.need<int(int*)>("cuDeviceGetCount")),
        bus_id(library.need<int(char*, int, int)>("cuDeviceGetPCIBusId")),
        retain(library.need<int(void**, int)>("cuDevicePrimaryCtxRetain")),
        current(library.need<int(void**)>("cuCtxGetCurrent")),
        push(library.need<int(void*)>("cuCtxPushCurrent_v2")),
        pop(library.need<int(void**)>("cuCtxPopCurrent_v2")),
        device(library.need<int(int*)>("cuCtxGetDevice")),
        attributes(
            library.need<int(unsigned int, int*, void**, DevicePointer)>("cuPointerGetAttributes")),
        copy(library.need<int(DevicePointer, DevicePointer, std::size_t, void*)>("cuMemcpyAsync")),
        allocate(library.need<int(DevicePointer*, std::size_t)>("cuMemAlloc_v2")),
        free(library.need<int(DevicePointer)>("cuMemFree_v2")),
        host_alloc(library.need<int(void**, std::size_t, unsigned int)>("cuMemHostAlloc")),
        host_free(library.need<int(void*)>("cuMemFreeHost")),
        memory_info(library.need<int(std::size_t*, std::size_t*)>("cuMemGetInfo_v2")),
        stream_create(library.need<int(void**, unsigned int)>("cuStreamCreate")),
        stream_destroy(library.need<int(void*)>("cuStreamDestroy_v2")),
        stream_wait(library.need<int(void*, void*, unsigned int)>("cuStreamWaitEvent")),
        stream_context(library.need<int(void*, void**)>("cuStreamGetCtx")),
        is_capturing(library.need<int(void*, int*)>("cuStreamIsCapturing")),
        event_create(library.need<int(void**, unsigned int)>("cuEventCreate")),
        event_destroy(library.need<int(void*)>("cuEventDestroy_v2")),
        event_record(library.need<int(void*, void*)>("cuEventRecord")),
        event_query(library.need<int(void*)>("cuEventQuery")),
        error_name(library.need<int(int, const char**)>("cuGetErrorName")),
        error_text(library.need<int(int, const char**)>("cuGetErrorString")) {}

  int (*init)(unsigned int);
  int (*version)(int*);
  int (*count)(int*);
  int (*bus_id)(char*, int, int);
  int (*retain)(void**, int);
  int (*current)(void**);
  int (*push)(void*);
  int (*pop)(void**);
  int (*device)(int*);
  int (*attributes)(unsigned int, int*, void**, DevicePointer);
  int (*copy)(DevicePointer, DevicePointer, std::size_t, void*);
  int (*allocate)(DevicePointer*, std::size_t);
  int (*free)(DevicePointer);
  int (*host_alloc)(void**, std::size_t, unsigned int);
  int (*host_free)(void*);
  int (*memory_info)(std::size_t*, std::size_t*);
  int (*stream_create)(void**, unsigned int);
  int (*stream_destroy)(void*);
  int (*stream_wait)(void*, void*, unsigned int);
  int (*stream_context)(void*, void**);
  int (*is_capturing)(void*, int*);
  int (*event_create)(void**, unsigned int);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
  int (*event_query)(void*);
  int (*error_name)(int, const char**);
  int (*error_text)(int, const char**);
};

/// Stays until the process ends: others may use it while that ends.
const Cuda& Cuda::open(const std::string& file) {
  static std::atomic<const Cuda*> opened{nullptr};
  static std::mutex mutex;
  if (const Cuda* const known = opened.load(std::memory_order_acquire)) return *known;
  const std::lock_guard lock(mutex);
  if (opened.load(std::memory_order_relaxed) == nullptr) opened.store(new Cuda(file));
  return *opened.load(std::memory_order_relaxed);
}

bool Cuda::seems_usable(const std::string& file, const std::string* visible) {
  if (visible != nullptr && visible_devices(visible).empty()) return false;
  if (!file.empty()) return true;
  for (const char* const node : kDriverNodes) {
    if (::access(node, F_OK) == 0) return true;
  }
  return false;
}

Cuda::Cuda(const std::string& file)
    : library_(file.empty() ? kFile : file, kAbout),
      call_(std::make_unique<const Functions>(library_)) {
  check(call_->version(&driver_version_), "cuDriverGetVersion");
  if (driver_version_ < kOldestDriver) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("CUDA's driver {} is of version {}, and {} is needed: install a newer "
                    "driver",
                    library_.file(), version_text(driver_version_), version_text(kOldestDriver)));
  }
  if (const int result = call_->init(0); result != kSuccess) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("CUDA (driver {}) cannot be used: cuInit: {}; see nvidia-smi and "
                            "CUDA_VISIBLE_DEVICES; a process that was forked after CUDA was used "
                            "cannot use it",
                            version_text(driver_version_), text_of(result)));
  }
  check(call_->count(&device_count_), "cuDeviceGetCount");
  contexts_.resize(static_cast<std::size_t>(device_count_));
}

std::string Cuda::text_of(int result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (call_->error_name(result, &name) != kSuccess || name == nullptr) {
    return fmt::format("error {}", result);
  }
  if (call_->error_text(result, &text) != kSuccess || text == nullptr) return name;
  return fmt::format("{} ({})", text, name);
}

void Cuda::check(int result, const char* function, void* context) const {
  if (result == kSuccess) return;
  if (result == kNotInitialized) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("CUDA's {} failed: {}; a process that was forked after CUDA was used "
                            "cannot use it: fork before, or start programs, as tutti run does",
                            function, text_of(result)));
  }
  if (context == nullptr) (void)call_->current(&context);
  const std::optional<int> index = context != nullptr ? device_of(context) : std::nullopt;
  const bool is_of_kernel =
      std::find(std::begin(kOfKernels), std::end(kOfKernels), result) != std::end(kOfKernels);
  throw Error(ErrorCode::kSystem,
              fmt::format("CUDA's {} failed{}: {}{}", function,
                          index ? fmt::format(" on cuda:{}", *index) : "", text_of(result),
                          is_of_kernel ? "; a kernel that the program gave the device has failed: "
                                         "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer show which"
                                       : ""));
}

void* Cuda::context(int index) const {
  if (index < 0 || index >= device_count_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("there is no device cuda:{}: this process sees {} (CUDA_VISIBLE_DEVICES "
                    "chooses which)",
                    index, device_count_));
  }
  std::unique_lock lock(mutex_);
  void*& kept = contexts_[static_cast<std::size_t>(index)];
  if (kept != nullptr) return kept;
  void* context = nullptr;
  const int result = call_->retain(&context, index);
  if (result == kSuccess) kept = context;
  lock.unlock();
  check(result, "cuDevicePrimaryCtxRetain");
  return context;
}

void* Cuda::current_context() const {
  void* context = nullptr;
  check(call_->current(&context), "cuCtxGetCurrent");
  return context;
}

/// For what is destroyed wherever its owner is.
template <class Call>
void Cuda::in_context(void* context, Call&& call) const noexcept {
  if (call_->push(context) != kSuccess) return;
  call();
  void* popped = nullptr;
  (void)call_->pop(&popped);
}

std::string Cuda::bus_id(int index) const {
  char text[32] = {};
  check(call_->bus_id(text, sizeof text, index), "cuDeviceGetPCIBusId");
  return text;
}

Place Cuda::place_of(const void* pointer) const {
  unsigned int type = 0, is_managed = 0;
  int ordinal = 0;
  int asked[] = {kMemoryType, kIsManaged, kOrdinal};
  void* answers[] = {&type, &is_managed, &ordinal};
  check(call_->attributes(3, asked, answers, device_pointer(pointer)), "cuPointerGetAttributes");
  if (is_managed != 0) return {Place::Kind::managed, ordinal};
  if (type == kDeviceMemory) return {Place::Kind::device, ordinal};
  return {type == kHostMemory ? Place::Kind::pinned : Place::Kind::host, 0};
}

bool Cuda::is_capturing(Stream stream) const {
  // Of the default stream, beside another one that is captured and waits for it.
  constexpr int kImplicitly = 906;
  int status = 0;
  const int result = call_->is_capturing(stream.handle, &status);
  if (result == kImplicitly) return true;
  check(result, "cuStreamIsCapturing");
  return status != 0;
}

std::optional<int> Cuda::device_of(Stream stream) const {
  constexpr std::uintptr_t kLastDefault = 2;  // null, and the two that have names
  if (reinterpret_cast<std::uintptr_t>(stream.handle) <= kLastDefault) return std::nullopt;
  void* context = nullptr;
  if (call_->stream_context(stream.handle, &context) != kSuccess) return std::nullopt;
  return device_of(context);
}

std::optional<int> Cuda::device_of(void* context) const noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::find(contexts_.begin(), contexts_.end(), context);
    if (known != contexts_.end()) return static_cast<int>(known - contexts_.begin());
  }
  std::optional<int> found;
  in_context(context, [&] {
    int index = 0;
    if (call_->device(&index) == kSuccess) found = index;
  });
  return found;
}

void Cuda::copy(void* to, const void* from, std::size_t byte_count, Stream stream) const {
  check(call_->copy(device_pointer(to), device_pointer(from), byte_count, stream.handle),
        "cuMemcpyAsync");
}

void Cuda::wait(Stream stream, void* event) const {
  check(call_->stream_wait(stream.handle, event, 0), "cuStreamWaitEvent");
}

void* Cuda::allocate(std::size_t byte_count) const {
  DevicePointer memory = 0;
  const int result = call_->allocate(&memory, byte_count);
  if (result == kSuccess) return reinterpret_cast<void*>(memory);
  throw Error(ErrorCode::kSystem, fmt::format("no device memory for {} bytes ({} are free): {}",
                                              byte_count, free_bytes(), text_of(result)));
}

void Cuda::free(void* memory) const noexcept {
  if (memory != nullptr) (void)call_->free(device_pointer(memory));
}

void* Cuda::try_pinned(std::size_t byte_count) const noexcept {
  constexpr unsigned int kPortable = 1;
  void* memory = nullptr;
  return call_->host_alloc(&memory, byte_count, kPortable) == kSuccess ? memory : nullptr;
}

void Cuda::free_pinned(void* memory) const noexcept { (void)call_->host_free(memory); }

std::size_t Cuda::free_bytes() const {
  std::size_t free = 0, total = 0;
  check(call_->memory_info(&free, &total), "cuMemGetInfo");
  return free;
}

Current::Current(const Cuda& cuda, int index) : cuda_(cuda) {
  cuda_.check(cuda_.call_->push(cuda_.context(index)), "cuCtxPushCurrent");
}

Current::~Current() {
  void* popped = nullptr;
  (void)cuda_.call_->pop(&popped);
}

Event::Event(const Cuda& cuda) : cuda_(&cuda), context_(cuda.current_context()) {
  cuda_->check(cuda_->call_->event_create(&handle_, kNoTiming), "cuEventCreate");
}

Event::Event(Event&& other) noexcept
    : cuda_(other.cuda_),
      context_(other.context_),
      handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(cuda_, other.cuda_);
  std::swap(context_, other.context_);
  std::swap(handle_, other.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ == nullptr) return;
  cuda_->in_context(context_, [this] { (void)cuda_->call_->event_destroy(handle_); });
}

void Event::record(Stream stream) {
  cuda_->check(cuda_->call_->event_record(handle_, stream.handle), "cuEventRecord");
}

bool Event::done() const {
  const int result = cuda_->call_->event_query(handle_);
  if (result == kNotReady) return false;
  cuda_->check(result, "cuEventQuery", context_);
  return true;
}

void Event::wait_on_host(const std::function<bool()>& stop) const {
  constexpr std::chrono::microseconds kLookAgain{20};
  Doorbell nobody_rings;
  while (!done() && !stop())
    wait_until(nobody_rings, Deadline::Clock::now() + kLookAgain, [] { return false; });
}

OwnStream::OwnStream(const Cuda& cuda) : cuda_(cuda), context_(cuda.current_context()) {
  cuda_.check(cuda_.call_->stream_create(&handle_, kNonBlocking), "cuStreamCreate");
}

OwnStream::~OwnStream() {
  cuda_.in_context(context_, [this] { (void)cuda_.call_->stream_destroy(handle_); });
}

}  // namespace tutti::device
