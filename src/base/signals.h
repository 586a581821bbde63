// What signals may do to the threads of a library.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace tutti {

/// Threads made in its scope take no signals: the program's handlers run in the program's threads.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// In a signal handler: ends the process as the signal does where nobody handles it.
inline void end_by(int number) noexcept {
  ::signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(number);
}

/// Writing beyond the limit of a file's size (ulimit -f) sends SIGXFSZ, which would end the
/// process; while this lives it is an error of write only.
class TooLargeIsAnError {
 public:
  TooLargeIsAnError() noexcept {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~TooLargeIsAnError() {
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&signal_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  TooLargeIsAnError(const TooLargeIsAnError&) = delete;
  TooLargeIsAnError& operator=(const TooLargeIsAnError&) = delete;

 private:
  sigset_t signal_, before_;
};

/// Takes back what tutti::on_terminate was given, if anything was: the system's action is there
/// again.
void forget_on_terminate();

}  // namespace tutti
