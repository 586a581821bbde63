// The stand-in of CUDA's driver: a library with the driver's functions by their own names, for
// tests on machines without a device. Device memory is memory of the host that the program cannot
// touch, a stream is a queue run by a thread. This header is how a test controls it; what the
// functions do is CUDA's own documentation.
//
// What it does not stand in for: kernels, peers, the order between the default stream and others,
// graphs (what a capturing stream is given is dropped). It tells more mistakes than CUDA: handles
// that were destroyed, and calls without a current device.
//
// Environment, read when it is loaded, for programs that a test only starts:
// TUTTI_TEST_CUDA_DEVICES, TUTTI_TEST_CUDA_SEED, TUTTI_TEST_CUDA_DELAY (microseconds); and
// CUDA_VISIBLE_DEVICES, as CUDA has it, numbers only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::standin {

/// CUresult.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kCaptureUnsupported = 900,
  kCapturedEvent = 907,
  kUnknown = 999,
};

inline constexpr int kMostDevices = 4;

/// What is there now, and what went wrong without an error.
struct Counts {
  std::size_t streams, events;  ///< without the default streams
  std::size_t pinned_bytes, device_bytes;
  /// Memory that was freed while a stream had work left with it. Nothing happens to that work.
  std::size_t freed_in_use;
};

/// All of it from any thread.
struct Control {
  /// As loaded, but for what is living: no trouble, no limits, no delays, no calls counted.
  void (*reset)();

  void (*set_device_count)(int count);  ///< at most kMostDevices; 2 at first
  void (*set_driver_version)(int version);
  /// Each piece of a stream's work begins 0 to `most_microseconds` late. The same seed and the
  /// same order of streams are the same delays.
  void (*set_delays)(std::uint64_t seed, unsigned int most_microseconds);
  void (*set_pinned_limit)(std::size_t byte_count);
  void (*set_device_limit)(std::size_t byte_count);  ///< of each device

  /// The nth call of `function` from now (1: the next one) does nothing and returns `result`.
  void (*fail)(const char* function, int nth, int result);
  /// That call succeeds; when the stream comes to its work, the device breaks with `result`.
  void (*fail_later)(const char* function, int nth, int result);
  /// That call succeeds, and its work does not end before release().
  void (*hang)(const char* function, int nth);
  void (*release)();
  /// That call does nothing and succeeds, as if the program had left it out. Not one that answers
  /// by more than its result.
  void (*ignore)(const char* function, int nth);
  /// As after a kernel that failed: every call returns `result`, streams do no more work. What
  /// frees does so all the same; versions, counts, contexts and the texts of errors work.
  void (*break_device)(int result);

  Counts (*counts)();
  std::uint64_t (*calls)(const char* function);  ///< since loaded or reset
};

extern "C" {
/// Not there in the real driver: what a test knows them apart by.
const Control* tutti_standin_cuda();
/// Where code of the host, in cuLaunchHostFunc, may use device memory; null: it is none.
void* tutti_standin_view(void* device_pointer);
}

}  // namespace tutti::standin
