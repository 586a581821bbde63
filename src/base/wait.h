// The wait function: the only place where a rank waits for another rank's memory.
//
// A *waiter* looks, and at last sleeps on its *doorbell*, a futex word in its own slot of the
// status board. A *writer* stores its flag (seq_cst), then rings the doorbells of those who may
// wait for it; ringing is one load unless somebody sleeps. Between looks the waiter reads one
// *abort word* and, when the clock says so, asks its *patience* whether to go on.
//
// The policy. First a waiter *spins*, for about as long as it costs to fall asleep and be woken: a
// peer that runs answers within that. Then it *lingers*, if that has lately paid, by more spinning.
// Then it sleeps. A waiter on whose own core an awaited rank was last seen sleeps at once, and if
// that happens often it moves to another core first: the scheduler takes two ranks that sleep in
// turn for one busy thread, and leaves them on one core when somebody else's program has the other.
// A rank that computes between its waits has more of its core than it would have of that one. Where
// threads of ours share cores nobody spins, and they linger by yielding. Whether lingering
// pays is kept in an *account* of time: a wait that it ended earns, one that it did not end pays
// what it took; while there is nothing left waits do not linger, and save a little each for another
// try. That makes way for other programs without looking for them: next to a busy loop a spin takes
// time that the scheduler will want back, and a yield returns a whole slice later, so both soon
// stop; a sleeper is owed its time and is let in when it is rung, which is when its peer runs as
// well.
//
// No wake is lost: a sleeper adds itself to `sleepers`, reads `rings`, looks once more, and only
// then sleeps, if `rings` is still what it read. A writer stores, then reads `sleepers`. In the one
// order of all seq_cst operations either the writer sees the sleeper, or the sleeper's last look
// sees the store. So what `ready` looks at must be stored and loaded seq_cst (the load costs
// nothing on x86).
//
// What comes over a socket stores nothing here. A waiter that awaits such may have an *alarm*,
// which the sleeper *arms* after each of its last looks, until that finds nothing to arm: what the
// very last look has found empty was armed before it. An alarm that is armed rings once something
// is there, even if it came before; it is disarmed first. So either it is disarmed, and rings,
// after the sleeper has added itself, or the sleeper finds it disarmed, arms it, and looks again.
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
  /// Whether somebody who is awaited was last seen on this core.
  virtual bool awaits_core(int core) const noexcept {
    static_cast<void>(core);
    return false;
  }
};

enum class WaitResult : std::uint8_t { ready, aborted, gave_up };

