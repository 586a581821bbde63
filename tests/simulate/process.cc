// In place of control/process.cc, which keeps one object of each kind per process of the operating
// system, and ours are many in one. Threads of the product are fibers: this stands for
// control/progress_thread.cc as well. And what the product finds of the machine.
#include "control/process.h"

#include <pthread.h>

#include "base/cores.h"
#include "base/cpu_time.h"
#include "base/wait.h"
#include "control/board/board.h"
#include "control/callers.h"
#include "control/progress.h"
#include "control/untold.h"
#include "simulate/kernel.h"

namespace tutti::control {

using simulate::Kernel;

std::shared_ptr<Process> Process::get() {
  simulate::Proc& self = Kernel::running()->self();
  if (auto current = self.control.lock()) return current;
  auto* const process = new Process;
  process->start();
  std::shared_ptr<Process> made(process, release);
  self.control = made;
  return made;
}

bool Process::on_control_thread() const noexcept {
  const Kernel& kernel = *Kernel::running();
  return kernel.current() == kernel.self().control_fiber;
}

bool Process::forked() noexcept { return false; }
void Process::refuse_in_child() {}
void Process::guard(std::atomic<std::uint64_t>&) {}
void Process::unguard(std::atomic<std::uint64_t>&) noexcept {}

void Process::start() {
  Kernel& kernel = *Kernel::running();
  kernel.self().control_fiber = kernel.spawn(nullptr, [this] {
    loop();
    if (deletes_itself_) delete this;
  });
}

void Process::release(Process* process) noexcept {
  Kernel& kernel = *Kernel::running();
  const simulate::Fiber* const thread = kernel.self().control_fiber;
  const bool last_world_ended_in_a_callback = kernel.current() == thread;
  {
    const std::lock_guard lock(process->mutex_);
    process->stopping_ = true;
    process->deletes_itself_ = last_world_ended_in_a_callback;
    process->posted_.fetch_add(1);
    rouse(*process->bell_);
  }
  if (last_world_ended_in_a_callback) return;
  kernel.join(thread);
  delete process;
}

void ProgressThread::start_thread() {
  Kernel& kernel = *Kernel::running();
  kernel.self().threads[this] = kernel.spawn(nullptr, [this] { loop(); });
}

bool ProgressThread::has_thread() const noexcept {
  return Kernel::running()->self().threads.contains(this);
}

bool ProgressThread::is_own_thread() const noexcept {
  const Kernel& kernel = *Kernel::running();
  return has_thread() && kernel.self().threads[this] == kernel.current();
}

void ProgressThread::join() noexcept {
  Kernel& kernel = *Kernel::running();
  kernel.join(kernel.self().threads[this]);
  kernel.self().threads.erase(this);
}

std::atomic<int>& PendingCallback::count() noexcept {
  return Kernel::running()->self().pending_callbacks;
}

Untold& Untold::of_process() {
  std::shared_ptr<Untold>& untold = Kernel::running()->self().untold;
  if (!untold) untold = std::make_shared<Untold>();
  return *untold;
}

}  // namespace tutti::control

namespace tutti::simulate {

// The machine: as many cores as the plan says. Looks in a row take no time here, so nobody spins.

Cores own_cores() noexcept asm("__wrap__ZN5tutti9own_coresEv");
Cores own_cores() noexcept {
  Cores cores;
  cores.mask.fill(~std::uint64_t{0});
  cores.quota = static_cast<std::uint32_t>(Kernel::running()->cores);
  return cores;
}

/// A process that is stopped or put aside takes no steps.
std::chrono::nanoseconds thread_cpu_time() noexcept asm("__wrap__ZN5tutti15thread_cpu_timeEv");
std::chrono::nanoseconds thread_cpu_time() noexcept {
  return Kernel::running()->self().steps * Kernel::kStep;
}

WaitPolicy wait_policy(int local_threads, int usable_cores) noexcept
    asm("__wrap__ZN5tutti11wait_policyEii");
WaitPolicy wait_policy(int local_threads, int usable_cores) noexcept {
  const bool has_enough = local_threads <= usable_cores;
  return {.looks = has_enough ? 2 : 0,
          .spin = std::chrono::nanoseconds(0),
          .linger = std::chrono::microseconds(has_enough ? 20 : 5),
          .shares_cores = true};
}

/// Fibers are threads to the product: it asks whether a second one of a rank has called the world.
pthread_t real_self() noexcept asm("__real_pthread_self");
pthread_t self() noexcept asm("__wrap_pthread_self");
pthread_t self() noexcept {
  const Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->inside()) return real_self();
  return reinterpret_cast<pthread_t>(kernel->current());
}
int set_name(pthread_t, const char*) noexcept asm("__wrap_pthread_setname_np");
int set_name(pthread_t, const char*) noexcept { return 0; }

}  // namespace tutti::simulate
