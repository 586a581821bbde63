// Waiting for asynchronous operations: whoever waits drives.
#pragma once

#include <algorithm>
#include <utility>

#include "control/membership.h"

namespace tutti::native {

/// The patience of a thread that drives `Driven` (a queue, the messages) until a time of its own.
template <class Driven>
class HelpPatience final : public Patience {
 public:
  HelpPatience(Driven& driven, Deadline::Clock::time_point until)
      : driven_(driven), until_(until) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    *next = until_;
    driven_.ask(now, next);
    return now >= until_ ? Verdict::give_up : Verdict::keep_waiting;
  }

 private:
  Driven& driven_;
  const Deadline::Clock::time_point until_;
};

/// Drives until `done()` (true) or `until` has come (false). When the group has failed everything
/// that is pending ends with the cause, so that `done` becomes true as well.
template <class Driven, class Done>
bool help(Driven& driven, control::Membership& membership, Deadline::Clock::time_point until,
          Done&& done) {
  HelpPatience<Driven> patience(driven, until);
  const auto look = [&] {
    if (done()) return true;
    driven.drive();
    return done();
  };
  for (;;) {
    switch (wait(membership.waiter(), patience, look)) {
      case WaitResult::ready:
        return true;
      case WaitResult::gave_up:
        return done();
      case WaitResult::aborted:
        driven.fail_pending();
        if (done()) return true;
        if (Deadline::Clock::now() >= until) return false;
        break;
    }
  }
}

}  // namespace tutti::native
