// The thread of a rank's progress: what it does is in progress.cc.
#include <pthread.h>

#include <system_error>

#include "base/signals.h"
#include "control/progress.h"
#include "net/system_error.h"

namespace tutti::control {

void ProgressThread::start_thread() try {
  const SignalsBlocked quiet;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "tutti-progress");
    loop();
  });
  thread_id_ = thread_.get_id();
} catch (const std::system_error& failure) {
  throw net::no_thread_error("cannot start the thread for asynchronous operations",
                             failure.code().value());
}

bool ProgressThread::has_thread() const noexcept { return thread_.joinable(); }

bool ProgressThread::is_own_thread() const noexcept {
  return thread_id_ == std::this_thread::get_id();
}

void ProgressThread::join() noexcept { thread_.join(); }

}  // namespace tutti::control
