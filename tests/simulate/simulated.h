// The simulated world around the program of a rank.
#pragma once

#include <memory>

#include "simulate/surroundings.h"
#include "tutti/store.h"

namespace tutti::simulate {

class Network;

/// One for all ranks of a round.
class Simulated final : public Surroundings {
 public:
  Simulated(Kernel& kernel, const Plan& plan)
      : kernel_(kernel), plan_(plan), store_(make_memory_store()) {}

  /// The board of the only host; borrowed.
  int board_fd = -1;
  Network* network = nullptr;  ///< of several

  Clock::time_point now() const override { return kernel_.now(); }
  void pause(std::chrono::nanoseconds lasts) override;
  std::function<void()> start_thread(std::function<void()> body) override;
  ProcessGroup make_world(int rank) override;
  void befall(const Fault& fault) override;
  std::chrono::nanoseconds hiccups() const override { return kernel_.hiccups(); }

 private:
  void die(const Fault& fault) noexcept;

  Kernel& kernel_;
  const Plan& plan_;
  std::shared_ptr<Store> store_;
};

}  // namespace tutti::simulate
