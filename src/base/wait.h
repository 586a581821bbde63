// The wait function: the only place where a rank waits for another rank's memory.
//
// A *waiter* spins, then yields, then sleeps on its *doorbell*, a futex word in its own slot of the
// status board. A *writer* stores its flag (seq_cst), then rings the doorbells of those who may
// wait for it; ringing is one load unless somebody sleeps. Between looks the waiter reads one
// *abort word* and, when the clock says so, asks its *patience* whether to go on.
//
// No wake is lost: a sleeper adds itself to `sleepers`, reads `rings`, looks once more, and only
// then sleeps, if `rings` is still what it read. A writer stores, then reads `sleepers`. In the one
// order of all seq_cst operations either the writer sees the sleeper, or the sleeper's last look
// sees the store. So what `ready` looks at must be stored and loaded seq_cst (the load costs
// nothing on x86).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "tutti/types.h"

namespace tutti {

/// Two words in shared memory, on a cache line of their own. `sleepers` is written by threads of
/// the owner only, `rings` by anybody.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

void ring_slow(Doorbell& bell) noexcept;

/// Wakes whoever sleeps on `bell`. Call after a seq_cst store of what they wait for.
inline void ring(Doorbell& bell) noexcept {
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) ring_slow(bell);
}

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
  std::chrono::nanoseconds spin{30'000};    ///< from the start of the wait
  std::chrono::nanoseconds yield{100'000};  ///< from the start of the wait
};
WaitPolicy wait_policy(int local_threads, int usable_cores) noexcept;

/// Whatever one thread needs to wait in a group.
struct Waiter {
  const std::atomic<std::uint64_t>* abort_word = nullptr;  ///< nonzero: stop
  Doorbell* bell = nullptr;
  WaitPolicy policy;
};

/// One instruction that tells the core that this is a spin loop.
inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("isb" ::: "memory");
#endif
}

namespace detail {

/// A predicate by address: the slow path is compiled once.
struct Look {
  void* predicate;
  bool (*call)(void* predicate);
  bool operator()() const { return call(predicate); }
};

template <class Predicate>
Look look_of(Predicate& predicate) noexcept {
  return {const_cast<void*>(static_cast<const void*>(std::addressof(predicate))),
          [](void* at) { return static_cast<bool>((*static_cast<Predicate*>(at))()); }};
}

WaitResult wait_slow(const Waiter& waiter, Patience& patience, Look look);
bool wait_until_slow(Doorbell& bell, Deadline::Clock::time_point end, Look look);

}  // namespace detail

/// Waits until `ready()` is true. `ready` is called often and must be cheap and free of side
/// effects other than progress. The first looks are free: no clock, no call. What `ready` or the
/// patience throws passes through.
template <class Ready>
WaitResult wait(const Waiter& waiter, Patience& patience, Ready&& ready) {
  if (ready()) return WaitResult::ready;
  return detail::wait_slow(waiter, patience, detail::look_of(ready));
}

/// For threads that have nothing else to do (control, progress): sleeps on `bell` until `ready()`
/// is true or `end` has come; returns what `ready` last said. Never spins.
template <class Ready>
bool wait_until(Doorbell& bell, Deadline::Clock::time_point end, Ready&& ready) {
  return detail::wait_until_slow(bell, end, detail::look_of(ready));
}

/// Gives the core away until `end`. For retries against the outside world only.
void sleep_until(Deadline::Clock::time_point end) noexcept;

}  // namespace tutti
