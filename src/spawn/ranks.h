// What spawned ranks are made of: processes below a keeper, or threads.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "spawn/report.h"
#include "tutti/spawn.h"

namespace tutti::spawning {

using Function = std::function<int(int rank)>;

struct Event {
  enum class Kind : std::uint8_t { started, ended, not_started, keeper_gone, guard_gone };
  Kind kind = Kind::started;
  int rank = 0;
  int value = 0;  ///< the pid; as waitpid gives it; errno
};

/// Threads   Used by one thread, after it was made by another one.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// One is readable when there are events; -1: no more of that one.
  virtual std::array<int, 2> fds() const noexcept = 0;
  virtual std::vector<Event> read() = 0;
  /// To end, because of `reason`: SIGTERM, or an abort of the groups.
  virtual void ask(const std::string& reason) = 0;
  /// What can be done if they do not: SIGKILL; nothing for threads.
  virtual void force() = 0;
  /// All that the ranks have left is to go. Called again until it says that all is gone.
  virtual bool finish() = 0;
  /// Not all is gone: what is left, for people. Nobody waits for it.
  virtual std::string leave_behind() = 0;
};

struct RanksOptions {
  int world_size = 1;
  Function function;
  std::string agent;  ///< where they meet
  std::shared_ptr<const Reports> reports;
};

/// Errors  kSystem: not one is left then.
std::unique_ptr<Ranks> start_processes(const RanksOptions& options, Start start);
std::unique_ptr<Ranks> start_threads(const RanksOptions& options);

}  // namespace tutti::spawning
