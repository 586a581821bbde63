// Devices and their streams, as libtorch's device-independent part knows them: no header and no
// library of CUDA is needed here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <thread>
#include <vector>

#include "tutti/types.h"

namespace tutti::ddp {

/// Where a tensor on the CPU or on CUDA is, as Tutti calls it.
Device device_of_tensor(const at::Tensor& tensor);

/// The stream that this thread's work on the tensor's device goes to; none on the CPU.
std::optional<c10::Stream> current_stream(const at::Tensor& tensor);

/// What Tutti calls it.
/// Errors  kUnsupported: a libtorch that tells nobody.
Stream handle_of(const c10::Stream& stream);

/// What `later` is given from now on waits, on the device, for what `earlier` has been given.
void put_behind(const c10::Stream& earlier, const c10::Stream& later);

/// Memory that several streams use one after the other. Each takes its *turn*: it is put behind the
/// one before it, and thereby behind all of them. On the CPU it does nothing.
class StreamTurns {
 public:
  /// Of memory that the current stream has been the first to use.
  explicit StreamTurns(const at::Tensor& memory);
  StreamTurns() = default;

  /// Before the current stream is given what uses the memory, or after it, where that was ordered
  /// with the earlier uses by who gave it.
  void take();

 private:
  at::Tensor memory_;
  std::optional<c10::Stream> latest_;
};

/// The devices that ranks of this process train on.
///
/// libtorch runs all backwards of a process on one device in one thread. Two ranks that are threads
/// and share a device would wait for each other in it for ever.
class OwnDevices {
 public:
  OwnDevices() = default;
  ~OwnDevices() { leave(); }
  OwnDevices(const OwnDevices&) = delete;
  OwnDevices& operator=(const OwnDevices&) = delete;

  /// Takes the devices of these tensors for `rank`, of the calling thread, in place of those that
  /// it had. Returns one that another rank, of another thread, trains on, if any; then it has none.
  struct Taken {
    Device device;
    int rank;
  };
  std::optional<Taken> take(const std::vector<at::Tensor>& tensors, int rank);

 private:
  void leave() noexcept;
  std::vector<Device> devices_;
  int rank_ = -1;
  std::thread::id thread_;
};

}  // namespace tutti::ddp
