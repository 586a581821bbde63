// What the program of a rank finds around it: the simulated world (simulated.cc), or the real one
// (real/real_world.cc).
#pragma once

#include <chrono>
#include <functional>

#include "simulate/round.h"
#include "tutti/process_group.h"

namespace tutti::simulate {

class Surroundings {
 public:
  virtual ~Surroundings() = default;

  virtual Clock::time_point now() const = 0;
  /// The calling thread, for so long.
  virtual void pause(std::chrono::nanoseconds lasts) = 0;
  /// A further thread of the caller's process. Answers with what waits for its end.
  virtual std::function<void()> start_thread(std::function<void()> body) = 0;
  /// The plan's world, of which the caller becomes `rank`.
  virtual ProcessGroup make_world(int rank) = 0;
  /// The caller's process or host dies, stops, gets no more shared memory, or is cut off. Nothing,
  /// if the fault is one of programs.
  virtual void befall(const Fault& fault) = 0;
  /// How long processes were stopped for in all, though the plan says nothing of it.
  virtual std::chrono::nanoseconds hiccups() const = 0;
};

}  // namespace tutti::simulate
