// What the control thread does, and how the others have it do something.
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "control/board/board.h"
#include "control/process.h"

namespace tutti::control {

namespace {

/// What stderr has to take the last lines.
constexpr std::chrono::milliseconds kLastWords{200};

}  // namespace

void Process::loop() noexcept {
  pthread_setname_np(pthread_self(), "tutti-control");
  add_log_flusher(1);
  std::vector<std::function<void()>> tasks;
  for (;;) {
    const std::uint64_t posted = posted_.load();
    Doorbell* bell;
    {
      const std::lock_guard lock(mutex_);
      if (tasks.empty()) tasks.swap(tasks_);
      if (tasks.empty() && stopping_) break;
    }
    const auto without_memory = std::find_if_not(
        tasks.begin(), tasks.end(), [](const auto& task) { return with_reserve(task); });
    tasks.erase(tasks.begin(), without_memory);
    {
      const std::lock_guard lock(mutex_);
      choose_bell();
      bell = bell_;
    }
    const std::uint32_t rung = bell->rings.load();
    auto now = Deadline::Clock::now();
    auto next = watched_.empty() && tasks.empty() ? now + std::chrono::hours(1) : now + kTick;
    for (Watched* watched : watched_) watched->tick(now, &next);
    flush_log();
    wait_until(*bell, next, [&] { return posted_.load() != posted || bell->rings.load() != rung; });
  }
  add_log_flusher(-1);
  flush_log(kLastWords);
}

void Process::choose_bell() {
  // All ranks of this process on one board share the bell of the first; on further boards the
  // thread is found by its tick.
  Doorbell* chosen = watched_.empty() ? &own_bell_ : &watched_.front()->control_bell();
  if (chosen == bell_) return;
  bell_ = chosen;
  for (Watched* watched : watched_) {
    if (watched->board() == watched_.front()->board())
      watched->sleep_at(watched_.front()->slot_index());
  }
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
  if (on_control_thread()) return task();
  // Shared with the task: whoever sees `done` may return before the task has rung.
  struct Done {
    std::atomic<bool> flag{false};
    Doorbell bell;
    std::exception_ptr thrown;
  };
  auto done = std::make_shared<Done>();
  post([done, task = std::move(task)] {
    try {
      task();
    } catch (...) {
      done->thrown = std::current_exception();
    }
    done->flag.store(true);
    ring(done->bell);
  });
  wait_until(done->bell, Deadline::Clock::time_point::max(), [&] { return done->flag.load(); });
  if (done->thrown) std::rethrow_exception(std::exchange(done->thrown, nullptr));
}

void Process::watch(Watched& watched, const std::function<bool()>& task) {
  run([&] {
    watched_.reserve(watched_.size() + 1);  // before the mark is taken
    if (!task()) return;
    watched_.push_back(&watched);
    if (watched_.front()->board() == watched.board())
      watched.sleep_at(watched_.front()->slot_index());
  });
}

void Process::unwatch(Watched& watched, const std::function<void()>& task) noexcept {
  const auto end = [&] {
    std::erase(watched_, &watched);
    {
      // Off the bell before its board can be unmapped.
      const std::lock_guard lock(mutex_);
      choose_bell();
    }
    task();
  };
  until_done([&] { run(end); });
}

}  // namespace tutti::control
