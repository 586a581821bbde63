#include "tutti/terminate.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
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

class Listener;

/// What the signal handler touches. A forked child has it, too, and is another process.
std::atomic<Listener*> latest{nullptr};

void on_signal(int number);

/// Lasts as long as its process: its thread does.
class Listener {
 public:
  /// A forked child makes one anew: its parent's has no thread there, and may have been locked.
  static Listener& of_process() {
    Listener* now = latest.load();
    if (now != nullptr && now->process_ == ::getpid()) return *now;
    auto anew = std::make_unique<Listener>();
    return latest.compare_exchange_strong(now, anew.get()) ? *anew.release() : *now;
  }

  /// In the signal handler.
  bool hears() const noexcept { return has_thread_.load() && process_ == ::getpid(); }
  void ask() noexcept {
    asked_.fetch_add(1);
    ring(bell_);
  }

  void set(std::function<void()> callback) {
    const bool is_empty = !callback;
    const std::lock_guard lock(mutex_);  // held while one runs; it may set another itself
    if (!is_empty && !has_thread_.load()) start();
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
    has_thread_.store(true);
  }

  void listen() {
    for (std::uint32_t heard = 0;;) {
      wait_until(bell_, Deadline::Clock::time_point::max(), [&] { return asked_.load() != heard; });
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

  const pid_t process_ = ::getpid();
  std::atomic<bool> has_thread_{false};
  std::atomic<std::uint32_t> asked_{0};
  Doorbell bell_;
  std::recursive_mutex mutex_;
  std::function<void()> callback_;
};

void on_signal(int number) {
  Listener& listener = *latest.load();
  if (!listener.hears()) return end_by(number);
  listener.ask();
}

}  // namespace

void on_terminate(std::function<void()> callback) {
  Listener::of_process().set(std::move(callback));
}

void forget_on_terminate() { Listener::of_process().forget(); }

}  // namespace tutti
