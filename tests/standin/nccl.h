// The stand-in of NCCL: a library with NCCL's functions by their own names, for tests on machines
// without a device; the ranks are threads of one process. It runs on the stand-in of CUDA
// (cuda.h): what is queued waits in its stream for the other ranks, and is then computed there, in
// the order of the ranks. This header is how a test controls it.
//
// What it does not stand in for: kernels and their speed, connections, the order between two
// communicators, graphs, registered memory. It knows communicators that do not block, and no
// others. It tells what NCCL does not: two threads inside one communicator at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::standin {

struct NcclCounts {
  int living;     ///< communicators that were neither destroyed nor aborted
  int aborted;    ///< since loaded or reset
  int overlaps;   ///< calls that found another thread inside the same communicator
  int operators;  ///< of premul_sum, neither destroyed nor gone with their communicator
};

/// All of it from any thread.
struct NcclControl {
  void (*reset)();
  /// How often a call is asked about before it is done; 0: it is done at once.
  void (*set_polls)(int polls);
  /// The nth call of `function` from now (1: the next one) does nothing and returns `result`.
  void (*fail)(const char* function, int nth, int result);
  /// That call is in progress for ever.
  void (*hang)(const char* function, int nth);
  /// From now on every communicator reports `result`.
  void (*fail_all)(int result);
  NcclCounts (*counts)();
  std::uint64_t (*calls)(const char* function);  ///< since loaded or reset
};

extern "C" {
/// Not there in the real library.
const NcclControl* tutti_standin_nccl();
}

}  // namespace tutti::standin
