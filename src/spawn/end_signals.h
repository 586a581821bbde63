// SIGTERM and SIGINT to a program whose ranks are processes: they are to hear of it first.
//
// Where the program has not said what these signals do, the system would end it, and its ranks at
// once with it. While one of these lives, the signal is kept instead: the jobs end their ranks, and
// when the last of these goes, the process ends by the signal. A second SIGINT ends it at once.
#pragma once

namespace tutti::spawning {

class EndSignals {
 public:
  EndSignals();
  /// Does not return where it is the last and a signal has come.
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  /// In a forked rank: the signals are the system's again.
  static void forget() noexcept;

  /// Readable, for ever, once one has come.
  int fd() const noexcept;
  /// Which; 0: none has come.
  int number() const noexcept;
};

}  // namespace tutti::spawning
