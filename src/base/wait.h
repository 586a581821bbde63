// The wait function: the only place where a rank waits for another rank's memory.
//
// A *waiter* spins, then yields, then sleeps on its *doorbell*, a futex word in its own slot of the
// status board. A *writer* stores its flag (seq_cst), then rings the doorbells of those who may wait
// for it; ringing is one load unless somebody sleeps. Between looks the waiter reads one *abort word*
// and, when the clock says so, asks its *patience* whether to go on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "tutti/backend.h"

namespace tutti {

/// Two words in shared memory, on a cache line of their own. `sleepers` is written by threads of the
/// owner only, `rings` by anybody.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// Wakes whoever sleeps on `bell`. Call after a seq_cst store of what they wait for.
inline void ring(Doorbell& bell) noexcept;
void ring_slow(Doorbell& bell) noexcept;

/// Asked from the slow path of a wait. May take locks and write logs; must not block.
class Patience {
 public:
  enum class Verdict : std::uint8_t { keep_waiting, give_up };
  virtual ~Patience() = default;
  /// Called first after about 5 ms, then whenever `*next` (set by the callee) has come. A failure
  /// found here is stored where the abort word is; give_up ends only this wait.
  virtual Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) = 0;
};

enum class WaitResult : std::uint8_t { ready, aborted, gave_up };

/// How long to pause-spin and to yield before sleeping; from threads of ours and usable cores.
struct WaitPolicy {
  int pauses = 2000;
  std::chrono::nanoseconds spin{30'000};
  std::chrono::nanoseconds yield{100'000};
};
WaitPolicy wait_policy(int local_threads, int usable_cores) noexcept;
/// Cores by affinity mask and cgroup quota, at least 1.
int usable_cores() noexcept;

/// Whatever one thread needs to wait in a group.
struct Waiter {
  const std::atomic<std::uint64_t>* abort_word = nullptr;  ///< nonzero: stop
  Doorbell* bell = nullptr;
  WaitPolicy policy;
};

/// Waits until `ready()` is true. `ready` is called often and must be cheap and free of side effects
/// other than progress. The first look is free: no clock, no call.
template <class Ready>
WaitResult wait(const Waiter& waiter, Patience& patience, Ready&& ready);

}  // namespace tutti
