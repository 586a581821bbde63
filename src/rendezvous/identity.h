// Who this process is in its job, from what its launcher left in the environment.
//
// Each launcher leaves a *set* of variables. **The innermost launcher wins**: tutti run and
// tutti::spawn, then torchrun (known by its *mark*, TORCHELASTIC_RUN_ID or GROUP_RANK), then Open
// MPI, then MPICH, then Slurm's srun, then bare RANK and WORLD_SIZE. An outer set is ignored and
// noted. An MPI's launcher or srun inside a rank of tutti run or of tutti::spawn is refused: its
// own ranks all have that rank's variables, too. Bare variables stand on one level with those of an
// MPI and of srun: when they differ, nobody can know who is right, and both are shown. One task of
// srun, or one on each of several nodes, may be the outer shell of whatever is started in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace tutti::rendezvous {

inline constexpr int kMaxWorldSize = 4096;   // of the status board, too
inline constexpr int kMaxRanksOfHost = 256;  // slots of the status board

enum class Launcher : std::uint8_t {
  none,  ///< a world of one: nothing is set, or srun has started one task
  options,
  tutti_run,
  spawn,  ///< tutti::spawn
  torchrun,
  open_mpi,
  mpich,  ///< Hydra, or another that speaks PMI-1
  slurm,  ///< srun, whatever its --mpi
  by_hand,
};
std::string_view name_of(Launcher launcher) noexcept;  ///< "tutti run"

struct Identity {
  int rank = 0;
  int world_size = 1;
  bool is_rank_auto = false;  ///< the meeting gives the rank: `rank` says nothing before
  int local_rank = -1;        ///< -1: not known
  int local_world_size = -1;  ///< -1: not known
  Launcher launcher = Launcher::none;
  int launched_rank = -1;      ///< the launcher's number, whatever the program says; -1: none
  bool is_renumbered = false;  ///< the program has put numbers of its own over the launcher's
  std::string source;          ///< "RANK=1 WORLD_SIZE=4": where rank and size come from; or ""
  bool is_one_host = false;    ///< the launcher says that all ranks are on this host
  std::string agent;           ///< address of the agent of tutti run
  std::string master_addr;
  int master_port = 0;                     ///< 0: not given
  Launcher mpi_of_slurm = Launcher::none;  ///< whose MPI srun starts as well, by its --mpi
  int pmi_fd = -1;    ///< MPICH's launcher: the connection to it; -1: not given
  std::string nodes;  ///< where the launcher has put the ranks, as it writes it: "n[1-2]"
  std::string job;    ///< what the launcher calls this job, if anything: never compared
                      ///< with the job of another launcher
  std::vector<std::string> notes;  ///< what was ignored and why, for `tutti env`
};

/// "init (rank 3)", for messages.
std::string init_of(const Identity& identity);

/// What the program says itself. It wins over every variable.
struct Explicit {
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
};

/// Errors  kInvalidArgument, naming variable and value: no number, rank out of range, a size of 0,
///         one of a pair missing, two sets of one level that differ.
Identity identify(const Environment& variables, const Explicit& given = {});

/// What `variables` have of launchers that start ranks without leaving tutti run's own variables,
/// for kRunAround: a rank that finds more has another launcher between itself and tutti run.
std::string launchers_around(const Environment& variables);

/// Which of its host's ranks this process is, before it has met anybody.
struct LocalPlace {
  int rank = 0;
  int world_size = 1;
};
/// Errors  As identify; kInvalidArgument where the launcher does not say it.
LocalPlace local_place(const Environment& variables);

}  // namespace tutti::rendezvous
