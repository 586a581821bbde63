// Which MPI the backend "mpi" means in this process, and whether it can work here at all.
//
// There may be one MPI in a process, and its ranks find each other through the launcher of that
// same MPI: started by anything else, each would be alone in a world of one.
#pragma once

#include <span>
#include <string>

#include "rendezvous/identity.h"

namespace tutti::rendezvous {

/// One MPI as this process has it.
struct LoadedMpi {
  std::string path;             ///< of its library; empty: not loaded
  bool is_initialized = false;  ///< by the program, or by a world before
  bool is_finalized = false;
};

struct MpiInProcess {
  LoadedMpi openmpi, mpich;
};

/// What the loader has in this process now.
MpiInProcess find_mpi();

/// "mpi_openmpi" or "mpi_mpich": the MPI that is loaded already, then the setting ("auto",
/// "openmpi" or "mpich"), then the one whose launcher started this process (srun is one by its
/// --mpi), then the one that has a plugin among `plugins` (names of backends).
///
/// Errors  kUnsupported: two MPIs would be in one process; MPI has been finalised; MPI is not yet
///         initialised and this process was not started by its launcher: names who did, and shows
///         the command.
std::string choose_mpi(const MpiInProcess& loaded, const std::string& setting,
                       const Identity& identity, std::span<const std::string> plugins);

}  // namespace tutti::rendezvous
