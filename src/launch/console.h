// The user's side of a job: what is printed, what is typed, and the signals that are sent to the
// launcher. It lasts as long as the launcher, however often the ranks are started.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "launch/keeper.h"
#include "launch/output.h"
#include "launch/stdin_pump.h"
#include "net/fd.h"
#include "net/poller.h"

namespace tutti::launch {

class Console {
 public:
  /// Make it while the process has one thread: all signals are blocked from now on.
  Console(int ranks, OutputStyle style);

  Output& output() noexcept { return output_; }
  const Output& output() const noexcept { return output_; }
  void say(std::string_view line) { output_.say(line); }
  /// What ranks get of the state in which the launcher was started.
  const Inherited& inherited() const noexcept { return inherited_; }
  /// What the first rank reads.
  net::Fd open_input();

  /// The signal by which the user has first asked for the end, 0: none; and how often by Ctrl-C,
  /// which wrappers send twice at once.
  int asked_to_end_by() const noexcept { return asked_to_end_by_; }
  int interrupts() const noexcept { return interrupts_; }
  /// Whether the last Ctrl-Z has stopped nothing, since no shell could continue the job.
  bool cannot_stop() const noexcept { return cannot_stop_; }

  /// Appends what to poll, always the same number.
  void watch(std::vector<net::Watch>& watches) const;
  /// The answers to those it has appended, in their order. `on_signal` hears each signal that has
  /// come, at last: it may stop the process.
  void step(std::span<const net::Watch> watched, const std::function<void(int number)>& on_signal);

 private:
  void read_signals(const std::function<void(int number)>& on_signal);

  Output output_;
  StdinPump stdin_;
  Inherited inherited_;
  net::Fd signals_;
  int asked_to_end_by_ = 0;
  int interrupts_ = 0;
  bool cannot_stop_ = false;
  Deadline::Clock::time_point interrupted_at_ = {};
};

}  // namespace tutti::launch
