// What runs in native: operations as state machines.
//
// An *operation* makes as much progress as it can each time it is *stepped* and never blocks. A
// blocking call steps it in the caller's thread; an asynchronous one is stepped by whoever holds
// its queue's driver token.
#pragma once

#include "control/membership.h"
#include "tutti/request.h"

namespace tutti::native {

class Operation {
 public:
  virtual ~Operation() = default;
  /// Goes on as far as it can without waiting. True: done. A disagreement or a failure found here
  /// is handed to the group's Membership, whose abort word then ends the wait.
  virtual bool step() = 0;
  /// Whether the steps since this was last asked moved anything: then a wait begins anew, spinning.
  virtual bool take_moved() noexcept { return false; }
  /// The rank that kept the last step from finishing; -1: all of the group.
  virtual int awaited() const noexcept = 0;
  /// Messages: whether the peer has posted the other half.
  virtual bool matched() const noexcept { return false; }
};

/// The patience of an operation that waits for one rank after another.
class StepPatience final : public Patience {
 public:
  StepPatience(control::Membership& membership, const Request& request, const Request& moved,
               const Operation& operation) noexcept
      : membership_(membership), request_(request), moved_(moved), operation_(operation) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    program_.set_needs_all(control::needs_all(moved_, membership_.rank()));
    return membership_.ask(request_, operation_.awaited(), clock_, now, next, &program_);
  }
  bool awaits_core(int core) const noexcept override {
    return membership_.is_on_core(core, operation_.awaited());
  }

 private:
  control::Membership& membership_;
  const Request& request_;
  const Request& moved_;
  const Operation& operation_;
  control::WaitClock clock_;
  control::ProgramWait program_;
};

/// Steps `operation`, which carries `moved` out on behalf of `request`, in the caller's thread
/// until it is done. Throws what the group failed with. `enter` and `leave` are the caller's.
/// `waiter`: how it waits for the group, if not as for members that share memory.
void run_blocking(Operation& operation, const Request& request, const Request& moved,
                  control::Membership& membership, const Waiter& waiter);
inline void run_blocking(Operation& operation, const Request& request, const Request& moved,
                         control::Membership& membership) {
  run_blocking(operation, request, moved, membership, membership.waiter());
}
/// The waiter of a group, for those who wait for what comes over some channels.
inline Waiter waiter_with(const control::Membership& membership, Alarm* alarm) noexcept {
  Waiter waiter = membership.waiter();
  waiter.alarm = alarm;
  return waiter;
}

}  // namespace tutti::native
