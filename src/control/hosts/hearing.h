// Whether the host of another rank still hears this one: its kernel does, whatever its processes
// do. A value, with no clock of its own.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "control/judge/clock.h"

namespace tutti::control {

class Hearing {
 public:
  /// A host that acknowledges nothing for so long is silent.
  static constexpr std::chrono::milliseconds kSilence{2000};

  explicit Hearing(Clock::time_point now = {}) noexcept : last_(now) {}

  /// Something goes out that the other kernel acknowledges.
  void ask(Clock::time_point now) noexcept {
    if (!asked_) asked_ = now;
  }
  /// It has acknowledged something, then. What was asked later is still open.
  void heard(Clock::time_point when) noexcept {
    last_ = std::max(last_, when);
    if (asked_ && when >= *asked_) asked_.reset();
  }

  /// A time at which nothing was asked does not count: this process may have been stopped.
  bool is_silent(Clock::time_point now) const noexcept { return now >= silent_from(); }
  /// It may be found silent soon: it has acknowledged nothing for half that time.
  bool is_doubtful(Clock::time_point now) const noexcept { return is_silent(now + kSilence / 2); }
  /// When it counts as silent, if it acknowledges nothing until then.
  Clock::time_point silent_from() const noexcept {
    return asked_ ? *asked_ + kSilence : Clock::time_point::max();
  }
  Clock::time_point last() const noexcept { return last_; }

 private:
  Clock::time_point last_;
  std::optional<Clock::time_point> asked_;  // the first that is open
};

}  // namespace tutti::control
