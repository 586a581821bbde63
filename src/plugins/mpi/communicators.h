// The communicators of one group, and which rank of MPI each of its ranks is.
#pragma once

#include <memory>
#include <vector>

#include "plugins/mpi/process.h"
#include "tutti/backend.h"

namespace tutti::mpi {

/// By rank of the world: the rank in MPI_COMM_WORLD.
using RankMap = std::vector<int>;

/// All ranks of a new world tell each other, through its store, who they are in MPI, and watch each
/// other from then on.
///
/// Errors  kUnsupported, on all ranks with the same words: MPI's world has another size, or each
///         rank is alone in one; two ranks are threads of one process.
std::shared_ptr<const RankMap> exchange_ranks(const GroupSpec& spec, Process& process);

/// Two communicators of the members, in their order: messages must not meet collectives.
///
/// Lifetime  Freed by `free`; what nobody frees stays with MPI, as after a failure it must.
class Communicators {
 public:
  /// Collective among the members; blocks inside MPI until all are there.
  Communicators(const GroupSpec& spec, const RankMap& map, Process& process);
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  MPI_Comm collectives() const noexcept { return collectives_; }
  MPI_Comm messages() const noexcept { return messages_; }
  void free() noexcept;

 private:
  Process& process_;
  MPI_Comm collectives_ = MPI_COMM_NULL;
  MPI_Comm messages_ = MPI_COMM_NULL;
};

}  // namespace tutti::mpi