/// From threads of ours and usable cores. Times count from the start of a wait.
struct WaitPolicy {
  int looks = 64;                         ///< before the clock is read
  std::chrono::nanoseconds spin{20'000};  ///< about what sleeping and waking costs
  std::chrono::nanoseconds linger{100'000};
  bool shares_cores = false;  ///< threads of ours do: yield, never spin
};
WaitPolicy wait_policy(int local_threads, int usable_cores) noexcept;

/// What lingering has won lately, for all threads that wait in the same place. Any thread; a lost
/// update does no harm.
class WaitAccount {
 public:
  /// Whether this wait may linger; the caller books how that went.
  bool allows(std::chrono::nanoseconds linger) noexcept;
  void gain(std::chrono::nanoseconds linger) noexcept;
  void lose(std::chrono::nanoseconds took, std::chrono::nanoseconds linger) noexcept;
  /// Of a wait on the core of an awaited rank: whether there have been so many lately that it pays
  /// to move to another core. Once in a window.
  bool should_move(Deadline::Clock::time_point now) noexcept;

 private:
  static constexpr std::int64_t kMost = 8;      // gains that are kept
  static constexpr std::int64_t kLeast = -64;   // and losses: a stop by hand must not last for ever
  static constexpr std::int64_t kSavings = 16;  // waits without lingering that pay for one with
  static constexpr std::chrono::nanoseconds kWindow{20'000'000};
  static constexpr int kOften = 100;  // of 20 ms, less than half is then spent computing

  void book(std::int64_t amount, std::chrono::nanoseconds linger) noexcept;

  std::atomic<std::int64_t> balance_{1};  // nanoseconds
  std::atomic<std::int64_t> window_began_{INT64_MIN / 2};
  std::atomic<int> held_up_{0};  // in this window
};

/// The policy for one wait, without its clock and system calls.
class WaitPlan {
 public:
  enum class Step : std::uint8_t { spin, yield, sleep };
  /// `account` may be null: lingering is always allowed then.
  WaitPlan(const WaitPolicy& policy, WaitAccount* account) noexcept
      : policy_(policy), account_(account) {}
  /// What to do after having waited this long.
  Step next(std::chrono::nanoseconds waited, bool awaits_own_core) noexcept;
  /// The wait has ended well after this long.
  void end(std::chrono::nanoseconds waited) noexcept;
  /// Whether `end` has anything to book.
  bool lingers() const noexcept { return lingers_ == Answer::yes; }

 private:
  enum class Answer : std::uint8_t { not_asked, yes, no };
  bool may_linger() noexcept;

  const WaitPolicy policy_;
  WaitAccount* const account_;
  Answer lingers_ = Answer::not_asked;
};

/// What else than other ranks may end a sleep.
class Alarm {
 public:
  virtual ~Alarm() = default;
  /// From now on, until it has done so once, whatever the looks so far have found empty rings the
  /// bell as soon as it is not; what is there by now counts. False: all of it was armed so
  /// already. Must not block.
  virtual bool arm() noexcept = 0;
};

class Crowd;

/// Whatever one thread needs to wait in a group.
struct Waiter {
  const std::atomic<std::uint64_t>* abort_word = nullptr;  ///< nonzero: stop
  Doorbell* bell = nullptr;
  WaitPolicy policy;
  WaitAccount* account = nullptr;
  Alarm* alarm = nullptr;  ///< null: all that is awaited is stored by other ranks
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
  void* predicate = nullptr;
  bool (*call)(void* predicate) = nullptr;
  bool operator()() const { return call(predicate); }
};

template <class Predicate>
Look look_of(Predicate& predicate) noexcept {
  return {const_cast<void*>(static_cast<const void*>(std::addressof(predicate))),
          [](void* at) { return static_cast<bool>((*static_cast<Predicate*>(at))()); }};
}

/// `crowd` may be null; `done` is what the crowd may ask.
WaitResult wait_slow(const Waiter& waiter, Patience& patience, Look look, Crowd* crowd, Look done);
bool wait_until_slow(Doorbell& bell, Deadline::Clock::time_point end, Look look);

}  // namespace detail

/// Waits until `ready()` is true. `ready` is called often and must be cheap and free of side
/// effects other than progress. The first looks are free: no clock, no call. What `ready` or the
/// patience throws passes through.
template <class Ready>
WaitResult wait(const Waiter& waiter, Patience& patience, Ready&& ready) {
  if (ready()) return WaitResult::ready;
  return detail::wait_slow(waiter, patience, detail::look_of(ready), nullptr, {});
}

/// The same for one of a crowd. `done`: the part of `ready` that moves nothing; other threads may
/// call it while this one sleeps.
template <class Ready, class Done>
WaitResult wait_among(Crowd& crowd, const Waiter& waiter, Patience& patience, Ready&& ready,
                      Done&& done) {
  if (ready()) return WaitResult::ready;
  return detail::wait_slow(waiter, patience, detail::look_of(ready), &crowd, detail::look_of(done));
}

/// For threads that have nothing else to do (control, progress): sleeps on `bell` until `ready()`
/// is true or `end` has come; returns what `ready` last said. Never spins.
template <class Ready>
bool wait_until(Doorbell& bell, Deadline::Clock::time_point end, Ready&& ready) {
  return detail::wait_until_slow(bell, end, detail::look_of(ready));
}

}  // namespace tutti
