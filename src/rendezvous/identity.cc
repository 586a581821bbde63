#include "rendezvous/identity.h"

#include <fmt/format.h>

#include <charconv>

#include "base/run_defaults.h"
#include "rendezvous/slurm.h"
#include "tutti/error.h"

namespace tutti::rendezvous {
namespace {

[[noreturn]] void reject(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

const std::string* find(const Environment& variables, std::string_view name) {
  const auto entry = variables.find(name);
  return entry == variables.end() || entry->second.empty() ? nullptr : &entry->second;
}

std::string text_of(const Environment& variables, std::string_view name) {
  const std::string* value = find(variables, name);
  return value == nullptr ? std::string() : *value;
}

/// A variable that is a whole number from `low` to `high`; empty when it is not set.
std::optional<int> number(const Environment& variables, std::string_view name, int low, int high) {
  const std::string* value = find(variables, name);
  if (value == nullptr) return std::nullopt;
  int result = 0;
  const char* end = value->data() + value->size();
  const auto [stop, problem] = std::from_chars(value->data(), end, result);
  if (problem == std::errc::invalid_argument || stop != end) {
    reject(fmt::format("{}='{}' is not a whole number", name, value->substr(0, 80)));
  }
  if (problem != std::errc() || result < low || result > high) {
    reject(
        fmt::format("{}={} is out of range: from {} to {}", name, value->substr(0, 80), low, high));
  }
  return result;
}

/// How a launcher names the four numbers, and what it calls itself.
struct Names {
  Launcher launcher;
  std::string_view rank, world_size, local_rank, local_world_size;
};
constexpr Names kTorchNames{Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                            "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpiNames{Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kMpichNames{Launcher::mpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                            "MPI_LOCALNRANKS"};

constexpr Names kSlurmNames{Launcher::slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                            "SLURM_LOCALID", ""};  // the fourth stands in a list

bool names_anything(const Environment& variables, const Names& names) {
  return find(variables, names.rank) != nullptr || find(variables, names.world_size) != nullptr;
}

/// Reads one launcher's set. Rank and size must both be there.
Identity read_set(const Environment& variables, const Names& names, Launcher launcher) {
  const auto world_size = number(variables, names.world_size, 1, kMaxWorldSize);
  const auto rank = number(variables, names.rank, 0, kMaxWorldSize - 1);
  if (!rank || !world_size) {
    reject(fmt::format("{} is set and {} is not ({}): set both, or neither for a world of one",
                       rank ? names.rank : names.world_size, rank ? names.world_size : names.rank,
                       name_of(launcher)));
  }
  if (*rank >= *world_size) {
    reject(fmt::format("{}={} is out of range: {}={} means ranks 0 to {}", names.rank, *rank,
                       names.world_size, *world_size, *world_size - 1));
  }
  Identity identity;
  identity.launcher = launcher;
  identity.rank = identity.launched_rank = *rank;
  identity.world_size = *world_size;
  identity.source = fmt::format("{}={} {}={}", names.rank, *rank, names.world_size, *world_size);
  const auto local_size = number(variables, names.local_world_size, 1, kMaxWorldSize);
  const auto local_rank = number(variables, names.local_rank, 0, kMaxWorldSize - 1);
  if (local_size && local_rank && *local_rank >= *local_size) {
    reject(fmt::format("{}={} is out of range: {}={}", names.local_rank, *local_rank,
                       names.local_world_size, *local_size));
  }
  if (local_size && *local_size > *world_size) {
    reject(fmt::format("{}={} is more than {}={}", names.local_world_size, *local_size,
                       names.world_size, *world_size));
  }
  identity.local_rank = local_rank.value_or(-1);
  identity.local_world_size = local_size.value_or(-1);
  identity.is_one_host = local_size == world_size;
  return identity;
}

/// Of a pod of an Indexed Job of Kubernetes, whose manifest sets WORLD_SIZE.
constexpr Names kIndexedJobNames{Launcher::by_hand, "JOB_COMPLETION_INDEX", "WORLD_SIZE",
                                 "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kForeignNames[] = {kOpenMpiNames, kMpichNames, kSlurmNames};

/// "PMI_RANK=1 PMI_SIZE=3;", or nothing.
std::string mark_of(const Environment& variables, const Names& names) {
  const std::string* rank = find(variables, names.rank);
  const std::string* size = find(variables, names.world_size);
  if (rank == nullptr || size == nullptr) return {};
  return fmt::format("{}={} {}={};", names.rank, *rank, names.world_size, *size);
}

/// Each rank of a launcher that was started inside a rank of tutti run would take itself for that.
void check_launcher_inside(const Environment& variables, const Identity& ours) {
  const auto around = variables.find(kRunAround);
  if (ours.agent.empty() || around == variables.end()) return;
  for (const Names& names : kForeignNames) {
    const std::string mark = mark_of(variables, names);
    const bool is_around = around->second.find(mark) != std::string::npos;
    // One process: a program that has started MPI without a launcher has these variables, too. And
    // a script may write our numbers into them, for a program that knows no others.
    const bool agrees = mark == fmt::format("{}={} {}={};", names.rank, ours.rank, names.world_size,
                                            ours.world_size);
    if (is_around || agrees || text_of(variables, names.world_size) == "1") continue;
    const std::string_view launcher = name_of(ours.launcher);
    reject(fmt::format(
        "{} ({}) was started inside a rank of {} ({}), and both say who this process "
        "is. Start the ranks by one of them alone; in a script that {} starts, put "
        "`env -u TUTTI_AGENT -u RANK -u WORLD_SIZE` before the other",
        name_of(names.launcher), mark.substr(0, mark.size() - 1), launcher, ours.source, launcher));
  }
}

std::optional<Identity> from_tutti_run(const Environment& variables) {
  const std::string agent = text_of(variables, "TUTTI_AGENT");
  if (agent.empty()) return std::nullopt;
  if (!names_anything(variables, kTorchNames)) {
    reject(
        fmt::format("TUTTI_AGENT={} is set, but RANK and WORLD_SIZE are not: something between "
                    "tutti run and the program has removed them; unset TUTTI_AGENT, too, for a "
                    "world of one",
                    agent));
  }
  const bool is_spawned = find(variables, "TUTTI_SPAWN") != nullptr;
  Identity identity =
      read_set(variables, kTorchNames, is_spawned ? Launcher::spawn : Launcher::tutti_run);
  identity.agent = agent;
  return identity;
}

std::optional<Identity> from_torchrun(const Environment& variables) {
  const std::string* run = find(variables, "TORCHELASTIC_RUN_ID");
  if (run == nullptr && find(variables, "GROUP_RANK") == nullptr) return std::nullopt;
  if (!names_anything(variables, kTorchNames)) return std::nullopt;
  Identity identity = read_set(variables, kTorchNames, Launcher::torchrun);
  // Ranks of an earlier attempt must not meet those of this one.
  identity.job = fmt::format("torchrun {} attempt {}", run == nullptr ? "" : *run,
                             text_of(variables, "TORCHELASTIC_RESTART_COUNT"));
  return identity;
}

std::optional<Identity> from_open_mpi(const Environment& variables) {
  if (!names_anything(variables, kOpenMpiNames)) return std::nullopt;
  Identity identity = read_set(variables, kOpenMpiNames, Launcher::open_mpi);
  // The daemon's address holds its pid and port, the name space tells its jobs apart.
  for (const std::string_view name :
       {"OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3",
        "PMIX_SERVER_URI2", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const std::string* value = find(variables, name)) identity.job += *value + "|";
  }
  return identity;
}

/// Hydra's. One process of it may be the outer shell of a job started by hand.
std::optional<Identity> from_mpich(const Environment& variables) {
  if (!names_anything(variables, kMpichNames)) return std::nullopt;
  Identity identity = read_set(variables, kMpichNames, Launcher::mpich);
  if (identity.world_size == 1 && names_anything(variables, kTorchNames)) return std::nullopt;
  identity.pmi_fd = number(variables, "PMI_FD", 0, 1 << 20).value_or(-1);
  return identity;
}

std::optional<Identity> from_bare_variables(const Environment& variables) {
  if (!names_anything(variables, kTorchNames)) return std::nullopt;
  const bool is_in_indexed_job =
      find(variables, "RANK") == nullptr && find(variables, kIndexedJobNames.rank) != nullptr;
  Identity identity =
      read_set(variables, is_in_indexed_job ? kIndexedJobNames : kTorchNames, Launcher::by_hand);
  for (const std::string_view name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) {
    if (const std::string* value = find(variables, name)) {
      identity.job = fmt::format("{} {} {}", name, *value, text_of(variables, "SLURM_STEP_ID"));
    }
  }
  return identity;
}

/// Whether srun itself has set the variables of PMI, as it can: Hydra leaves marks of its own.
bool is_pmi_of_slurm(const Environment& variables) {
  return find(variables, "SLURM_PROCID") != nullptr && find(variables, "PMI_SIZE") != nullptr &&
         find(variables, "HYDI_CONTROL_FD") == nullptr &&
         find(variables, "MPI_LOCALRANKID") == nullptr &&
         text_of(variables, "PMI_SIZE") == text_of(variables, "SLURM_STEP_NUM_TASKS");
}

/// A batch script is no step of srun: it has a SLURM_PROCID and no SLURM_STEP_NUM_TASKS.
bool is_in_step(const Environment& variables) {
  return find(variables, kSlurmNames.rank) != nullptr &&
         find(variables, kSlurmNames.world_size) != nullptr;
}

/// How many tasks of its step are on this node; none where Slurm does not say so.
std::optional<int> tasks_of_this_node(const Environment& variables) {
  const auto node = number(variables, "SLURM_NODEID", 0, kMaxWorldSize - 1);
  const auto nodes = tasks_per_node(text_of(variables, "SLURM_STEP_TASKS_PER_NODE"));
  if (!node || static_cast<std::size_t>(*node) >= nodes.size()) return std::nullopt;
  return nodes[static_cast<std::size_t>(*node)];
}

/// srun's. One task of it is a world of one, or the outer shell of an inner launcher.
std::optional<Identity> from_slurm(const Environment& variables) {
  if (!is_in_step(variables)) return std::nullopt;
  Identity identity = read_set(variables, kSlurmNames, Launcher::slurm);
  if (identity.world_size == 1) return std::nullopt;
  const auto local_size = tasks_of_this_node(variables);
  if (local_size && *local_size > identity.local_rank && *local_size <= identity.world_size) {
    identity.local_world_size = *local_size;
  }
  const auto nodes = number(variables, "SLURM_STEP_NUM_NODES", 1, kMaxWorldSize);
  identity.is_one_host =
      nodes == 1 && local_size.value_or(identity.world_size) == identity.world_size;
  identity.nodes = text_of(variables, "SLURM_STEP_NODELIST");
  if (is_pmi_of_slurm(variables)) identity.mpi_of_slurm = Launcher::mpich;
  if (text_of(variables, "PMIX_NAMESPACE").starts_with("slurm.")) {
    identity.mpi_of_slurm = Launcher::open_mpi;
  }
  const std::string job = text_of(variables, "SLURM_JOB_ID");
  const std::string step = text_of(variables, "SLURM_STEP_ID");
  // A job that is put back into the queue keeps its number.
  if (!job.empty() && !step.empty()) {
    identity.job =
        fmt::format("slurm {} job {} start {} step {}", text_of(variables, "SLURM_CLUSTER_NAME"),
                    job, text_of(variables, "SLURM_RESTART_COUNT"), step);
  }
  return identity;
}

/// Whether each node of a step has one task, in which ranks were started by hand.
bool is_shell_around_ranks(const Environment& variables, const Identity& slurm) {
  const bool is_whole = find(variables, kTorchNames.rank) != nullptr &&
                        find(variables, kTorchNames.world_size) != nullptr;
  return is_whole &&
         number(variables, "SLURM_STEP_NUM_NODES", 1, kMaxWorldSize) == slurm.world_size;
}

void note_ignored(const Environment& variables, Identity* winner) {
  const auto note = [&](std::string_view launcher, std::string_view variable) {
    const std::string* value = find(variables, variable);
    if (value == nullptr) return;
    const std::string what =
        winner->launcher == Launcher::none
            ? "has started this process alone: a world of one"
            : fmt::format("is around {} and ignored", name_of(winner->launcher));
    winner->notes.push_back(fmt::format("{} ({}={}) {}", launcher, variable, *value, what));
  };
  const bool is_ours =
      winner->launcher == Launcher::tutti_run || winner->launcher == Launcher::spawn;
  // TORCHELASTIC_RUN_ID is no mark of torchrun there: tutti run sets its own.
  if (is_ours || winner->launcher == Launcher::torchrun) {
    note("Open MPI", "OMPI_COMM_WORLD_RANK");
  }
  if (winner->launcher != Launcher::mpich && !is_pmi_of_slurm(variables)) note("PMI", "PMI_RANK");
  if (winner->launcher != Launcher::slurm) note("Slurm", "SLURM_PROCID");
}

/// Bare variables beside those of another launcher: equal, or nobody can know who is right.
void check_conflict(const Environment& variables, const Identity& other, const Names& names) {
  const auto rank = number(variables, "RANK", 0, kMaxWorldSize - 1);
  const auto world_size = number(variables, "WORLD_SIZE", 1, kMaxWorldSize);
  if (rank.value_or(other.rank) == other.rank &&
      world_size.value_or(other.world_size) == other.world_size) {
    return;
  }
  reject(
      fmt::format("two launchers say who this is, and they differ: RANK={} WORLD_SIZE={} (by "
                  "hand) and {} ({}). Unset RANK and WORLD_SIZE to be what {} says, or {} and {} "
                  "to be what they say, or give rank and world_size to init_process_group",
                  text_of(variables, "RANK"), text_of(variables, "WORLD_SIZE"), other.source,
                  name_of(other.launcher), name_of(other.launcher), names.rank, names.world_size));
}

Identity identify_by_variables(const Environment& variables) {
  for (const auto read : {from_tutti_run, from_torchrun}) {
    if (std::optional<Identity> identity = read(variables)) return std::move(*identity);
  }
  if (std::optional<Identity> identity = from_open_mpi(variables)) {
    check_conflict(variables, *identity, kOpenMpiNames);
    return std::move(*identity);
  }
  if (!is_pmi_of_slurm(variables)) {
    if (std::optional<Identity> identity = from_mpich(variables)) {
      check_conflict(variables, *identity, kMpichNames);
      return std::move(*identity);
    }
  }
  if (std::optional<Identity> identity = from_slurm(variables);
      identity && !is_shell_around_ranks(variables, *identity)) {
    check_conflict(variables, *identity, kSlurmNames);
    return std::move(*identity);
  }
  if (std::optional<Identity> identity = from_bare_variables(variables)) {
    return std::move(*identity);
  }
  Identity alone;
  if (is_in_step(variables)) alone.source = read_set(variables, kSlurmNames, {}).source;
  return alone;
}

Identity identify_checked(const Environment& variables) {
  Identity identity = identify_by_variables(variables);
  check_launcher_inside(variables, identity);
  return identity;
}

/// Puts the program's own numbers, or TUTTI_RANK and TUTTI_WORLD_SIZE, over the launcher's.
void apply(const Explicit& given, const Environment& variables, Identity* identity) {
  const auto rank =
      given.rank ? given.rank : number(variables, "TUTTI_RANK", -1, kMaxWorldSize - 1);
  const auto world_size = given.world_size
                              ? given.world_size
                              : number(variables, "TUTTI_WORLD_SIZE", -1, kMaxWorldSize);
  const bool has_rank = given.rank || rank.value_or(-1) >= 0;
  const bool has_size = given.world_size || world_size.value_or(-1) >= 0;
  if (!has_rank && !has_size) return;
  const bool is_alone = identity->launcher == Launcher::none;
  if (is_alone && !(has_rank && has_size)) {
    reject(has_rank ? fmt::format("rank {} is given and world_size is not", *rank)
                    : fmt::format("world_size {} is given and rank is not", *world_size));
  }
  identity->is_renumbered = true;
  if (has_rank) identity->rank = *rank;
  // More ranks than the launcher has started: it knows nothing of where the others are.
  if (has_size && *world_size > identity->world_size) identity->is_one_host = false;
  if (has_size) identity->world_size = *world_size;
  if (identity->world_size < 1 || identity->world_size > kMaxWorldSize) {
    reject(fmt::format("world_size {} is out of range: from 1 to {}", identity->world_size,
                       kMaxWorldSize));
  }
  if (identity->rank < 0 || identity->rank >= identity->world_size) {
    reject(fmt::format("rank {} is out of range: world_size {} means ranks 0 to {}", identity->rank,
                       identity->world_size, identity->world_size - 1));
  }
  if (is_alone) identity->launcher = Launcher::options;
  identity->source =
      fmt::format("rank {} and world_size {} of the program", identity->rank, identity->world_size);
}

}  // namespace

std::string_view name_of(Launcher launcher) noexcept {
  switch (launcher) {
    case Launcher::none:
      return "no launcher";
    case Launcher::options:
      return "the program's options";
    case Launcher::tutti_run:
      return "tutti run";
    case Launcher::spawn:
      return "tutti::spawn";
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::open_mpi:
      return "Open MPI";
    case Launcher::mpich:
      return "MPICH";
    case Launcher::slurm:
      return "Slurm";
    case Launcher::by_hand:
      return "by hand";
  }
  return "?";
}

std::string init_of(const Identity& identity) {
  return identity.is_rank_auto ? "init (rank=auto)" : fmt::format("init (rank {})", identity.rank);
}

std::string launchers_around(const Environment& variables) {
  std::string marks;
  for (const Names& names : kForeignNames) marks += mark_of(variables, names);
  return marks;
}

Identity identify(const Environment& variables, const Explicit& given) {
  // With both numbers from the program, what launchers say in their variables may be nonsense.
  Identity identity;
  if (given.rank && given.world_size) {
    try {
      identity = identify_checked(variables);
    } catch (const Error& error) {
      identity.notes.push_back(fmt::format("ignored: {}", error.what()));
    }
  } else {
    identity = identify_checked(variables);
  }
  apply(given, variables, &identity);
  note_ignored(variables, &identity);
  identity.master_addr = text_of(variables, "MASTER_ADDR");
  identity.master_port = number(variables, "MASTER_PORT", 1, 65535).value_or(0);
  return identity;
}

LocalPlace local_place(const Environment& variables) {
  const Identity identity = identify(variables);
  if (identity.local_rank >= 0 && identity.local_world_size > 0) {
    return {identity.local_rank, identity.local_world_size};
  }
  if (identity.world_size == 1) return {};
  if (identity.is_one_host) return {identity.rank, identity.world_size};
  reject(
      fmt::format("{} ({}) does not say which of its host's ranks this is; set LOCAL_RANK and "
                  "LOCAL_WORLD_SIZE, or ask the group, once there is one",
                  identity.source, name_of(identity.launcher)));
}

}  // namespace tutti::rendezvous
