#include "simulate/kernel.h"

#include <cxxabi.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <utility>

#include "simulate/region.h"

namespace tutti::simulate {

namespace context = boost::context;

namespace {

constexpr std::size_t kStackBytes = 192 * 1024;
/// Of a round, and for each two processes: then somebody goes round in circles. Everybody may look
/// at everybody, again and again.
constexpr std::uint64_t kMostSteps = 20'000'000, kMostStepsOfTwo = 60'000;
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

/// What the program keeps per thread: the variables of this thread.
std::span<std::byte> find_thread_locals() {
  std::span<std::byte> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data != nullptr)
            *static_cast<std::span<std::byte>*>(to) = {static_cast<std::byte*>(info->dlpi_tls_data),
                                                       info->dlpi_phdr[i].p_memsz};
        return 1;  // the program comes first
      },
      &found);
  return found;
}

std::span<std::byte> thread_locals() {
  static const std::span<std::byte> found = find_thread_locals();
  return found;
}

}  // namespace

struct Fiber {
  enum class State : std::uint8_t { runnable, waiting, ended };
  Proc* process = nullptr;
  int number = 0;
  State state = State::runnable;
  std::byte* stack = nullptr;
  std::uint64_t wait = 0;       ///< number of the wait it is in
  const void* place = nullptr;  ///< what it waits at: a futex, a mutex or another fiber
  Exceptions exceptions = {};
  std::vector<std::byte> locals{thread_locals().begin(), thread_locals().end()};
  std::function<void()> body;
  // Never destroyed: that would unwind a fiber that has not ended.
  alignas(context::fiber) std::byte inside[sizeof(context::fiber)];
  alignas(context::fiber) std::byte outside[sizeof(context::fiber)];
  context::fiber& in() noexcept { return *reinterpret_cast<context::fiber*>(inside); }
  context::fiber& out() noexcept { return *reinterpret_cast<context::fiber*>(outside); }
};

Kernel* Kernel::running_ = nullptr;

Kernel::Kernel(std::uint64_t seed, double put_aside, double hiccup)
    : random_(seed), put_aside_(put_aside), hiccup_(hiccup) {
  running_ = this;
  steps_left_ = steps_until(put_aside_);
  own_steps_left_ = steps_until(put_aside_ / 4);
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
  shared_by_ = static_cast<std::int64_t>(processes_.size());
  step_of_all_ = kStep / shared_by_;
  step_left_over_ = kStep % shared_by_;
  most_steps_ = kMostSteps + kMostStepsOfTwo * processes_.size() * processes_.size();
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
  fiber->number = static_cast<int>(all_fibers_.size());
  fiber->process->fibers.push_back(fiber);
  make_runnable(*fiber);
  all_fibers_.push_back(fiber);
  return fiber;
}

int Kernel::core() const noexcept { return current_->number; }

void Kernel::resume(Fiber& fiber) {
  current_ = &fiber;
  self_ = fiber.process;
  const auto change = [&fiber] {
    std::swap(*reinterpret_cast<Exceptions*>(abi::__cxa_get_globals()), fiber.exceptions);
    std::swap_ranges(fiber.locals.begin(), fiber.locals.end(), thread_locals().begin());
  };
  change();
  fiber.in() = std::move(fiber.in()).resume();
  change();
  current_ = nullptr;
  if (fiber.state != Fiber::State::ended) return;
  stop_running(*fiber.process);
  std::erase(fiber.process->fibers, &fiber);
  wake(&fiber);
}

void Kernel::switch_out() noexcept {
  Fiber& fiber = *current_;
  fiber.out() = std::move(fiber.out()).resume();
}

/// Every process has a core of its own: what one spends the others spend as well.
void Kernel::spend(std::chrono::nanoseconds time) noexcept {
  spent_ += time;
  now_ += spent_ / shared_by_;
  spent_ %= shared_by_;
}

void Kernel::spend_step() noexcept {
  now_ += step_of_all_;
  spent_ += step_left_over_;
  if (spent_.count() < shared_by_) return;
  spent_ -= std::chrono::nanoseconds(shared_by_);
  now_ += std::chrono::nanoseconds(1);
}

void Kernel::step() noexcept {
  Proc& process = *self_;
  ++process.steps;
  ++steps_;
  spend_step();
  if (process.steps == process.die_at) {
    kill(process);
    switch_out();  // for good
  }
  bool is_aside = steps_left_-- == 0 || steps_ > most_steps_;
  if (is_aside) steps_left_ = steps_until(put_aside_);
  if (process.steps == process.stop_at) {
    process.stopped_until = now_ + process.stop_for;
    for (const int id : process.stop_with) this->process(id).stopped_until = process.stopped_until;
    is_aside = true;
  } else if (hiccup_.is_possible() && random_.chance(hiccup_)) {
    const auto lasts = std::chrono::microseconds(random_.from_to(100, 8000));
    process.stopped_until = now_ + lasts;
    hiccups_ += lasts;
    if (hiccups_ >= kMostHiccups) hiccup_ = Chance(0);
    is_aside = true;
  }
  if (is_aside) switch_out();
}

