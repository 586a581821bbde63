// The progress of training on stderr: a bar that is redrawn on a terminal; elsewhere a line every
// ten seconds, without control characters.
#pragma once

#include <tutti/process_group.h>

#include <chrono>
#include <cstddef>

/// How fast a rank trains.
struct Speed {
  double samples_per_second = 0;
  double communicating = 0;  ///< share of the time, in [0, 1]
};

class Progress {
 public:
  /// Rank 0 shows it.
  Progress(const tutti::ProcessGroup& world, std::size_t epochs, std::size_t steps_per_epoch);
  /// Of a run that is not counted in epochs.
  Progress(const tutti::ProcessGroup& world, std::size_t steps) : Progress(world, 0, steps) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  /// Whether it is time to show something.
  bool due() const;
  /// `step` counts from the start of the run. The samples of all ranks are shown: rank 0's speed
  /// times their number.
  void show(std::size_t step, double loss, const Speed& own);
  /// Ends the bar's line: what is printed next stands below it.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  const bool shown_;
  const bool terminal_;
  const int ranks_;
  const std::size_t epochs_, steps_per_epoch_;
  Clock::time_point last_shown_;
  bool line_open_ = false;
};
