// Which MPI the backend "mpi" means.
#include "rendezvous/mpi_choice.h"

#include <gtest/gtest.h>

#include "ranks.h"

namespace tutti::rendezvous {
namespace {

const std::vector<std::string> kBoth{"mpi_mpich", "mpi_openmpi"};
const LoadedMpi kOpenMpi{.path = "/usr/lib/libmpi.so.40"};
const LoadedMpi kMpich{.path = "/usr/lib/libmpich.so.12"};

Identity started_by(Launcher launcher, int world_size = 4) {
  Identity identity;
  identity.launcher = launcher;
  identity.world_size = world_size;
  identity.source = "SOURCE";
  return identity;
}

Error refused(const MpiInProcess& loaded, const std::string& setting, const Identity& identity) {
  const Error error = thrown_by([&] { choose_mpi(loaded, setting, identity, kBoth); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
  return error;
}

TEST(MpiChoice, TheLauncherDecidesWhereNothingElseDoes) {
  EXPECT_EQ(choose_mpi({}, "auto", started_by(Launcher::open_mpi), kBoth), "mpi_openmpi");
  EXPECT_EQ(choose_mpi({}, "auto", started_by(Launcher::mpich), kBoth), "mpi_mpich");
  EXPECT_EQ(choose_mpi({}, "mpich", started_by(Launcher::mpich), kBoth), "mpi_mpich");
}

TEST(MpiChoice, WhatIsLoadedComesFirst) {
  EXPECT_EQ(choose_mpi({kOpenMpi, {}}, "auto", started_by(Launcher::open_mpi), kBoth),
            "mpi_openmpi");
  // Initialised by the program: how it was started is the program's business.
  EXPECT_EQ(choose_mpi({{}, {.path = kMpich.path, .is_initialized = true}}, "auto",
                       started_by(Launcher::none), kBoth),
            "mpi_mpich");
  // Linked, but started by the other's launcher.
  expect_text(refused({kOpenMpi, {}}, "auto", started_by(Launcher::mpich)), "mpirun.openmpi -n 4");
}

TEST(MpiChoice, AfterTheEndOfMpiThereIsNone) {
  MpiInProcess loaded;
  loaded.mpich = {.path = kMpich.path, .is_initialized = true, .is_finalized = true};
  expect_text(refused(loaded, "auto", started_by(Launcher::mpich)), "MPI_Finalize of MPICH");
}

TEST(MpiChoice, TwoMpisInOneProcessAreRefused) {
  const Error both = refused({kOpenMpi, kMpich}, "auto", started_by(Launcher::open_mpi));
  expect_text(both, kOpenMpi.path);
  expect_text(both, kMpich.path);
  const Error other = refused({kOpenMpi, {}}, "mpich", started_by(Launcher::mpich));
  expect_text(other, "mpi=mpich");
  expect_text(other, kOpenMpi.path);
}

TEST(MpiChoice, OutsideAnMpiLauncherTheCommandIsShown) {
  expect_text(refused({}, "auto", started_by(Launcher::none)), "mpirun.openmpi -n N PROGRAM");
  expect_text(refused({}, "mpich", started_by(Launcher::none)), "mpiexec.mpich -n N PROGRAM");
  const Error error = refused({}, "auto", started_by(Launcher::tutti_run));
  expect_text(error, "tutti run");
  expect_text(error, "mpirun.openmpi -n 4 PROGRAM");
}

TEST(MpiChoice, TheOtherMpisLauncherIsNamed) {
  const Error error = refused({}, "mpich", started_by(Launcher::open_mpi));
  expect_text(error, "Open MPI (SOURCE)");
  expect_text(error, "mpiexec.mpich -n 4 PROGRAM");
}

TEST(MpiChoice, UnderSrunItsMpiDecides) {
  Identity identity = started_by(Launcher::slurm);
  expect_text(refused({}, "mpich", identity), "srun --mpi=pmi2 -n 4 PROGRAM");
  expect_text(refused({}, "auto", identity), "srun --mpi=pmix -n 4 PROGRAM");
  identity.mpi_of_slurm = Launcher::mpich;
  EXPECT_EQ(choose_mpi({}, "auto", identity, kBoth), "mpi_mpich");
  expect_text(refused({}, "openmpi", identity), "srun --mpi=pmix -n 4 PROGRAM");
  identity.mpi_of_slurm = Launcher::open_mpi;
  EXPECT_EQ(choose_mpi({}, "auto", identity, kBoth), "mpi_openmpi");
}

TEST(MpiChoice, TheOnlyPluginThereIs) {
  const std::vector<std::string> one{"mpi_mpich"};
  const Error error = thrown_by([&] { choose_mpi({}, "auto", started_by(Launcher::none), one); });
  expect_text(error, "mpiexec.mpich");
}

TEST(MpiChoice, NoMpiIsInThisProcess) {
  const MpiInProcess loaded = find_mpi();
  EXPECT_EQ(loaded.openmpi.path, "");
  EXPECT_EQ(loaded.mpich.path, "");
}

}  // namespace
}  // namespace tutti::rendezvous
