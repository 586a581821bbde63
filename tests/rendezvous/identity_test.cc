// Who we are, from environments recorded under real launchers and from made-up ones.
#include "rendezvous/identity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "ranks.h"
#include "rendezvous/slurm.h"

namespace tutti::rendezvous {
namespace {

Environment recorded(const std::string& name) {
  std::ifstream file(std::string(TUTTI_RECORDED) + "/" + name + ".env");
  EXPECT_TRUE(file) << name;
  Environment variables;
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

Environment with(Environment variables, const Environment& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Error refused(const Environment& variables, const Explicit& given = {}) {
  const Error error = thrown_by([&] { identify(variables, given); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  return error;
}

const Environment kByHand{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};

TEST(Identity, NothingSetIsAWorldOfOne) {
  const Identity identity = identify({{"HOME", "/root"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(identity.rank, 0);
  EXPECT_EQ(identity.world_size, 1);
  EXPECT_EQ(identity.launcher, Launcher::none);
}

TEST(Identity, WhichOfItsHostsRanksAProcessIs) {
  const auto place = [](const Environment& variables) {
    const LocalPlace found = local_place(variables);
    return std::pair(found.rank, found.world_size);
  };
  EXPECT_EQ(place({}), std::pair(0, 1));
  EXPECT_EQ(place(recorded("open_mpi_4.1.4_rank1")), std::pair(1, 2));
  EXPECT_EQ(place(with(kByHand, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}})),
            std::pair(1, 2));
  EXPECT_EQ(place({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), std::pair(0, 1));
  const Error unknown = thrown_by([] { local_place(kByHand); });
  EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(unknown.what()).find("LOCAL_RANK"), std::string::npos) << unknown.what();
}

TEST(Identity, OpenMpiAsRecorded) {
  const Identity first = identify(recorded("open_mpi_4.1.4_rank0"));
  const Identity second = identify(recorded("open_mpi_4.1.4_rank1"));
  EXPECT_EQ(first.launcher, Launcher::open_mpi);
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(second.rank, 1);
  EXPECT_EQ(second.world_size, 2);
  EXPECT_EQ(second.local_rank, 1);
  EXPECT_EQ(second.local_world_size, 2);
  EXPECT_TRUE(first.is_one_host);
  EXPECT_FALSE(first.job.empty());
  // Recorded in two runs: each has a name of its own.
  EXPECT_NE(first.job, second.job);
}

TEST(Identity, TorchrunAsRecorded) {
  const Identity identity = identify(recorded("torchrun_2.x_rank0"));
  EXPECT_EQ(identity.launcher, Launcher::torchrun);
  EXPECT_EQ(identity.rank, 0);
  EXPECT_EQ(identity.world_size, 2);
  EXPECT_TRUE(identity.is_one_host);
  EXPECT_EQ(identity.master_addr, "localhost");
  EXPECT_EQ(identity.master_port, 34155);
  const Identity restarted =
      identify(with(recorded("torchrun_2.x_rank0"), {{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  EXPECT_NE(identity.job, restarted.job);
}

TEST(Identity, ByHand) {
  const Identity identity = identify(kByHand);
  EXPECT_EQ(identity.launcher, Launcher::by_hand);
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 4);
  EXPECT_EQ(identity.local_rank, -1);
  EXPECT_FALSE(identity.is_one_host);
  EXPECT_TRUE(identity.job.empty());
  EXPECT_TRUE(identify(with(kByHand, {{"LOCAL_WORLD_SIZE", "4"}})).is_one_host);
  EXPECT_FALSE(identify(with(kByHand, {{"LOCAL_WORLD_SIZE", "2"}})).is_one_host);
}

TEST(Identity, TuttiRun) {
  const Identity identity = identify(
      with(kByHand, {{"TUTTI_AGENT", "@tutti-1"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}}));
  EXPECT_EQ(identity.launcher, Launcher::tutti_run);
  EXPECT_EQ(identity.agent, "@tutti-1");
  EXPECT_EQ(identity.local_rank, 1);
  expect_text(refused({{"TUTTI_AGENT", "@tutti-1"}}), "TUTTI_AGENT=@tutti-1");
}

TEST(Identity, Spawned) {
  const Identity identity = identify({{"TUTTI_AGENT", "@tutti-1"},
                                      {"TUTTI_SPAWN", "-1:1"},
                                      {"RANK", "1"},
                                      {"WORLD_SIZE", "2"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(identity.launcher, Launcher::spawn);
  EXPECT_EQ(name_of(identity.launcher), "tutti::spawn");
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.agent, "@tutti-1");
  EXPECT_TRUE(identity.is_one_host);
}

// mpirun inside a rank of tutti run: its ranks all have the numbers of that rank, too.
TEST(Identity, AnotherLauncherInsideARankOfTuttiRunIsRefused) {
  const Environment open_mpi = recorded("open_mpi_4.1.4_rank1");
  const std::string around = launchers_around(open_mpi);
  EXPECT_EQ(around, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2;");
  EXPECT_EQ(launchers_around(kByHand), "");
  const Environment ours = with(kByHand, {{"TUTTI_AGENT", "@a"}, {"TUTTI_RUN_AROUND", ""}});
  EXPECT_EQ(identify(ours).launcher, Launcher::tutti_run);
  const Error error = refused(with(ours, open_mpi));
  expect_text(error,
              "Open MPI (OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2) was started inside a rank "
              "of tutti run (RANK=1 WORLD_SIZE=4)");
  expect_text(refused(with(ours, {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}})), "PMI_SIZE=3");
  expect_text(refused(with(ours, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}})), "Slurm");
  // What was there when tutti run started is around it, and MPI_Init without a launcher says 1.
  const Environment within = with(with(ours, open_mpi), {{"TUTTI_RUN_AROUND", around}});
  EXPECT_EQ(identify(within).launcher, Launcher::tutti_run);
  refused(with(within, {{"OMPI_COMM_WORLD_RANK", "0"}}));
  // A program that gives both numbers itself knows better; a script may pass ours on.
  EXPECT_EQ(identify(with(ours, open_mpi), {.rank = 0, .world_size = 2}).agent, "");
  EXPECT_EQ(identify(with(ours, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}})).rank, 1);
  EXPECT_EQ(
      identify(with(ours, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})).launcher,
      Launcher::tutti_run);
}

TEST(Identity, TheInnermostLauncherWinsAndTheOuterIsNoted) {
  const Environment open_mpi = recorded("open_mpi_4.1.4_rank1");
  // mpirun around torchrun, one per node.
  const Identity inner = identify(with(open_mpi, recorded("torchrun_2.x_rank0")));
  EXPECT_EQ(inner.launcher, Launcher::torchrun);
  EXPECT_EQ(inner.rank, 0);
  ASSERT_FALSE(inner.notes.empty());
  EXPECT_NE(inner.notes[0].find("OMPI_COMM_WORLD_RANK=1"), std::string::npos) << inner.notes[0];
  // srun around mpirun.
  const Identity under_slurm =
      identify(with(open_mpi, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}}));
  EXPECT_EQ(under_slurm.launcher, Launcher::open_mpi);
  ASSERT_FALSE(under_slurm.notes.empty());
  // tutti run inside torchrun's environment: it sets those variables itself.
  const Identity ours = identify(with(recorded("torchrun_2.x_rank0"), {{"TUTTI_AGENT", "@a"}}));
  EXPECT_EQ(ours.launcher, Launcher::tutti_run);
  EXPECT_TRUE(ours.notes.empty()) << ours.notes[0];
}

TEST(Identity, BareVariablesAgainstOpenMpisAreAConflictThatShowsBoth) {
  const Environment open_mpi = recorded("open_mpi_4.1.4_rank1");
  const Error error = refused(with(open_mpi, kByHand));
  expect_text(error, "RANK=1 WORLD_SIZE=4");
  expect_text(error, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2");
  refused(with(open_mpi, {{"RANK", "0"}}));
  refused(with(open_mpi, {{"WORLD_SIZE", "3"}}));
  // A wrapper that copies what mpirun says is no conflict.
  EXPECT_EQ(identify(with(open_mpi, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})).launcher,
            Launcher::open_mpi);
  // What the program says settles it.
  EXPECT_EQ(identify(with(open_mpi, kByHand), {.rank = 3, .world_size = 8}).rank, 3);
}

TEST(Identity, MpichAsRecorded) {
  const Environment mpich = recorded("mpich_4.0.2_rank1");
  const Identity identity = identify(mpich);
  EXPECT_EQ(identity.launcher, Launcher::mpich);
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 2);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_TRUE(identity.is_one_host);
  EXPECT_EQ(identity.pmi_fd, 8);
  expect_text(refused({{"PMI_RANK", "1"}}), "PMI_SIZE is not");
  expect_text(refused({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}), "PMI_RANK=2");
  expect_text(refused(with(mpich, {{"PMI_FD", "x"}})), "PMI_FD");
}

TEST(Identity, MpichAmongOthers) {
  const Environment mpich = recorded("mpich_4.0.2_rank1");
  const Error error = refused(with(mpich, kByHand));
  expect_text(error, "RANK=1 WORLD_SIZE=4");
  expect_text(error, "PMI_RANK=1 PMI_SIZE=2");
  // mpirun of Open MPI inside mpiexec, and the other way: nobody can know, so the order decides.
  EXPECT_EQ(identify(with(mpich, recorded("open_mpi_4.1.4_rank0"))).launcher, Launcher::open_mpi);
  // One process of mpiexec that has started a job by hand.
  EXPECT_EQ(identify(with(kByHand, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})).launcher,
            Launcher::by_hand);
  // Hydra that has started its own helpers with srun, and srun itself, which can speak PMI as well.
  const Environment slurm{{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  EXPECT_EQ(identify(with(mpich, slurm)).launcher, Launcher::mpich);
  Environment bare = mpich;
  bare.erase("HYDI_CONTROL_FD");
  EXPECT_EQ(identify(with(bare, slurm)).launcher, Launcher::mpich);
  Environment srun = with({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, slurm);
  EXPECT_EQ(identify(srun).launcher, Launcher::slurm);
}

TEST(Identity, SlurmAsRecorded) {
  for (const char* const name : {"slurm_22.05_rank1", "slurm_22.05_pmi2_rank1"}) {
    const Identity identity = identify(recorded(name));
    EXPECT_EQ(identity.launcher, Launcher::slurm) << name;
    EXPECT_EQ(identity.rank, 1);
    EXPECT_EQ(identity.world_size, 2);
    EXPECT_EQ(identity.local_rank, 1);
    EXPECT_EQ(identity.local_world_size, 2);
    EXPECT_TRUE(identity.is_one_host);
    EXPECT_TRUE(identity.notes.empty()) << identity.notes[0];  // its PMI is its own
  }
  const Identity apart = identify(recorded("slurm_22.05_two_nodes_rank2"));
  EXPECT_EQ(apart.rank, 2);
  EXPECT_EQ(apart.world_size, 3);
  EXPECT_EQ(apart.local_rank, 0);
  EXPECT_EQ(apart.local_world_size, 1);
  EXPECT_FALSE(apart.is_one_host);
  EXPECT_EQ(apart.nodes, "other,host");
}

TEST(Identity, SrunsMpiIsKnown) {
  const Environment none = recorded("slurm_22.05_rank1");
  EXPECT_EQ(identify(none).mpi_of_slurm, Launcher::none);
  EXPECT_EQ(identify(recorded("slurm_22.05_pmi2_rank1")).mpi_of_slurm, Launcher::mpich);
  EXPECT_EQ(identify(with(none, {{"PMIX_NAMESPACE", "slurm.pmix.1.0"}})).mpi_of_slurm,
            Launcher::open_mpi);
}

TEST(Identity, AStepOfSlurmIsAJob) {
  const Environment step = recorded("slurm_22.05_rank1");
  const std::string job = identify(step).job;
  EXPECT_FALSE(job.empty());
  EXPECT_EQ(identify(with(step, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})).job, job);
  for (const char* const name :
       {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"}) {
    EXPECT_NE(identify(with(step, {{name, "77"}})).job, job) << name;
  }
  EXPECT_TRUE(identify(with(step, {{"SLURM_STEP_ID", ""}})).job.empty());
}

TEST(Identity, OneTaskOfSlurmIsAWorldOfOne) {
  // A batch script, which is no step, and `srun --pty`.
  EXPECT_EQ(identify(recorded("slurm_22.05_batch")).launcher, Launcher::none);
  EXPECT_EQ(identify({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).world_size, 1);
  EXPECT_EQ(identify({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}).launcher,
            Launcher::none);
}

TEST(Identity, WhatSlurmLeavesOutOrContradictsIsNotGuessed) {
  const Environment step = recorded("slurm_22.05_rank1");
  // Without the list of tasks the number of nodes says it.
  for (const char* const list : {"", "2(x", "two"}) {
    const Identity identity = identify(with(step, {{"SLURM_STEP_TASKS_PER_NODE", list}}));
    EXPECT_TRUE(identity.is_one_host) << list;
    EXPECT_EQ(identity.local_world_size, -1) << list;
  }
  EXPECT_FALSE(identify(with(step, {{"SLURM_STEP_TASKS_PER_NODE", "3"}})).is_one_host);
  EXPECT_FALSE(identify(with(step, {{"SLURM_STEP_NUM_NODES", ""}})).is_one_host);
  expect_text(refused(with(step, {{"SLURM_PROCID", "2"}})), "SLURM_PROCID=2 is out of range");
  expect_text(refused(with(step, {{"SLURM_STEP_NUM_TASKS", "many"}})), "SLURM_STEP_NUM_TASKS");
}

TEST(Identity, BareVariablesAgainstSlurms) {
  const Environment step = recorded("slurm_22.05_rank1");
  // Scripts set what they found for programs of torch: equal, so Slurm's meeting place is known.
  EXPECT_EQ(identify(with(step, {{"WORLD_SIZE", "2"}})).launcher, Launcher::slurm);
  EXPECT_EQ(identify(with(step, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})).launcher, Launcher::slurm);
  const Error error = refused(with(step, kByHand));
  expect_text(error, "RANK=1 WORLD_SIZE=4");
  expect_text(error, "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2");
  refused(with(step, {{"WORLD_SIZE", "3"}}));
  // One task on each node, which has started others by hand.
  const Environment shells = with(step, {{"SLURM_STEP_NUM_NODES", "2"},
                                         {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                         {"SLURM_NODEID", "1"},
                                         {"SLURM_LOCALID", "0"}});
  const Identity inner = identify(with(shells, kByHand));
  EXPECT_EQ(inner.launcher, Launcher::by_hand);
  EXPECT_EQ(inner.world_size, 4);
  EXPECT_EQ(identify(shells).launcher, Launcher::slurm);
}

/// Which launcher wins in an environment recorded under two, whose inner one has two ranks.
void expect_inner(const std::string& name, Launcher launcher, const std::string& ignored) {
  const Identity identity = identify(recorded(name));
  EXPECT_EQ(identity.launcher, launcher) << name;
  EXPECT_EQ(identity.rank, 1) << name;
  EXPECT_EQ(identity.world_size, 2) << name;
  EXPECT_TRUE(identity.is_one_host) << name;
  const bool is_noted =
      std::any_of(identity.notes.begin(), identity.notes.end(),
                  [&](const std::string& note) { return note.find(ignored) != std::string::npos; });
  EXPECT_TRUE(is_noted) << name;
}

TEST(Identity, TheInnerLauncherWinsAsRecorded) {
  expect_inner("srun_pty_open_mpi_4.1.4_rank1", Launcher::open_mpi, "SLURM_PROCID=0");
  expect_inner("srun_mpich_4.0.2_rank1", Launcher::mpich, "SLURM_PROCID=0");
  expect_inner("srun_torchrun_2.15_rank1", Launcher::torchrun, "SLURM_PROCID=0");
  expect_inner("mpirun_torchrun_2.15_rank1", Launcher::torchrun, "OMPI_COMM_WORLD_RANK=0");
  expect_inner("srun_tutti_run_rank1", Launcher::tutti_run, "SLURM_PROCID=0");
}

// The index of the pod is its rank, where the manifest says how many there are.
TEST(Identity, IndexedJobOfKubernetes) {
  const Environment pod = {{"JOB_COMPLETION_INDEX", "2"},
                           {"KUBERNETES_PORT", "tcp://10.96.0.1:443"}};
  EXPECT_EQ(identify(pod).launcher, Launcher::none) << "without WORLD_SIZE the pod is one of many";
  const Environment told =
      with(pod, {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "train-0.train"}, {"MASTER_PORT", "29500"}});
  const Identity identity = identify(told);
  EXPECT_EQ(identity.launcher, Launcher::by_hand);
  EXPECT_EQ(identity.rank, 2);
  EXPECT_EQ(identity.world_size, 4);
  EXPECT_EQ(identity.source, "JOB_COMPLETION_INDEX=2 WORLD_SIZE=4");
  EXPECT_EQ(identity.master_addr, "train-0.train");
  EXPECT_FALSE(identity.is_one_host);
  EXPECT_EQ(identify(with(told, {{"RANK", "1"}})).rank, 1) << "RANK says it itself";
  expect_text(refused(with(told, {{"JOB_COMPLETION_INDEX", "4"}})), "JOB_COMPLETION_INDEX=4");
}

TEST(Identity, KubeflowsAreByHand) {
  const Identity identity = identify(recorded("kubeflow_pytorchjob_rank2"));
  EXPECT_EQ(identity.launcher, Launcher::by_hand);
  EXPECT_EQ(identity.rank, 2);
  EXPECT_EQ(identity.world_size, 3);
  EXPECT_FALSE(identity.is_one_host);
  EXPECT_EQ(identity.master_addr, "train-master-0");
  EXPECT_EQ(identity.master_port, 23456);
}

TEST(TasksPerNode, AreReadAsSlurmWritesThem) {
  EXPECT_EQ(tasks_per_node("3"), (std::vector<int>{3}));
  EXPECT_EQ(tasks_per_node("4(x2),3"), (std::vector<int>{4, 4, 3}));
  EXPECT_EQ(tasks_per_node("2,1"), (std::vector<int>{2, 1}));
  EXPECT_EQ(tasks_per_node("1(x65536)").size(), 65536u);
  for (const char* const list : {"", ",", "2,", "x2", "2(x2", "2(x)", "2(x0)", "0", "-1", "2(x2)3",
                                 "1(x65537)", "1(x65536),1", "99999999999", "2 "}) {
    EXPECT_TRUE(tasks_per_node(list).empty()) << list;
  }
}

TEST(Identity, BadNumbersAreNamedWithTheirValue) {
  const auto bad = [](const char* name, const char* value) {
    const Error error = refused(with(kByHand, {{name, value}}));
    expect_text(error, name);
    expect_text(error, value);
  };
  for (const char* value : {"one", "1x", " 1", "1.5", "0x1", "-1", "99999999999999999999"}) {
    bad("RANK", value);
  }
  bad("RANK", "4");
  bad("WORLD_SIZE", "0");
  bad("WORLD_SIZE", "-4");
  bad("WORLD_SIZE", "2000000000");
  bad("WORLD_SIZE", "4097");
  bad("LOCAL_WORLD_SIZE", "5");
  bad("LOCAL_RANK", "x");
  bad("MASTER_PORT", "0");
  bad("MASTER_PORT", "65536");
  bad("MASTER_PORT", "http");
  expect_text(refused(with(kByHand, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}})),
              "LOCAL_RANK=2");
}

TEST(Identity, HalfASetNamesWhatIsMissing) {
  expect_text(refused({{"RANK", "1"}}), "WORLD_SIZE");
  expect_text(refused({{"WORLD_SIZE", "4"}}), "RANK");
  expect_text(refused({{"OMPI_COMM_WORLD_RANK", "1"}}), "OMPI_COMM_WORLD_SIZE");
  expect_text(refused({{"RANK", ""}, {"WORLD_SIZE", "4"}}), "RANK is not");  // empty is not set
}

TEST(Identity, WhatTheProgramSaysWins) {
  EXPECT_EQ(identify(kByHand, {.rank = 2}).rank, 2);
  EXPECT_EQ(identify(kByHand, {.world_size = 8}).world_size, 8);
  const Identity alone = identify({}, {.rank = 1, .world_size = 3});
  EXPECT_EQ(alone.launcher, Launcher::options);
  EXPECT_EQ(alone.rank, 1);
  EXPECT_EQ(identify(with(kByHand, {{"TUTTI_RANK", "3"}})).rank, 3);
  EXPECT_EQ(identify(with(kByHand, {{"TUTTI_RANK", "-1"}})).rank, 1);
  expect_text(refused({}, {.rank = 1}), "world_size");
  expect_text(refused({}, {.world_size = 2}), "rank");
  expect_text(refused({}, {.rank = 3, .world_size = 3}), "rank 3");
  expect_text(refused({}, {.rank = -1, .world_size = 3}), "rank -1");
  expect_text(refused({}, {.rank = 0, .world_size = 0}), "world_size 0");
  expect_text(refused(kByHand, {.rank = 4}), "rank 4");
  // Where ranks are that a launcher has not started it does not know.
  const Environment one_host = with(kByHand, {{"LOCAL_WORLD_SIZE", "4"}});
  EXPECT_TRUE(identify(one_host, {.rank = 0, .world_size = 2}).is_one_host);
  EXPECT_FALSE(identify(one_host, {.rank = 0, .world_size = 8}).is_one_host);
}

}  // namespace
}  // namespace tutti::rendezvous
