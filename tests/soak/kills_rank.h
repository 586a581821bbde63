// A rank of the soak `kills`: works until one of the others is killed, then says when it knew.
//
// PROGRAM WORKLOAD VICTIMS RESIDENT_MIB HELPER: VICTIMS are ranks, "0,2"; the first of them holds
// RESIDENT_MIB of memory, and with HELPER it has a live forked child. SOAK_STORE names a file in
// which the ranks meet: they can meet anew whichever of them is dead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/process_group.h"

namespace tutti::soak {

using Step = std::function<void()>;

struct Workload {
  /// Returns what is repeated until it throws, for (world, WORKLOAD).
  std::function<Step(ProcessGroup&, const std::string&)> make_step;
  /// Goes on without the victims, once the loss has been said. May be empty.
  std::function<void(ProcessGroup&, const std::vector<int>& victims)> go_on = {};
};

/// Joins the world and works until a rank is lost. Returns main's result.
int run_until_a_loss(int argc, char** argv, const Workload& workload);

std::int64_t now_ns();  ///< CLOCK_MONOTONIC
void say(const std::string& line);
/// "code=kPeerLost culprits=2 known=... thrown=...": `known` is when on_failure was called.
class Loss {
 public:
  explicit Loss(ProcessGroup& group);
  /// `names` are the ranks in whose words the culprits are said; empty: as they are.
  std::string describe(const Error& error, const std::vector<int>& names = {}) const;

 private:
  struct Told;
  std::shared_ptr<Told> told_;
};

}  // namespace tutti::soak
