// The number of ranks that Slurm has set this host aside for.
#include "launch/allocation.h"

#include <gtest/gtest.h>

#include "launch/refusal.h"

namespace tutti::launch {
namespace {

/// As salloc says it for `salloc -N1 -n3`, and what else there is.
Environment salloc_and(const Environment& more) {
  Environment variables{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "a"},
                        {"SLURM_NNODES", "1"}, {"SLURM_NODELIST", "a"},
                        {"SLURM_NTASKS", "3"}, {"SLURM_TASKS_PER_NODE", "3"},
                        {"SLURM_NPROCS", "3"}};
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

std::string found(const Environment& variables) {
  const auto allocation = find_allocation(variables);
  return allocation ? allocation->source : "none";
}

std::string refused(const Environment& more) {
  return refusal_of([&] { find_allocation(salloc_and(more)); });
}

TEST(Allocation, SaysHowManyRanks) {
  EXPECT_EQ(find_allocation(salloc_and({}))->ranks, 3);
  EXPECT_EQ(found(salloc_and({})), "SLURM_NTASKS=3 of Slurm's job 7");
  EXPECT_EQ(found(salloc_and({{"SLURM_NTASKS", ""}, {"SLURM_NTASKS_PER_NODE", "2"}})),
            "SLURM_NTASKS_PER_NODE=2 of Slurm's job 7");
  EXPECT_EQ(found(salloc_and({{"SLURM_NTASKS", ""}, {"SLURM_TASKS_PER_NODE", "4"}})),
            "SLURM_TASKS_PER_NODE=4 of Slurm's job 7");
  EXPECT_EQ(found(salloc_and({{"SLURM_NTASKS", ""}, {"SLURM_TASKS_PER_NODE", ""}})), "none");
}

TEST(Allocation, IsThereInAStepOfOneTask) {
  // The shell that salloc starts as a step keeps the numbers of the job; `srun -n1` has its own.
  EXPECT_EQ(find_allocation(salloc_and({{"SLURM_STEP_NUM_TASKS", "1"}}))->ranks, 3);
  EXPECT_EQ(
      find_allocation(salloc_and({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "1"}}))->ranks,
      1);
}

TEST(Allocation, IsNoneOutsideOneAndInRanksOfOtherLaunchers) {
  EXPECT_EQ(found({{"SLURM_NTASKS", "3"}}), "none");
  for (const char* const mark : {"TUTTI_AGENT", "TORCHELASTIC_RUN_ID", "GROUP_RANK",
                                 "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"}) {
    EXPECT_EQ(found(salloc_and({{mark, "0"}})), "none") << mark;
  }
}

TEST(Allocation, OfSeveralNodesIsRefusedByName) {
  const std::string why = refused({{"SLURM_NNODES", "2"}, {"SLURM_NODELIST", "n[1-2]"}});
  for (const char* const part : {"job 7", "2 nodes (n[1-2])", "srun PROGRAM", "-n N"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
}

TEST(Allocation, OneOfSeveralTasksIsRefused) {
  const std::string why = refused({{"SLURM_STEP_NUM_TASKS", "4"}});
  EXPECT_NE(why.find("srun -n 1 tutti run -n 4 PROGRAM"), std::string::npos) << why;
}

TEST(Allocation, SeveralStartsAreSaidOnce) {
  const auto said = [](const Environment& more) {
    return explain_several_starts(salloc_and(more));
  };
  EXPECT_EQ(said({}), "");
  EXPECT_EQ(said({{"SLURM_STEP_NUM_TASKS", "1"}}), "");
  EXPECT_EQ(said({{"SLURM_STEP_NUM_TASKS", "x"}}), "");
  EXPECT_EQ(said({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}}), "");
  EXPECT_EQ(said({{"SLURM_STEP_NUM_TASKS", "4"}, {"TUTTI_AGENT", "@a"}}), "");
  EXPECT_EQ(said({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}}),
            "srun has started this command 4 times (SLURM_STEP_NUM_TASKS), and each is a job of "
            "its own; for one job `srun -n 1 tutti run -n N PROGRAM`, or `srun -n 4 PROGRAM`");
}

TEST(Allocation, NumbersThatAreNoneAreNamed) {
  for (const char* const value : {"x", "0", "-1", "3x", "99999999999"}) {
    EXPECT_NE(refused({{"SLURM_NTASKS", value}}).find("SLURM_NTASKS=" + std::string(value)),
              std::string::npos);
  }
  EXPECT_NE(refused({{"SLURM_NTASKS", "300"}}).find("1 to 256 ranks"), std::string::npos);
}

}  // namespace
}  // namespace tutti::launch
