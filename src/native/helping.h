// Waiting for asynchronous operations: whoever waits drives.
#pragma once

#include "base/crowd.h"
#include "control/membership.h"

namespace tutti::native {

/// The patience of a thread that drives until a time of its own. The deadlines of what it drives
/// are looked at by the progress thread, once for all who wait.
class HelpPatience final : public Patience {
 public:
  HelpPatience(const control::Membership& membership, Deadline::Clock::time_point until) noexcept
      : membership_(membership), until_(until) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    *next = until_;
    return now >= until_ ? Verdict::give_up : Verdict::keep_waiting;
  }
  bool awaits_core(int core) const noexcept override { return membership_.is_on_core(core, -1); }

 private:
  const control::Membership& membership_;
  const Deadline::Clock::time_point until_;
};

/// Drives until `done()` (true) or `until` has come (false). Other threads call `done` too. When
/// the group has failed everything that is pending ends with the cause, so that `done` becomes true
/// as well.
template <class Driven, class Done>
bool help(Driven& driven, control::Membership& membership, Deadline::Clock::time_point until,
          Done&& done) {
  HelpPatience patience(membership, until);
  const auto look = [&] {
    if (done()) return true;
    driven.drive();
    return done();
  };
  for (;;) {
    switch (wait_among(driven.crowd(), membership.waiter(), patience, look, done)) {
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
