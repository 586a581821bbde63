#include "control/process.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/signals.h"
#include "base/undying.h"
#include "control/board/board.h"
#include "control/callers.h"
#include "control/untold.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

struct Global {
  std::mutex mutex;
  std::weak_ptr<Process> current;
  std::atomic<Process*> alive{nullptr};
  std::atomic<bool> forked{false};
  bool handlers_installed = false;
};
/// A world may be a static object that dies after this file's.
Global& global() { return undying<Global>(); }

}  // namespace

void Process::refuse_in_child() {
  if (!forked()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "Tutti is used in a forked child of a process that has a world; start the child "
              "with exec, or fork before the first init_process_group");
}

namespace {

/// Whether the kernel gives up the robust mutexes of a thread that ends. Asked the cheap way first:
/// a sandbox may refuse that question alone.
bool has_robust_mutexes() {
  void* list = nullptr;
  std::size_t length = 0;
  if (::syscall(SYS_get_robust_list, 0, &list, &length) == 0 && list != nullptr) return true;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_t mutex;
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  std::thread([&] { pthread_mutex_lock(&mutex); }).join();
  const bool works = pthread_mutex_trylock(&mutex) == EOWNERDEAD;
  if (works) {
    pthread_mutex_consistent(&mutex);
    pthread_mutex_unlock(&mutex);
    pthread_mutex_destroy(&mutex);
  }
  return works;
}

/// Deaths are found by these mutexes: whoever runs without them should know.
void test_robust_mutexes() {
  if (has_robust_mutexes()) return;
  log(LogLevel::warn,
      "this kernel or sandbox refuses set_robust_list: that a rank has died will be found late, "
      "when a timeout ends. Allow that system call (seccomp), or set a short TUTTI_TIMEOUT");
}

}  // namespace

std::atomic<int>& PendingCallback::count() noexcept {
  static std::atomic<int> pending{0};
  return pending;
}

Untold& Untold::of_process() { return undying<Untold>(); }

std::shared_ptr<Process> Process::get() {
  Global& state = global();
  refuse_in_child();
  const std::lock_guard lock(state.mutex);
  if (auto current = state.current.lock()) return current;
  if (!state.handlers_installed) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    state.handlers_installed = true;
  }
  // Without its thread it is not yet what `release` ends, which takes the lock we hold.
  Process* const process = new Process;
  try {
    process->start();
  } catch (...) {
    delete process;
    throw;
  }
  std::shared_ptr<Process> made(process, release);
  state.current = made;
  state.alive.store(made.get());
  return made;
}

bool Process::on_control_thread() const noexcept {
  return std::this_thread::get_id() == thread_.get_id();
}

bool Process::forked() noexcept { return global().forked.load(std::memory_order_relaxed); }

void Process::start() try {
  const SignalsBlocked blocked;
  test_robust_mutexes();
  thread_ = std::thread([this] {
    loop();
    if (deletes_itself_) delete this;
  });
} catch (const std::system_error& failure) {
  throw net::no_thread_error("cannot start the control thread", failure.code().value());
}

void Process::release(Process* process) noexcept {
  if (forked()) return;  // its thread is not in this process: leave it where it lies
  {
    const std::lock_guard lock(global().mutex);
    Process* expected = process;
    global().alive.compare_exchange_strong(expected, nullptr);
  }
  const bool last_world_ended_in_a_callback = process->on_control_thread();
  {
    const std::lock_guard lock(process->mutex_);
    process->stopping_ = true;
    process->deletes_itself_ = last_world_ended_in_a_callback;
    process->posted_.fetch_add(1);
    rouse(*process->bell_);
  }
  if (last_world_ended_in_a_callback) return process->thread_.detach();
  process->thread_.join();
  delete process;
}

void Process::guard(std::atomic<std::uint64_t>& abort_word) {
  const std::lock_guard lock(mutex_);
  guarded_.push_back(&abort_word);
}

void Process::unguard(std::atomic<std::uint64_t>& abort_word) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(guarded_, &abort_word);
}

void Process::before_fork() noexcept {
  global().mutex.lock();
  if (Process* process = global().alive.load()) process->mutex_.lock();
}

void Process::after_fork_in_parent() noexcept {
  if (Process* process = global().alive.load()) process->mutex_.unlock();
  global().mutex.unlock();
}

void Process::after_fork_in_child() noexcept {
  if (Process* process = global().alive.load()) {
    global().forked.store(true);
    for (auto* word : process->guarded_) word->store(kForked);
    process->mutex_.unlock();
  }
  global().mutex.unlock();
}

}  // namespace tutti::control