void Kernel::kill(Proc& process) {
  if (std::exchange(process.dead, true)) return;
  process.died = now_;
  if (process.runnable > 0) forget(process);
  if (on_death) on_death(process);
}

void Kernel::own_step() noexcept {
  if (own_steps_left_-- > 0) return;
  own_steps_left_ = steps_until(put_aside_ / 4);
  switch_out();
}

/// How many steps come before the next one of those that come with `probability`.
std::uint64_t Kernel::steps_until(double probability) noexcept {
  return random_.below(static_cast<std::uint64_t>(2 / probability));
}

void Kernel::block(const void* place, Clock::time_point until) noexcept {
  Fiber& fiber = *current_;
  fiber.state = Fiber::State::waiting;
  stop_running(*fiber.process);
  fiber.place = place;
  fiber.wait = ++waits_;
  if (place != nullptr) waiting_at_[place].push_back(&fiber);
  if (until != Clock::time_point::max()) add_timer({until, fiber.wait, &fiber});
  switch_out();
}

void Kernel::make_runnable(Fiber& fiber) noexcept {
  fiber.state = Fiber::State::runnable;
  fiber.wait = 0;
  Proc& process = *fiber.process;
  if (process.runnable++ > 0 || process.dead) return;
  ready_.push_back(&process);
  process.ready_at = ready_.size();
}

/// One fiber less can run.
void Kernel::stop_running(Proc& process) noexcept {
  if (--process.runnable == 0) forget(process);
}

void Kernel::forget(Proc& process) noexcept {
  Proc* const last = ready_.back();
  ready_[process.ready_at - 1] = last;
  last->ready_at = process.ready_at;
  ready_.pop_back();
  process.ready_at = 0;
}

/// Its time has come before anybody has woken the place.
void Kernel::leave_place(Fiber& fiber) noexcept {
  if (fiber.place == nullptr) return;
  const auto found = waiting_at_.find(fiber.place);
  std::erase(found->second, &fiber);
  if (found->second.empty()) waiting_at_.erase(found);
}

void Kernel::wake(const void* place) noexcept {
  const auto found = waiting_at_.find(place);
  if (found == waiting_at_.end()) return;
  for (Fiber* const fiber : found->second) make_runnable(*fiber);
  waiting_at_.erase(found);
}

void Kernel::lock(void* mutex) noexcept {
  own_step();
  while (pthread_mutex_trylock(static_cast<pthread_mutex_t*>(mutex)) != 0) {
    ++waiting_for_mutexes_;
    block(mutex, Clock::time_point::max());
    --waiting_for_mutexes_;
  }
}

void Kernel::unlocked(void* mutex) noexcept {
  if (waiting_for_mutexes_ > 0) wake(mutex);
}

void Kernel::join(const Fiber* fiber) noexcept {
  while (fiber->state != Fiber::State::ended) block(fiber, Clock::time_point::max());
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
  const auto can_run = [this](const Proc* process) { return process->stopped_until <= now_; };
  if (ready_.empty()) return nullptr;
  const Proc* process = ready_[random_.below(ready_.size())];
  if (!can_run(process)) {
    std::vector<Proc*> others;
    std::copy_if(ready_.begin(), ready_.end(), std::back_inserter(others), can_run);
    if (others.empty()) return nullptr;
    process = others[random_.below(others.size())];
  }
  auto number = random_.below(static_cast<std::uint64_t>(process->runnable));
  const auto chosen = std::find_if(
      process->fibers.begin(), process->fibers.end(),
      [&](const Fiber* fiber) { return fiber->state == Fiber::State::runnable && number-- == 0; });
  return *chosen;
}

/// Whether nobody waits for it any more.
bool Kernel::is_over(const Timer& timer) noexcept {
  return timer.fiber->wait != timer.number || timer.fiber->process->dead;
}

/// Most waits end long before their time: what is over goes once it is the most.
void Kernel::add_timer(Timer timer) {
  if (timers_.size() > 4 * all_fibers_.size()) {
    std::erase_if(timers_, is_over);
    std::make_heap(timers_.begin(), timers_.end());
  }
  timers_.push_back(timer);
  std::push_heap(timers_.begin(), timers_.end());
}

void Kernel::pop_timer() noexcept {
  std::pop_heap(timers_.begin(), timers_.end());
  timers_.pop_back();
}

/// Those whose time has come.
void Kernel::wake_due() noexcept {
  for (; !timers_.empty() && timers_.front().at <= now_; pop_timer()) {
    Fiber& fiber = *timers_.front().fiber;
    if (fiber.wait != timers_.front().number) continue;
    leave_place(fiber);
    make_runnable(fiber);
  }
}

/// When somebody can run again.
Clock::time_point Kernel::next_due() noexcept {
  while (!timers_.empty() && is_over(timers_.front())) pop_timer();
  auto due = timers_.empty() ? Clock::time_point::max() : timers_.front().at;
  for (const Proc* process : ready_) due = std::min(due, process->stopped_until);
  return due;
}

