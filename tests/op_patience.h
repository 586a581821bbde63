// How a test waits on a Membership without native: for one rank, or for all of the group.
#pragma once

#include "base/wait.h"
#include "control/membership.h"
#include "tutti/request.h"

namespace tutti::control {

/// The Patience of one wait of one operation; lives on the stack.
class OpPatience final : public Patience {
 public:
  OpPatience(Membership& membership, const Request& request, int awaited) noexcept
      : membership_(membership), request_(request), awaited_(awaited) {
    program_.set_needs_all(awaited < 0);
  }
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    return membership_.ask(request_, awaited_, clock_, now, next, &program_);
  }
  bool awaits_core(int core) const noexcept override {
    return membership_.is_on_core(core, awaited_);
  }

 private:
  Membership& membership_;
  const Request& request_;
  int awaited_;
  WaitClock clock_;
  ProgramWait program_;
};

}  // namespace tutti::control
