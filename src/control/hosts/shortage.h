// What this process lacks for connections (descriptors, most often) while it lacks it.
//
// What fails for that reason is tried again, since others of the process may give some back soon.
// Who waits for a connection is told once that has not helped for a while: else it would find out
// by its deadline, and blame the rank at the other end.
#pragma once

#include <mutex>
#include <optional>

#include "control/judge/clock.h"
#include "tutti/error.h"

namespace tutti::control {

/// Any thread.
class Shortage {
 public:
  /// Something has just failed with `error`. Says so in the log, with growing pauses.
  void note(const Error& error, Clock::time_point now);
  /// The same has just been had.
  void is_over() noexcept;
  /// Why connections cannot be had, if that has lasted and still does.
  std::optional<Error> lasting(Clock::time_point now) const;

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  Clock::time_point began_ = {}, noted_ = {}, next_line_ = {};
};

}  // namespace tutti::control
