#include "ddp/torch/stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "tutti/error.h"

namespace tutti::ddp {
namespace {

/// libtorch 2.11 tells what a stream of CUDA is to CUDA. Older ones have a function for it in
/// libc10_cuda alone, CUDAStream::stream() const. That library is in the process wherever there are
/// tensors on CUDA; to link it would make it necessary on machines without CUDA, so its symbol is
/// looked up. A CUDAStream is a c10::Stream and nothing else.
template <class AnyStream>
void* native_handle(const AnyStream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    static_assert(sizeof(stream) == 16);
    using Function = void* (*)(const void* stream);
    static const auto function =
        reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, "_ZNK3c104cuda10CUDAStream6streamEv"));
    if (function == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  "this libtorch does not say what its streams are to CUDA: libc10_cuda has no "
                  "CUDAStream::stream(); use libtorch 2.11 or newer");
    }
    return function(&stream);
  }
}

}  // namespace

Device device_of_tensor(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  return {Device::Kind::cuda, static_cast<std::int16_t>(tensor.device().index())};
}

std::optional<c10::Stream> current_stream(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

Stream handle_of(const c10::Stream& stream) { return {native_handle(stream)}; }

void put_behind(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

StreamTurns::StreamTurns(const at::Tensor& memory)
    : memory_(memory), latest_(current_stream(memory)) {}

void StreamTurns::take() {
  if (!latest_) return;
  const c10::Stream now = *current_stream(memory_);
  if (now == *latest_) return;
  put_behind(*latest_, now);
  latest_ = now;
  // The allocator gives memory out again in the order of the stream that it was allocated on, and
  // of those that it is told of.
  memory_.record_stream(now);
}

// ---- the devices of this process ---------------------------------------------------------------

namespace {

struct OwnedDevice {
  Device device;
  int rank;
  std::thread::id thread;
  friend bool operator==(const OwnedDevice&, const OwnedDevice&) = default;
};
std::mutex owned_mutex;
std::vector<OwnedDevice>& owned_devices() {               // owned_mutex
  static auto* const all = new std::vector<OwnedDevice>;  // wrappers may outlive static objects
  return *all;
}

}  // namespace

std::optional<OwnDevices::Taken> OwnDevices::take(const std::vector<at::Tensor>& tensors,
                                                  int rank) {
  leave();
  const std::lock_guard lock(owned_mutex);
  std::vector<Device> wanted;
  for (const at::Tensor& tensor : tensors) {
    const Device device = device_of_tensor(tensor);
    if (device.kind == Device::Kind::cpu || std::ranges::count(wanted, device) != 0) continue;
    for (const OwnedDevice& owned : owned_devices()) {
      const bool is_other = owned.rank != rank && owned.thread != std::this_thread::get_id();
      if (owned.device == device && is_other) return Taken{device, owned.rank};
    }
    wanted.push_back(device);
  }
  rank_ = rank;
  thread_ = std::this_thread::get_id();
  for (const Device& device : wanted) owned_devices().push_back({device, rank_, thread_});
  devices_ = std::move(wanted);
  return std::nullopt;
}

void OwnDevices::leave() noexcept {
  const std::lock_guard lock(owned_mutex);
  for (const Device& device : devices_) {
    const auto it = std::ranges::find(owned_devices(), OwnedDevice{device, rank_, thread_});
    if (it != owned_devices().end()) owned_devices().erase(it);
  }
  devices_.clear();
}

}  // namespace tutti::ddp
