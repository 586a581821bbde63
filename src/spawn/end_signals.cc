#include "spawn/end_signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/signals.h"
#include "net/poller.h"

namespace tutti::spawning {
namespace {

std::mutex mutex;
int count = 0;  // mutex

/// What the signal handler touches. A forked child has it, too, and is another process.
std::atomic<pid_t> owner{0};
std::atomic<int> came{0};
std::atomic<net::Wakeup*> news{nullptr};  ///< stays for ever

void on_signal(int number) {
  if (::getpid() != owner.load()) return end_by(number);
  const int errno_before = errno;
  int none = 0;
  came.compare_exchange_strong(none, number);
  news.load()->signal();
  errno = errno_before;
}

constexpr int kNumbers[] = {SIGTERM, SIGINT};

bool is_now(int number, void (*handler)(int)) noexcept {
  struct sigaction action = {};
  ::sigaction(number, nullptr, &action);
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler;
}

void give_back() noexcept {
  for (const int number : kNumbers) {
    if (is_now(number, on_signal)) ::signal(number, SIG_DFL);
  }
}

}  // namespace

EndSignals::EndSignals() {
  const std::lock_guard lock(mutex);
  if (owner.load() != ::getpid()) {
    news.store(new net::Wakeup);
    came.store(0);
    count = 0;
    owner.store(::getpid());
  }
  if (++count > 1) return;
  for (const int number : kNumbers) {
    if (!is_now(number, SIG_DFL) && !is_now(number, on_signal)) continue;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | (number == SIGINT ? static_cast<int>(SA_RESETHAND) : 0);
    ::sigaction(number, &action, nullptr);
  }
}

EndSignals::~EndSignals() {
  const std::lock_guard lock(mutex);
  if (--count > 0 || ::getpid() != owner.load()) return;
  give_back();
  if (const int number = came.load(); number != 0) end_by(number);
}

void EndSignals::forget() noexcept { give_back(); }
int EndSignals::fd() const noexcept { return news.load()->fd(); }
int EndSignals::number() const noexcept { return came.load(); }

}  // namespace tutti::spawning
