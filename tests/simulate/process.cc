// In place of control/process.cc and control/untold.cc: they keep one object per process of the
// operating system, and ours are many in one. The control thread is a fiber.
#include "control/process.h"

#include "control/board/board.h"
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
  while (!kernel.has_ended(thread))
    kernel.block(nullptr, kernel.now() + std::chrono::microseconds(50));
  delete process;
}

Untold& Untold::of_process() {
  static Untold& object = *new Untold;
  return object;
}
void Untold::show_on(const net::Fd&, SlotIndex) {}
void Untold::add(Failure) {}
void Untold::keep(GroupId, int) noexcept {}
void Untold::told(GroupId, int, ErrorCode) noexcept {}

}  // namespace tutti::control
