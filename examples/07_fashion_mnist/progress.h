// The progress of training on stderr: a bar that is redrawn on a terminal; elsewhere a line every
// ten seconds, without control characters.
#pragma once

#include <chrono>
#include <cstddef>

class Progress {
 public:
  /// `shown`: only one rank of a job should talk.
  Progress(bool shown, std::size_t epochs, std::size_t steps_per_epoch);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  /// Whether it is time to show something.
  bool due() const;
  /// `step` counts from the start of the run; `communicating` is a share of the time, in [0, 1].
  void show(std::size_t step, double loss, double samples_per_second, double communicating);
  /// Ends the bar's line: what is printed next stands below it.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  const bool shown_;
  const bool terminal_;
  const std::size_t epochs_, steps_per_epoch_;
  Clock::time_point last_shown_;
  bool line_open_ = false;
};
