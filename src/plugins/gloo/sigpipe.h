// What SIGPIPE may do to threads that are in Gloo's code.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace tutti::gloo_backend {

/// Gloo's writes to a connection that the other end has closed raise SIGPIPE, which ends a program
/// that does not care for it. In the scope of this, in this thread, they do not.
class SigpipeBlocked {
 public:
  SigpipeBlocked() noexcept {
    const sigset_t sigpipe = only_sigpipe();
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
    was_blocked_ = sigismember(&before, SIGPIPE) == 1;
  }
  ~SigpipeBlocked() {
    if (was_blocked_) return;
    const sigset_t sigpipe = only_sigpipe();
    const timespec at_once = {};
    sigtimedwait(&sigpipe, nullptr, &at_once);  // takes away what this thread has raised
    pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  static sigset_t only_sigpipe() noexcept {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return set;
  }

  bool was_blocked_ = false;
};

}  // namespace tutti::gloo_backend
