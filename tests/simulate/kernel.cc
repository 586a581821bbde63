#include "simulate/kernel.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tutti::simulate {

namespace context = boost::context;

namespace {

constexpr std::size_t kStackBytes = 192 * 1024;
constexpr std::chrono::nanoseconds kStep{20};
/// Of a round; then somebody goes round in circles.
constexpr std::uint64_t kMostSteps = 20'000'000;
constexpr std::chrono::milliseconds kMostHiccups{60};

/// Stacks are used again from round to round: fibers of dead processes are never unwound.
std::vector<std::byte*>& free_stacks() {
  static auto& stacks = *new std::vector<std::byte*>;
  return stacks;
}

std::byte* take_stack() {
  if (free_stacks().empty()) {
    void* const memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(memory);
  }
  std::byte* const stack = free_stacks().back();
  free_stacks().pop_back();
  return stack;
}

struct NoFree {
  void deallocate(context::stack_context&) noexcept {}
};

/// What the run-time keeps of exceptions per thread; ours are threads to it.
struct Exceptions {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

}  // namespace

struct Fiber {
  enum class State : std::uint8_t { runnable, waiting, ended };
  Proc* process = nullptr;
  State state = State::runnable;
  std::byte* stack = nullptr;
  Clock::time_point wake_at = Clock::time_point::max();
  Doorbell* bell = nullptr;
  Exceptions exceptions = {};
  std::function<void()> body;
  // Never destroyed: that would unwind a fiber that has not ended.
  alignas(context::fiber) std::byte inside[sizeof(context::fiber)];
  alignas(context::fiber) std::byte outside[sizeof(context::fiber)];
  context::fiber& in() noexcept { return *reinterpret_cast<context::fiber*>(inside); }
  context::fiber& out() noexcept { return *reinterpret_cast<context::fiber*>(outside); }
};

std::uint64_t Random::next() noexcept {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

Kernel* Kernel::running_ = nullptr;

Kernel::Kernel(std::uint64_t seed, double put_aside, double hiccup)
    : random_(seed), put_aside_(put_aside), hiccup_(hiccup) {
  running_ = this;
}

Kernel::~Kernel() {
  for (Fiber* fiber : all_fibers_) {
    free_stacks().push_back(fiber->stack);
    delete fiber;
  }
  running_ = nullptr;
}

Proc& Kernel::add_process() {
  processes_.push_back(std::make_unique<Proc>());
  processes_.back()->id = static_cast<int>(processes_.size()) - 1;
  return *processes_.back();
}

Fiber* Kernel::spawn(Proc* process, std::function<void()> body) {
  auto* const fiber = new Fiber;
  fiber->process = process != nullptr ? process : current_->process;
  fiber->body = std::move(body);
  fiber->stack = take_stack();
  context::stack_context stack;
  stack.size = kStackBytes;
  stack.sp = fiber->stack + kStackBytes;
  new (fiber->outside) context::fiber;
  new (fiber->inside)
      context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack),
                     NoFree{}, [fiber](context::fiber&& out) {
                       fiber->out() = std::move(out);
                       fiber->body();
                       fiber->body = {};
                       fiber->state = Fiber::State::ended;
                       return std::move(fiber->out());
                     });
  fiber->process->fibers.push_back(fiber);
  all_fibers_.push_back(fiber);
  return fiber;
}

Proc& Kernel::self() const noexcept { return *current_->process; }

bool Kernel::has_ended(const Fiber* fiber) const noexcept {
  return fiber->state == Fiber::State::ended;
}

void Kernel::share(const void* begin, std::size_t byte_count) noexcept {
  shared_begin_ = begin;
  shared_end_ = static_cast<const std::byte*>(begin) + byte_count;
}

void Kernel::resume(Fiber& fiber) {
  current_ = &fiber;
  auto& globals = *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(globals, fiber.exceptions);
  fiber.in() = std::move(fiber.in()).resume();
  std::swap(globals, fiber.exceptions);
  current_ = nullptr;
  if (fiber.state == Fiber::State::ended) std::erase(fiber.process->fibers, &fiber);
}

void Kernel::switch_out() noexcept {
  Fiber& fiber = *current_;
  fiber.out() = std::move(fiber.out()).resume();
}

/// Every process has a core of its own: what one spends the others spend as well.
void Kernel::spend(std::chrono::nanoseconds time) noexcept {
  spent_ += time;
  const auto cores = static_cast<std::int64_t>(processes_.size());
  now_ += spent_ / cores;
  spent_ %= cores;
}

void Kernel::step() noexcept {
  if (current_ == nullptr) return;
  Proc& process = *current_->process;
  ++process.steps;
  ++steps_;
  spend(kStep);
  if (process.steps == process.die_at) {
    process.dead = true;
    process.died = now_;
    switch_out();  // for good
  }
  bool is_aside = random_.chance(put_aside_) || steps_ > kMostSteps;
  if (process.steps == process.stop_at) {
    process.stopped_until = now_ + process.stop_for;
    is_aside = true;
  } else if (hiccup_ > 0 && hiccups_ < kMostHiccups && random_.chance(hiccup_)) {
    const auto lasts = std::chrono::microseconds(random_.from_to(100, 8000));
    process.stopped_until = now_ + lasts;
    hiccups_ += lasts;
    is_aside = true;
  }
  if (!is_aside) return;
  process.held = current_;
  switch_out();
}

