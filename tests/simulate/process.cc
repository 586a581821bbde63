// In place of control/process.cc and control/untold.cc: they keep one object per process of the
// operating system, and ours are many in one. The control thread is a fiber; its loop is the
// product's but for the flushing of the log.
#include "control/process.h"

#include <algorithm>
#include <utility>

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

void Process::loop() noexcept {
  std::vector<std::function<void()>> tasks;
  for (;;) {
    const std::uint64_t posted = posted_.load();
    Doorbell* bell;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
      if (tasks.empty() && stopping_) break;
    }
    for (auto& task : tasks) task();
    tasks.clear();
    {
      const std::lock_guard lock(mutex_);
      choose_bell();
      bell = bell_;
    }
    const std::uint32_t rung = bell->rings.load();
    auto now = Deadline::Clock::now();
    auto next = watched_.empty() ? now + std::chrono::hours(1) : now + kTick;
    for (Watched* watched : watched_) watched->tick(now, &next);
    wait_until(*bell, next, [&] { return posted_.load() != posted || bell->rings.load() != rung; });
  }
}

void Process::choose_bell() {
  Doorbell* chosen = watched_.empty() ? &own_bell_ : &watched_.front()->control_bell();
  if (chosen == bell_) return;
  bell_ = chosen;
  for (Watched* watched : watched_)
    if (watched->board() == watched_.front()->board())
      watched->sleep_at(watched_.front()->slot_index());
}

void Process::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  posted_.fetch_add(1);
  rouse(*bell_);
}

void Process::rouse_self() noexcept {
  const std::lock_guard lock(mutex_);
  posted_.fetch_add(1);
  rouse(*bell_);
}

void Process::run(std::function<void()> task) {
  Kernel& kernel = *Kernel::running();
  if (kernel.current() == kernel.self().control_fiber) return task();
  struct Done {
    std::atomic<bool> flag{false};
    Doorbell bell;
  };
  auto done = std::make_shared<Done>();
  post([done, task = std::move(task)] {
    task();
    done->flag.store(true);
    ring(done->bell);
  });
  wait_until(done->bell, Deadline::Clock::time_point::max(), [&] { return done->flag.load(); });
}

void Process::watch(Watched& watched, const std::function<bool()>& task) {
  run([&] {
    if (!task()) return;
    watched_.push_back(&watched);
    if (watched_.front()->board() == watched.board())
      watched.sleep_at(watched_.front()->slot_index());
  });
}

void Process::unwatch(Watched& watched, const std::function<void()>& task) {
  run([&] {
    std::erase(watched_, &watched);
    {
      const std::lock_guard lock(mutex_);
      choose_bell();
    }
    task();
  });
}

Untold& Untold::of_process() {
  static Untold& object = *new Untold;
  return object;
}
void Untold::show_on(const net::Fd&, int) {}
void Untold::add(Failure) {}
void Untold::keep(GroupId, int) noexcept {}
void Untold::told(GroupId, int, ErrorCode) noexcept {}

}  // namespace tutti::control
