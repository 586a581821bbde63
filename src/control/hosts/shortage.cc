#include "control/hosts/shortage.h"

#include <algorithm>

#include "base/log.h"

namespace tutti::control {

namespace {

constexpr std::chrono::seconds kLasting{1};
constexpr Clock::duration kLongestPause = std::chrono::minutes(1);
/// What is lacking is tried again several times in this time.
constexpr std::chrono::seconds kStill{1};

}  // namespace

void Shortage::note(const Error& error, Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) began_ = now;
    if (!error_ && now >= noted_ + kStill) next_line_ = now;
    error_ = error;
    noted_ = now;
    if (now < next_line_) return;
    next_line_ = now + std::clamp<Clock::duration>(2 * (now - began_), kLasting, kLongestPause);
  }
  log(LogLevel::error, error.what());
}

void Shortage::is_over() noexcept {
  const std::lock_guard lock(mutex_);
  error_.reset();
}

std::optional<Error> Shortage::lasting(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const bool has_lasted = error_ && noted_ >= began_ + kLasting && now < noted_ + kStill;
  return has_lasted ? error_ : std::nullopt;
}

}  // namespace tutti::control
