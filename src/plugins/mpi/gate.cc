#include "plugins/mpi/gate.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace tutti::mpi {

namespace {

/// Calls `function(argument)` once, in a thread of the C library, after `delay`.
bool call_later(std::chrono::nanoseconds delay, void (*function)(sigval), void* argument) noexcept {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = function;
  event.sigev_value.sival_ptr = argument;
  timer_t timer = {};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay);
  const auto rest =
      std::max((delay - seconds).count(), seconds.count() == 0 ? 1L : 0L);  // 0: never
  const itimerspec time = {.it_interval = {},
                           .it_value = {.tv_sec = seconds.count(), .tv_nsec = rest}};
  return ::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
         ::timer_settime(timer, 0, &time, nullptr) == 0;
}

}  // namespace

void Gate::abort(const Cause& cause) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) return;
      ErrorContext context;
      context.culprits = cause.culprits;
      context.host = cause.host;
      cause_.emplace(cause.code, cause.text, context);
    }
    aborted_.store(true, std::memory_order_seq_cst);
    if (committed_.load(std::memory_order_seq_cst) > 0) end_process_after_grace(cause);
  } catch (...) {  // no memory for the text: nobody could be told
    ::_exit(1);
  }
}

void Gate::end_process_after_grace(const Cause& cause) {
  log(LogLevel::error,
      fmt::format("{} is inside MPI, which cannot be interrupted, and the group has failed: {}. "
                  "Unless it returns, this process ends in {:.3g} s with code 1 (setting "
                  "failure_grace; TUTTI_MPI_MODE=nonblocking lets it live)",
                  committed_to_.load(), cause.text, std::chrono::duration<double>(grace_).count()));
  auto* const self = new std::shared_ptr<Gate>(shared_from_this());
  const auto end = [](sigval value) {
    const std::unique_ptr<std::shared_ptr<Gate>> gate(
        static_cast<std::shared_ptr<Gate>*>(value.sival_ptr));
    if ((*gate)->committed_.load(std::memory_order_seq_cst) > 0) ::_exit(1);
  };
  if (!call_later(grace_, end, self)) ::_exit(1);
}

void Gate::check() const {
  if (!is_aborted()) return;
  const std::lock_guard lock(mutex_);
  throw *cause_;
}

void Gate::await_cause() const noexcept {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!is_aborted() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

Gate::Commitment::Commitment(Gate& gate, const char* what) : gate_(&gate) {
  gate.committed_to_.store(what, std::memory_order_relaxed);
  gate.committed_.fetch_add(1, std::memory_order_seq_cst);
  if (!gate.is_aborted()) return;
  gate.committed_.fetch_sub(1, std::memory_order_seq_cst);
  gate.check();
}

}  // namespace tutti::mpi