void Kernel::block(Doorbell* bell, Clock::time_point until) noexcept {
  Fiber& fiber = *current_;
  fiber.state = Fiber::State::waiting;
  fiber.wake_at = until;
  fiber.bell = bell;
  if (bell != nullptr) bell->sleepers.fetch_add(1);
  switch_out();
  if (bell != nullptr) bell->sleepers.fetch_sub(1);
  fiber.bell = nullptr;
}

void Kernel::ring(const Doorbell& bell) noexcept {
  for (Fiber* fiber : all_fibers_)
    if (fiber->state == Fiber::State::waiting && fiber->bell == &bell)
      fiber->state = Fiber::State::runnable;
}

int Kernel::try_lock(void* mutex) noexcept {
  Proc*& holder = holders_[mutex];
  if (holder != nullptr && !holder->dead) return EBUSY;
  const bool inherited = holder != nullptr;
  holder = current_ != nullptr ? current_->process : nullptr;
  return inherited ? EOWNERDEAD : 0;
}

/// One that can run, of a process chosen at random; null if there is none.
Fiber* Kernel::choose() {
  std::uint64_t seen = 0;
  Proc* chosen = nullptr;
  for (const auto& process : processes_) {
    if (process->dead || process->stopped_until > now_) continue;
    const bool can_run =
        process->held != nullptr ||
        std::any_of(process->fibers.begin(), process->fibers.end(),
                    [](Fiber* fiber) { return fiber->state == Fiber::State::runnable; });
    if (can_run && random_.below(++seen) == 0) chosen = process.get();
  }
  if (chosen == nullptr) return nullptr;
  if (chosen->held != nullptr) return std::exchange(chosen->held, nullptr);
  seen = 0;
  Fiber* found = nullptr;
  for (Fiber* fiber : chosen->fibers)
    if (fiber->state == Fiber::State::runnable && random_.below(++seen) == 0) found = fiber;
  return found;
}

Clock::time_point Kernel::next_due() const noexcept {
  auto due = Clock::time_point::max();
  for (const auto& process : processes_) {
    if (process->dead || process->fibers.empty()) continue;
    if (process->stopped_until > now_) {
      due = std::min(due, process->stopped_until);
      continue;
    }
    for (const Fiber* fiber : process->fibers)
      if (fiber->state == Fiber::State::waiting) due = std::min(due, fiber->wake_at);
  }
  return due;
}

bool Kernel::run(Clock::time_point limit) {
  for (;;) {
    for (const auto& process : processes_)
      for (Fiber* fiber : process->fibers)
        if (fiber->state == Fiber::State::waiting && fiber->wake_at <= now_)
          fiber->state = Fiber::State::runnable;
    if (Fiber* const fiber = choose()) {
      resume(*fiber);
      spend(std::chrono::nanoseconds(random_.below(2000)));
      if (now_ > limit || steps_ > kMostSteps) return false;
      continue;
    }
    const Clock::time_point due = next_due();
    if (due == Clock::time_point::max()) return true;
    if (due > limit) return false;
    now_ = std::max(now_, due);
  }
}

}  // namespace tutti::simulate

// ---- what the product takes from outside -------------------------------------------------------

using tutti::simulate::Kernel;

extern "C" {

int __real_pthread_mutex_trylock(pthread_mutex_t* mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
int __real_pthread_mutex_consistent(pthread_mutex_t* mutex);

// The marks are the mutexes in shared memory.
int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->is_shared(mutex)) return __real_pthread_mutex_trylock(mutex);
  kernel->step();
  return kernel->try_lock(mutex);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->is_shared(mutex)) return __real_pthread_mutex_unlock(mutex);
  kernel->unlock(mutex);
  return 0;
}

int __wrap_pthread_mutex_consistent(pthread_mutex_t* mutex) {
  Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->is_shared(mutex)) return __real_pthread_mutex_consistent(mutex);
  return 0;
}
}

std::chrono::steady_clock::time_point real_now() asm("__real__ZNSt6chrono3_V212steady_clock3nowEv");
std::chrono::steady_clock::time_point now() asm("__wrap__ZNSt6chrono3_V212steady_clock3nowEv");
std::chrono::steady_clock::time_point now() {
  Kernel* const kernel = Kernel::running();
  return kernel != nullptr ? kernel->now() : real_now();
}

namespace tutti {

// In place of base/wait.cc: a fiber that waits is put aside until somebody rings, or until it wants
// to ask.

void ring_slow(Doorbell& bell) noexcept {
  bell.rings.fetch_add(1);
  if (Kernel* const kernel = Kernel::running()) kernel->ring(bell);
}

void sleep_until(Deadline::Clock::time_point end) noexcept {
  Kernel::running()->block(nullptr, end);
}

namespace detail {

WaitResult wait_slow(const Waiter& waiter, Patience& patience, Look look, Crowd*, Look) {
  Kernel& kernel = *Kernel::running();
  auto next_ask = kernel.now() + std::chrono::milliseconds(5);
  for (;;) {
    kernel.step();
    if (look()) return WaitResult::ready;
    if (waiter.abort_word != nullptr && waiter.abort_word->load() != 0) return WaitResult::aborted;
    const auto at = kernel.now();
    if (at < next_ask) {
      kernel.block(waiter.bell, next_ask);
      continue;
    }
    next_ask = at + std::chrono::milliseconds(100);
    if (patience.ask(at, &next_ask) == Patience::Verdict::give_up) return WaitResult::gave_up;
  }
}

bool wait_until_slow(Doorbell& bell, Deadline::Clock::time_point end, Look look) {
  Kernel& kernel = *Kernel::running();
  while (!look()) {
    if (kernel.now() >= end) return false;
    kernel.block(&bell, end);
  }
  return true;
}

}  // namespace detail
}  // namespace tutti
