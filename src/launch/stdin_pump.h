// A terminal's input for rank 0.
//
// Ranks stand in process groups of their own, and the terminal stops whoever reads it from the
// background. So when stdin is a terminal the launcher reads it, while in the foreground, and
// hands it on through a pipe. Anything else (a file, a pipe) becomes rank 0's stdin itself.
#pragma once

#include <string>

#include "net/fd.h"
#include "net/poller.h"

namespace tutti::launch {

class StdinPump {
 public:
  /// What rank 0 gets as its stdin; `source` is the launcher's own.
  net::Fd open(int source);

  /// What to watch now: the terminal, the pipe, or nothing.
  net::Watch watch() const;
  /// Moves what can be moved without blocking.
  void pump(const net::Watch& ready);

 private:
  int terminal_ = -1;
  net::Fd pipe_;
  std::string pending_;
};

}  // namespace tutti::launch
