// What calls of the stand-in must have, how many there were, and what goes wrong with them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "standin/cuda.h"
#include "standin/point.h"

namespace tutti::standin {

enum class Needs : std::uint8_t { nothing, init, context };
enum class WhenBroken : std::uint8_t { fails, works, frees };

struct About {
  std::string_view name;
  Needs needs = Needs::context;
  WhenBroken when_broken = WhenBroken::fails;
};

inline constexpr std::array kFunctions = {
    About{"cuInit", Needs::nothing, WhenBroken::works},
    About{"cuDriverGetVersion", Needs::nothing, WhenBroken::works},
    About{"cuDeviceGetCount", Needs::init, WhenBroken::works},
    About{"cuDeviceGetPCIBusId", Needs::init, WhenBroken::works},
    About{"cuDevicePrimaryCtxRetain", Needs::init, WhenBroken::works},
    About{"cuCtxPushCurrent_v2", Needs::init, WhenBroken::works},
    About{"cuCtxPopCurrent_v2", Needs::init, WhenBroken::works},
    About{"cuCtxGetCurrent", Needs::init, WhenBroken::works},
    About{"cuCtxGetDevice", Needs::context, WhenBroken::works},
    About{"cuPointerGetAttributes", Needs::init},
    About{"cuMemcpyAsync"},
    About{"cuMemsetD8Async"},
    About{"cuMemAlloc_v2"},
    About{"cuMemAllocManaged"},
    About{"cuMemFree_v2", Needs::context, WhenBroken::frees},
    About{"cuMemHostAlloc"},
    About{"cuMemFreeHost", Needs::context, WhenBroken::frees},
    About{"cuMemGetInfo_v2"},
    About{"cuStreamCreate"},
    About{"cuStreamDestroy_v2", Needs::context, WhenBroken::frees},
    About{"cuStreamWaitEvent"},
    About{"cuStreamQuery"},
    About{"cuStreamSynchronize"},
    About{"cuStreamIsCapturing", Needs::init},
    About{"cuStreamGetCtx", Needs::init, WhenBroken::works},
    About{"cuStreamBeginCapture_v2"},
    About{"cuStreamEndCapture"},
    About{"cuGraphDestroy"},
    About{"cuLaunchHostFunc"},
    About{"cuEventCreate"},
    About{"cuEventDestroy_v2", Needs::context, WhenBroken::frees},
    About{"cuEventRecord"},
    About{"cuEventQuery", Needs::init},
    About{"cuEventSynchronize"},
    About{"cuGetErrorName", Needs::nothing, WhenBroken::works},
    About{"cuGetErrorString", Needs::nothing, WhenBroken::works},
};

/// Its place in the table; past the end: there is no such function.
constexpr std::size_t index_of(std::string_view name) {
  std::size_t i = 0;
  while (i < kFunctions.size() && kFunctions[i].name != name) ++i;
  return i;
}

/// The same for the stand-in's own code, which names none that is not there.
consteval std::size_t function(std::string_view name) {
  const std::size_t index = index_of(name);
  if (index == kFunctions.size()) throw "no such function";
  return index;
}

/// What happens to one call.
struct Injected {
  int result = kSuccess;        ///< it returns this
  bool is_ignored = false;      ///< it does nothing else
  int later = kSuccess;         ///< its work breaks the device with this
  std::shared_ptr<Point> gate;  ///< its work waits for it
};

class Trouble {
 public:
  static Trouble& get();

  /// Counts a call, and says what happens to it.
  Injected meet(std::size_t function);
  std::uint64_t calls(std::size_t function) const { return calls_[function].load(kRelaxed); }
  /// Ends the program if there is no such function.
  static std::size_t known(const char* function);

  enum class Kind : std::uint8_t { fail, fail_later, hang, ignore };
  void inject(std::size_t function, int nth, Kind kind, int result);
  void release();
  void break_device(int result) { broken_.store(result, kRelaxed); }
  int broken() const { return broken_.load(kRelaxed); }
  void reset();

 private:
  // No order comes of them: a race of the program under test stays one for ThreadSanitizer.
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
  struct Injection {
    std::size_t function;
    int calls_left;
    Kind kind;
    int result;
  };
  std::array<std::atomic<std::uint64_t>, kFunctions.size()> calls_{};
  std::atomic<int> broken_{kSuccess};
  std::atomic<std::size_t> injection_count_{0};
  std::mutex mutex_;
  std::vector<Injection> injections_;          // mutex_
  std::vector<std::shared_ptr<Point>> gates_;  // mutex_; of what hangs
};

}  // namespace tutti::standin
