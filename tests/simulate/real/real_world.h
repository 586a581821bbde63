// The real world around the program of a rank: threads, clocks and processes of the system, and the
// product as it ships.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <span>

#include "simulate/real/hosts.h"
#include "simulate/surroundings.h"
#include "tutti/init.h"

namespace tutti::simulate {

/// One for all ranks of a process, which the faults befall.
class RealWorld final : public Surroundings {
 public:
  /// By process of the plan, which each writes down itself. Shared by all.
  using Pids = std::span<std::atomic<pid_t>>;
  /// `init`: where the ranks meet. `hosts`: of a plan with several.
  RealWorld(const Plan& plan, InitOptions init, const Hosts* hosts, Pids pids)
      : plan_(plan), init_(std::move(init)), hosts_(hosts), pids_(pids) {}

  Clock::time_point now() const override { return Clock::now(); }
  void pause(std::chrono::nanoseconds lasts) override;
  std::function<void()> start_thread(std::function<void()> body) override;
  ProcessGroup make_world(int rank) override;
  void befall(const Fault& fault) override;
  std::chrono::nanoseconds hiccups() const override { return std::chrono::nanoseconds(0); }

 private:
  void die(const Fault& fault) const;
  void signal_others_of_host(int number, const Fault& fault) const;

  const Plan& plan_;
  const InitOptions init_;
  const Hosts* const hosts_;
  const Pids pids_;
};

/// As many cores of those that this process may use as the plan says, if there are more.
void use_cores_of(const Plan& plan);

}  // namespace tutti::simulate
