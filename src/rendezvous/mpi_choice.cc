#include "rendezvous/mpi_choice.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <string_view>

#include "tutti/error.h"

namespace tutti::rendezvous {
namespace {

struct Kind {
  std::string_view name;      // as the setting says it
  std::string_view title;     // for people
  std::string_view library;   // how its file begins
  std::string_view launcher;  // the command of Debian
  std::string_view srun;      // the command of Slurm
  Launcher launched_by;
};
constexpr Kind kOpenMpi{"openmpi",        "Open MPI",        "libmpi.so",
                        "mpirun.openmpi", "srun --mpi=pmix", Launcher::open_mpi};
constexpr Kind kMpich{"mpich",         "MPICH",           "libmpich.so",
                      "mpiexec.mpich", "srun --mpi=pmi2", Launcher::mpich};

/// Whose ranks this process was started among.
Launcher mpi_launcher(const Identity& identity) {
  return identity.launcher == Launcher::slurm ? identity.mpi_of_slurm : identity.launcher;
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kUnsupported, fmt::format("backend \"mpi\": {}", text));
}

/// Asks a library that is loaded: MPI_Initialized, MPI_Finalized.
bool answer_of(const std::string& path, const char* function) {
  void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto ask = reinterpret_cast<int (*)(int*)>(::dlsym(library, function));
  int answer = 0;
  if (ask != nullptr) ask(&answer);
  ::dlclose(library);
  return answer != 0;
}

int look_at_library(dl_phdr_info* info, std::size_t, void* found) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  auto& loaded = *static_cast<MpiInProcess*>(found);
  if (file.starts_with(kOpenMpi.library)) loaded.openmpi.path = path;
  if (file.starts_with(kMpich.library)) loaded.mpich.path = path;
  return 0;
}

const Kind& choose(const MpiInProcess& loaded, const std::string& setting, const Identity& identity,
                   std::span<const std::string> plugins) {
  if (!loaded.openmpi.path.empty()) return kOpenMpi;
  if (!loaded.mpich.path.empty()) return kMpich;
  const auto has_plugin = [&](const Kind& kind) {
    return std::find(plugins.begin(), plugins.end(), fmt::format("mpi_{}", kind.name)) !=
           plugins.end();
  };
  if (setting == kOpenMpi.name) return kOpenMpi;
  if (setting == kMpich.name) return kMpich;
  if (mpi_launcher(identity) == Launcher::open_mpi) return kOpenMpi;
  if (mpi_launcher(identity) == Launcher::mpich) return kMpich;
  return !has_plugin(kOpenMpi) && has_plugin(kMpich) ? kMpich : kOpenMpi;
}

void check_launcher(const Kind& kind, const Identity& identity) {
  if (mpi_launcher(identity) == kind.launched_by) return;
  const std::string command = fmt::format(
      "{} -n {} PROGRAM", identity.launcher == Launcher::slurm ? kind.srun : kind.launcher,
      identity.launcher == Launcher::none ? "N" : std::to_string(identity.world_size));
  if (identity.launcher == Launcher::none) {
    refuse(
        fmt::format("this process was not started by an MPI launcher, without which the ranks "
                    "of {} cannot find each other; start it with: {}",
                    kind.title, command));
  }
  refuse(
      fmt::format("this process was started by {} ({}), under which each rank of {} would be "
                  "alone; start it with: {}",
                  name_of(identity.launcher), identity.source, kind.title, command));
}

}  // namespace

MpiInProcess find_mpi() {
  MpiInProcess loaded;
  ::dl_iterate_phdr(look_at_library, &loaded);
  for (LoadedMpi* mpi : {&loaded.openmpi, &loaded.mpich}) {
    if (mpi->path.empty()) continue;
    mpi->is_initialized = answer_of(mpi->path, "MPI_Initialized");
    mpi->is_finalized = answer_of(mpi->path, "MPI_Finalized");
  }
  return loaded;
}

std::string choose_mpi(const MpiInProcess& loaded, const std::string& setting,
                       const Identity& identity, std::span<const std::string> plugins) {
  if (!loaded.openmpi.path.empty() && !loaded.mpich.path.empty()) {
    refuse(
        fmt::format("two MPIs are loaded in this process, {} ({}) and {} ({}), whose functions "
                    "have the same names; link the program with one of them",
                    kOpenMpi.title, loaded.openmpi.path, kMpich.title, loaded.mpich.path));
  }
  const Kind& kind = choose(loaded, setting, identity, plugins);
  const LoadedMpi& own = &kind == &kOpenMpi ? loaded.openmpi : loaded.mpich;
  if (setting != "auto" && setting != kind.name) {
    refuse(
        fmt::format("mpi={} is asked for, but {} is loaded in this process already ({}): both "
                    "cannot be in one; leave the setting out",
                    setting, kind.title, own.path));
  }
  if (own.is_finalized) {
    refuse(
        fmt::format("MPI_Finalize of {} has been called in this process, after which MPI cannot "
                    "be used; make worlds before it",
                    kind.title));
  }
  if (!own.is_initialized) check_launcher(kind, identity);
  return fmt::format("mpi_{}", kind.name);
}

}  // namespace tutti::rendezvous
