// A wait of the program, as the others see it: what its thread waits for, once that lasts.
//
// Whoever looks for deadlocks reads it on the board; what a rank awaits, and what a look is, says
// judge/deadlock.h. A wait that ends soon writes nothing.
#pragma once

#include <optional>
#include <vector>

#include "control/judge/deadlock.h"

namespace tutti::control {

class Membership;

/// What a thread of the program waits for: one operation of a group.
class ProgramAwaits {
 public:
  virtual ~ProgramAwaits() = default;
  virtual const Membership& membership() const noexcept = 0;
  /// Looks at all that has come, then says whose programs are awaited; nothing: nobody's, or that
  /// cannot be said. False: another thread is just looking, and nothing has been said.
  virtual bool look(std::optional<WaitPart>* part) = 0;
};

/// Lives on the stack of the thread that waits, no longer than the groups it waits in.
class ProgramWait {
 public:
  ProgramWait() noexcept = default;
  ~ProgramWait() {
    if (shown_by_ != nullptr) take_back();
  }
  ProgramWait(const ProgramWait&) = delete;
  ProgramWait& operator=(const ProgramWait&) = delete;

  /// Of a collective: whether it needs all members; see judge/deadlock.
  void set_needs_all(bool needs_all) noexcept { needs_all_ = needs_all; }
  bool needs_all() const noexcept { return needs_all_; }
  /// The thread has just looked at all that has come and goes on waiting, in groups of the world of
  /// `membership`. `parts`: one of them suffices; none: for whom cannot be said.
  void look(const Membership& membership, const std::vector<WaitPart>& parts,
            Clock::time_point now);
  /// The same for what `awaits` says. `*next`: when to look again.
  void look(ProgramAwaits& awaits, Clock::time_point now, Clock::time_point* next);

 private:
  void take_back() noexcept;

  bool needs_all_ = false;
  const Membership* shown_by_ = nullptr;
  Clock::time_point since_ = {};
  std::chrono::nanoseconds backoff_{5'000'000};
};

}  // namespace tutti::control