bool Kernel::run(Clock::time_point limit) {
  for (;;) {
    if (!timers_.empty() && now_ >= timers_.front().at) wake_due();
    if (Fiber* const fiber = choose()) {
      resume(*fiber);
      spend(std::chrono::nanoseconds(random_.below(2000)));
      if (now_ > limit || steps_ > most_steps_) return false;
      continue;
    }
    const Clock::time_point due = next_due();
    if (due == Clock::time_point::max()) return true;
    if (due > limit) return false;
    now_ = std::max(now_, due);
  }
}

void step(const volatile void* at) noexcept {
  Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->inside()) return;
  is_shared(at) ? kernel->step() : kernel->own_step();
}

}  // namespace tutti::simulate

// ---- what the product takes from outside -------------------------------------------------------

using tutti::simulate::Clock;
using tutti::simulate::is_shared;
using tutti::simulate::Kernel;

namespace {

/// The one in which the caller is a thread; null outside.
Kernel* inside() noexcept {
  Kernel* const kernel = Kernel::running();
  return kernel != nullptr && kernel->inside() ? kernel : nullptr;
}

/// Futexes: the product asks for nothing else by number.
long futex(Kernel& kernel, const std::uint32_t* word, int operation, std::uint32_t value,
           const timespec* timeout) {
  if (is_shared(word)) kernel.step();
  if (operation == FUTEX_WAKE) {
    kernel.wake(word);
  } else if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) {
    kernel.block(word, timeout == nullptr
                           ? Clock::time_point::max()
                           : Clock::time_point(std::chrono::seconds(timeout->tv_sec) +
                                               std::chrono::nanoseconds(timeout->tv_nsec)));
  }
  return 0;
}

}  // namespace

extern "C" {

int __real_pthread_mutex_trylock(pthread_mutex_t* mutex);
int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
int __real_pthread_mutex_consistent(pthread_mutex_t* mutex);
int __real_sched_yield();
pid_t __real_getpid();
int __real_sched_getcpu();
int __real_clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left);
long __real_syscall(long number, ...);

// The marks are the mutexes in shared memory.
int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  Kernel* const kernel = inside();
  if (kernel == nullptr || !is_shared(mutex)) return __real_pthread_mutex_trylock(mutex);
  kernel->step();
  return kernel->try_lock(mutex);
}

// The others are those of one process: who finds one taken lets other threads go on.
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  Kernel* const kernel = inside();
  if (kernel == nullptr) return __real_pthread_mutex_lock(mutex);
  kernel->lock(mutex);
  return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  Kernel* const kernel = inside();
  if (kernel == nullptr) return __real_pthread_mutex_unlock(mutex);
  if (is_shared(mutex)) {
    kernel->unlock(mutex);
    return 0;
  }
  const int result = __real_pthread_mutex_unlock(mutex);
  kernel->unlocked(mutex);
  return result;
}

int __wrap_pthread_mutex_consistent(pthread_mutex_t* mutex) {
  Kernel* const kernel = inside();
  if (kernel == nullptr || !is_shared(mutex)) return __real_pthread_mutex_consistent(mutex);
  return 0;
}

// The same in every run: texts name it, and every word of them that is published is a step.
pid_t __wrap_getpid() {
  Kernel* const kernel = inside();
  return kernel == nullptr ? __real_getpid() : 10'000 + kernel->self().id;
}

int __wrap_sched_yield() {
  Kernel* const kernel = inside();
  if (kernel == nullptr) return __real_sched_yield();
  kernel->block(nullptr,
                kernel->now() + std::chrono::microseconds(kernel->random().from_to(2, 40)));
  return 0;
}

// Every thread has a core of its own: nobody is in the way of another one.
int __wrap_sched_getcpu() {
  Kernel* const kernel = inside();
  return kernel == nullptr ? __real_sched_getcpu() : kernel->core();
}

int __wrap_clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  Kernel* const kernel = inside();
  if (kernel == nullptr) return __real_clock_nanosleep(clock, flags, time, left);
  kernel->block(nullptr, Clock::time_point(std::chrono::seconds(time->tv_sec) +
                                           std::chrono::nanoseconds(time->tv_nsec)));
  return 0;
}

long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long values[6];
  for (long& value : values) value = va_arg(list, long);
  va_end(list);
  Kernel* const kernel = inside();
  if (kernel != nullptr && number == SYS_futex)
    return futex(*kernel, reinterpret_cast<const std::uint32_t*>(values[0]),
                 static_cast<int>(values[1]), static_cast<std::uint32_t>(values[2]),
                 reinterpret_cast<const timespec*>(values[3]));
  return __real_syscall(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
}

std::chrono::steady_clock::time_point real_now() asm("__real__ZNSt6chrono3_V212steady_clock3nowEv");
std::chrono::steady_clock::time_point now() asm("__wrap__ZNSt6chrono3_V212steady_clock3nowEv");
std::chrono::steady_clock::time_point now() {
  Kernel* const kernel = Kernel::running();
  return kernel != nullptr ? kernel->now() : real_now();
}
