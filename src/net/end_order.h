// In which order child processes end.
//
// A parent that looks late finds several that have ended, and waitpid gives the oldest child first:
// the one that was started first would pass for the one that failed first.
#pragma once

#include <sys/types.h>

#include <map>
#include <vector>

#include "net/fd.h"

namespace tutti::net {

class EndOrder {
 public:
  /// Knows of none where the system has no descriptors left.
  EndOrder();
  /// From when it was started. Nothing is known of one for which the system gives no pidfd: a
  /// sandbox may refuse it.
  void watch(pid_t pid);
  /// Those that have ended since the last call, the first to end first. They can be waited for.
  std::vector<pid_t> ended();

 private:
  Fd epoll_;  // its list of what is ready grows in the order of events
  std::map<pid_t, Fd> processes_;
};

}  // namespace tutti::net
