#include "tutti/terminate.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/signals.h"
#include "base/wait.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What the signal handler touches: atomics alone.
std::atomic<std::uint32_t> asked{0};
Doorbell bell;

void on_signal(int) {
  asked.fetch_add(1);
  ring(bell);
}

class Listener {
 public:
  /// Lasts as long as the process: its thread does.
  static Listener& of_process() {
    static Listener& listener = *new Listener;
    return listener;
  }

  void set(std::function<void()> callback) {
    const bool is_empty = !callback;
    const std::lock_guard lock(mutex_);  // held while one runs; it may set another itself
    if (!is_empty && !has_thread_) start();
    callback_ = std::move(callback);
    handle(SIGTERM, is_empty, 0);
    handle(SIGINT, is_empty, static_cast<int>(SA_RESETHAND));
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    if (callback_) set({});
  }

 private:
  static void handle(int number, bool as_the_system, int flags) {
    struct sigaction action = {};
    action.sa_handler = as_the_system ? SIG_DFL : on_signal;
    action.sa_flags = SA_RESTART | flags;
    ::sigaction(number, &action, nullptr);
  }

  void start() {
    try {
      const SignalsBlocked blocked;
      std::thread([this] { listen(); }).detach();
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kSystem,
                  fmt::format("on_terminate: the system gives no thread: {}", error.what()));
    }
    has_thread_ = true;
  }

  void listen() {
    for (std::uint32_t heard = 0;;) {
      wait_until(bell, Deadline::Clock::time_point::max(), [&] { return asked.load() != heard; });
      ++heard;
      const std::lock_guard lock(mutex_);
      call(std::function<void()>(callback_));
    }
  }

  static void call(const std::function<void()>& callback) noexcept {
    if (!callback) return;
    try {
      callback();
    } catch (const std::exception& error) {
      log(LogLevel::error, fmt::format("a callback of on_terminate threw: {}", error.what()));
    } catch (...) {
      log(LogLevel::error, "a callback of on_terminate threw something that is no exception");
    }
  }

  std::recursive_mutex mutex_;
  std::function<void()> callback_;
  bool has_thread_ = false;
};

}  // namespace

void on_terminate(std::function<void()> callback) {
  Listener::of_process().set(std::move(callback));
}

void forget_on_terminate() { Listener::of_process().forget(); }

}  // namespace tutti
