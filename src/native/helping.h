// Waiting for asynchronous operations: whoever waits drives.
#pragma once

#include "base/crowd.h"
#include "control/membership.h"

namespace tutti::native {

/// The patience of a thread that drives until a time of its own. The deadlines of what it drives
/// are looked at by the progress thread, once for all who wait.
class HelpPatience final : public Patience {
 public:
  /// `awaits`: what the thread waits for, or null.
  HelpPatience(const control::Membership& membership, Deadline::Clock::time_point until,
               control::ProgramAwaits* awaits) noexcept
      : membership_(membership), until_(until), awaits_(awaits) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    *next = until_;
    if (now >= until_) return Verdict::give_up;
    const bool is_shown = membership_.note_caller() && awaits_ != nullptr;
    if (is_shown && until_ == Deadline::Clock::time_point::max())
      program_.look(*awaits_, now, next);
    return Verdict::keep_waiting;
  }
  bool awaits_core(int core) const noexcept override { return membership_.is_on_core(core, -1); }

 private:
  const control::Membership& membership_;
  const Deadline::Clock::time_point until_;
  control::ProgramAwaits* const awaits_;
  control::ProgramWait program_;
};

/// Drives until `done()` (true) or `until` has come (false). Other threads call `done` too. When
/// the group has failed everything that is pending ends with the cause, so that `done` becomes true
/// as well. `awaits`: what the others see of a wait without bound.
template <class Driven, class Done>
bool help(Driven& driven, control::Membership& membership, Deadline::Clock::time_point until,
          Done&& done, control::ProgramAwaits* awaits = nullptr) {
  HelpPatience patience(membership, until, awaits);
  const auto look = [&] {
    if (done()) return true;
    driven.drive();
    return done();
  };
  for (;;) {
    switch (wait_among(driven.crowd(), driven.waiter(), patience, look, done)) {
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
