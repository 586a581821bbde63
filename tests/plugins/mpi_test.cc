// The backend "mpi": operations, failures and bad input, each over Open MPI and MPICH.
#include <csignal>
#include <map>

#include "mpi_job.h"

namespace tutti::mpi_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Both, MpiBackend, testing::Values(&kOpenMpi, &kMpich),
                         [](const auto& each) { return std::string(each.param->name); });

const char* const kNonblocking = "TUTTI_MPI_MODE=nonblocking";
const char* const kShortGrace = "TUTTI_FAILURE_GRACE=1s";
const char* const kFinalizedTooEarly = "MPI_Finalize was called while operations are under way";

void expect_said(const Outcome& outcome, const std::string& text) {
  EXPECT_NE(outcome.err.find(text), std::string::npos) << "no '" << text << "' in\n" << outcome.err;
}

TEST_P(MpiBackend, BlockingAsynchronousAndMessages) {
  for (const int ranks : {1, 2}) {
    expect_ok(run(ranks, "blocking,asynchronous,messages"));
    expect_ok(run(ranks, "blocking,asynchronous,messages", {kNonblocking}));
  }
}

TEST_P(MpiBackend, GroupsOfSomeRanks) {
  expect_ok(run(4, "subgroups"));
  expect_ok(run(3, "subgroups", {kNonblocking}));
}

TEST_P(MpiBackend, ASecondWorldFindsMpiAlive) {
  expect_ok(run(2, "blocking,again,messages,again,nothing"));
}

TEST_P(MpiBackend, TwoGroupsFromTwoThreads) {
  expect_ok(run(2, "two_threads"));
  expect_ok(run(2, "two_threads", {kNonblocking}));
}

// ---- failures

TEST_P(MpiBackend, ADeathBeforeTheCallIsAnErrorAndTheProcessLives) {
  for (const char* const mode : {"TUTTI_MPI_MODE=blocking", kNonblocking}) {
    const Outcome outcome = run(3, "die_before", {mode});
    expect_records(outcome, "kPeerLost 1: ", {"all_reduce"}, 1);
    EXPECT_EQ(outcome.codes[0], 3) << mode;
    EXPECT_EQ(outcome.codes[2], 3) << mode;
  }
}

TEST_P(MpiBackend, ADeathInsideABlockingCallEndsTheProcessWithOneLine) {
  Outcome outcome = run(2, "die_inside", {kShortGrace});
  // An MPI that was just copying out of the dead process aborts by itself; and on a busy machine
  // the death may come between two calls, which is an error as anywhere.
  const auto came_elsewhere = [&] {
    return outcome.codes[0] == 128 + SIGABRT || outcome.records[0].starts_with("kPeerLost 1: ");
  };
  for (int i = 0; i < 10 && came_elsewhere(); ++i) outcome = run(2, "die_inside", {kShortGrace});
  EXPECT_EQ(outcome.records[0], "");
  EXPECT_EQ(outcome.codes[0], 1) << outcome.err;
  EXPECT_NE(outcome.err.find("all_reduce is inside MPI"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("this process ends in 1 s"), std::string::npos) << outcome.err;
}

/// MPI has no form of making a group that could be given up.
TEST_P(MpiBackend, ADeathWhileAGroupIsMadeIsAnErrorOrTheEnd) {
  for (const char* const mode : {"TUTTI_MPI_MODE=blocking", kNonblocking}) {
    const Outcome outcome = run(2, "die_making", {mode, kShortGrace});
    const bool ended =
        outcome.codes[0] == 1 &&
        outcome.err.find("is inside MPI, which cannot be interrupted") != std::string::npos;
    EXPECT_TRUE(ended || outcome.records[0].starts_with("kPeerLost 1: ") ||
                outcome.codes[0] == 128 + SIGABRT)  // MPI by itself
        << outcome.codes[0] << " " << outcome.records[0] << outcome.err;
  }
}

TEST_P(MpiBackend, ADeathInsideATestedCallIsAnError) {
  const Outcome outcome = run(3, "die_inside", {kNonblocking});
  expect_records(outcome, "kPeerLost 1: ", {"all_reduce"}, 1);
  EXPECT_EQ(outcome.codes[0], 3);
  EXPECT_EQ(outcome.codes[2], 3);
}

TEST_P(MpiBackend, ALateRankIsBlamed) {
  const Outcome outcome = run(2, "late");
  EXPECT_TRUE(outcome.records[0].starts_with("kTimeout 1: ")) << outcome.records[0];
  EXPECT_TRUE(outcome.records[1].starts_with("kTimeout 1: ")) << outcome.records[1];
  EXPECT_EQ(outcome.codes, (std::vector{3, 3}));
}

TEST_P(MpiBackend, ATestedCallInWhichNothingMovesNamesWhoHasNotEndedIt) {
  const Outcome outcome =
      run(2, "late", {kNonblocking, "TUTTI_CHECK=off", "TUTTI_STALL_TIMEOUT=500ms"});
  expect_records(outcome, "kTimeout 1: ", {"no byte has moved for 0.5 s", "; rank 1 (pid "});
}

TEST_P(MpiBackend, RanksThatDisagreeAreShown) {
  for (const char* const mode : {"TUTTI_MPI_MODE=blocking", kNonblocking}) {
    const Words both = {"rank 0", "rank 1"};
    expect_records(run(2, "unequal_counts", {mode}), "kCollectiveMismatch", {"999", "1000"});
    expect_records(run(2, "unequal_roots", {mode}), "kCollectiveMismatch", both);
    expect_records(run(2, "oversize_message", {mode}), "kCollectiveMismatch", both);
    expect_records(run(2, "undersize_message", {mode}), "kCollectiveMismatch", both);
  }
}

TEST_P(MpiBackend, AnAbortOutsideMpiLetsTheProcessLive) {
  const Outcome outcome = run(2, "user_abort");
  expect_records(outcome, "kAborted 0: ", {"enough"});
  EXPECT_EQ(outcome.codes, (std::vector{3, 3}));
}

TEST_P(MpiBackend, SurvivorsGoOn) {
  expect_records(run(3, "die_before,go_on"), "kPeerLost 1: ", {"\nok\n"}, 1);
  for (const char* const death : {"die_before,go_on", "die_inside,go_on"}) {
    expect_records(run(3, death, {kNonblocking}), "kPeerLost 1: ", {"\nok\n"}, 1);
  }
}

// ---- leaving MPI

TEST_P(MpiBackend, ARankThatLeavesEarlyEndsLikeTheOthers) {
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = run(3, "leave_early");
    EXPECT_EQ(outcome.codes, (std::vector{3, 0, 3})) << outcome.err;
    expect_records(outcome, "kClosed 1: ", {"all_reduce"}, 1);
    EXPECT_EQ(outcome.records[1], "ok\n") << outcome.err;
  }
}

TEST_P(MpiBackend, ADeathAfterTheLastGoodbyeLeavesTheCodesOfTheOthers) {
  const Outcome outcome = run(3, "die_after_close", {kShortGrace, "TUTTI_LOG=info"});
  for (const int rank : {0, 2}) {
    EXPECT_EQ(outcome.records[static_cast<std::size_t>(rank)], "ok\n") << outcome.err;
    EXPECT_EQ(outcome.codes[static_cast<std::size_t>(rank)], 0) << outcome.err;
    EXPECT_NE(outcome.err.find("rank " + std::to_string(rank) +
                               ": backend \"mpi\": another process ended without finalising MPI, "
                               "so this one does not either"),
              std::string::npos)
        << outcome.err;
  }
}

TEST_P(MpiBackend, APeerThatOnlyTakesLongEndsNothing) {
  const Outcome outcome = run(3, "exit_late", {kShortGrace});
  expect_ok(outcome);
  EXPECT_EQ(outcome.err.find("finali"), std::string::npos) << outcome.err;
}

TEST_P(MpiBackend, AWorldThatIsAGlobalObjectEndsByItsDestructor) {
  const Outcome outcome = run(2, "blocking,outlive_main");
  expect_ok(outcome);
  EXPECT_NE(outcome.err.find("close the world before main ends"), std::string::npos) << outcome.err;
}

TEST_P(MpiBackend, ARankThatExitsInTheMiddleIsLost) {
  const Outcome outcome = run(2, "exit_open", {"TUTTI_TIMEOUT=60s"});
  expect_records(outcome, "kPeerLost 1: ", {"all_reduce"}, 1);
  EXPECT_EQ(outcome.codes, (std::vector{3, 3})) << outcome.err;
}

TEST_P(MpiBackend, AnAbortEndsTheExitOfOthers) {
  const Outcome outcome = run(2, "abort_before_exit");
  expect_records(outcome, "kAborted 0: ", {"enough"}, 1);
  EXPECT_EQ(outcome.codes, (std::vector{3, 0})) << outcome.err;
}

TEST_P(MpiBackend, ARankThatExitsInAHandlerIsLost) {
  // With the check it waits for the others, without it is inside MPI.
  for (const char* const check : {"TUTTI_CHECK=on", "TUTTI_CHECK=off"}) {
    for (const auto& [scenario, code] :
         {std::pair("exit_0_in_handler", 0), std::pair("exit_7_in_handler", 7)}) {
      const Outcome outcome = run(2, scenario, {check});
      expect_records(outcome, "kPeerLost 1: ", {}, 1);
      EXPECT_EQ(outcome.codes, (std::vector{3, code})) << check << outcome.err;
    }
  }
}

TEST_P(MpiBackend, ARankThatExitsInACallbackIsLost) {
  const Outcome outcome = run(2, "exit_in_callback", {kNonblocking});
  expect_records(outcome, "kPeerLost 0: ", {}, 0);
  EXPECT_EQ(outcome.codes[0], 0) << outcome.err;
}

TEST_P(MpiBackend, AnExitDoesNotWaitForeverForAThreadInsideMpi) {
  const Words settings{"TUTTI_CHECK=off", "TUTTI_STALL_TIMEOUT=1s", kShortGrace};
  const Outcome outcome = run(2, "exit_beside_a_thread", settings);
  expect_ok(outcome);
  expect_said(
      outcome,
      "rank 0: backend \"mpi\": all processes exit, but calls are under way in this one (1, "
      "the last to begin: all_reduce) and have not ended in 1 s");
}

// ---- bad input

TEST_P(MpiBackend, OutsideALauncherTheCommandIsShown) {
  const std::string setting = std::string("TUTTI_MPI=") + mpi().name;
  const Outcome alone = job_.run({}, 1, {setting}, TUTTI_RANK, "nothing");
  expect_records(alone, "kUnsupported: ",
                 {"not started by an MPI launcher", fs::path(mpi().launcher).filename(), "-n N"});
}

TEST_P(MpiBackend, TheLauncherOfTheOtherMpiIsNamed) {
  if (*other().launcher == '\0') GTEST_SKIP() << "only one MPI is installed";
  const std::string setting = std::string("TUTTI_MPI=") + mpi().name;
  expect_records(launch(other(), 2, "nothing", {setting}),
                 "kUnsupported: ", {"would be alone", fs::path(mpi().launcher).filename(), "-n 2"});
}

TEST_P(MpiBackend, AWorldOfAnotherSizeThanMpisIsRefused) {
  const Outcome outcome = run(2, "nothing", {"TUTTI_RANK=0", "TUTTI_WORLD_SIZE=1"});
  expect_records(outcome, "kUnsupported 0: ", {"the world has 1 ranks", "has 2"});
}

TEST_P(MpiBackend, RanksAsThreadsAreRefused) {
  expect_records(run(1, "threads"), "failed: kUnsupported ",
                 {"threads of one process", "ranks 0 and 1"});
}

TEST_P(MpiBackend, AnMpiOfTheProgramStaysItsOwn) {
  expect_ok(launch(mpi(), 2, "multiple/operations,messages,asynchronous", {}, mpi().own_rank));
  expect_ok(launch(mpi(), 2, "serialized/operations,messages,asynchronous", {}, mpi().own_rank));
  expect_ok(launch(mpi(), 2, "serialized/two_threads", {}, mpi().own_rank));
}

TEST_P(MpiBackend, AProgramThatIsLinkedWithMpiMayLeaveItToTutti) {
  expect_ok(launch(mpi(), 2, "blocking,asynchronous,messages", {}, mpi().own_rank));
}

TEST_P(MpiBackend, BelowSerializedOnlyTheMainThreadMayCall) {
  for (const std::string level : {"single", "funneled"}) {
    expect_ok(launch(mpi(), 2, level + "/blocking", {}, mpi().own_rank));
    expect_records(launch(mpi(), 2, level + "/asynchronous", {}, mpi().own_rank), "kUnsupported",
                   {level == "single" ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED"});
  }
}

TEST_P(MpiBackend, AThreadThatMayNotCallEndsTheGroupOnAllRanks) {
  const Outcome outcome = launch(mpi(), 2, "funneled/other_thread", {kShortGrace}, mpi().own_rank);
  EXPECT_TRUE(outcome.records[0].starts_with("kUnsupported 0: ")) << outcome.records[0];
  // Rank 1 is inside MPI, which waits for rank 0, or was told just before.
  const bool ended =
      outcome.codes[1] == 1 && outcome.err.find("all_reduce is inside MPI") != std::string::npos;
  EXPECT_TRUE(ended || outcome.records[1].starts_with("kUnsupported 0: ")) << outcome.err;
}

TEST_P(MpiBackend, AnMpiThatWasFinalisedIsRefused) {
  expect_records(launch(mpi(), 2, "finalized/nothing", {}, mpi().own_rank), "kUnsupported",
                 {"MPI_Finalize"});
}

TEST_P(MpiBackend, AWorldThatOutlivesMpiEndsByItsDestructor) {
  for (const char* const level : {"single", "serialized", "multiple"}) {
    const Outcome outcome =
        launch(mpi(), 2, level + std::string("/blocking,finalize,leave"), {}, mpi().own_rank);
    expect_ok(outcome);
    EXPECT_NE(outcome.err.find("closing in the destructor: "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("close the world before MPI_Finalize"), std::string::npos)
        << outcome.err;
  }
}

TEST_P(MpiBackend, AWorldThatOutlivesMpiRefusesToClose) {
  const Outcome outcome = launch(mpi(), 2, "single/blocking,finalize", {}, mpi().own_rank);
  expect_records(outcome, "kInvalidArgument: ",
                 {"close is not possible after MPI_Finalize; close the world before MPI_Finalize"});
  EXPECT_EQ(outcome.codes, (std::vector{3, 3})) << outcome.err;
}

TEST_P(MpiBackend, AWorldThatOutlivesMpiRefusesOperations) {
  const std::map<std::string, std::string> operations = {{"blocking", "all_reduce"},
                                                         {"messages", ""},
                                                         {"asynchronous", "all_reduce"},
                                                         {"two_threads", "new_group"}};
  for (const char* const mode : {"TUTTI_MPI_MODE=blocking", kNonblocking}) {
    for (const auto& [scenario, operation] : operations) {
      const Outcome outcome =
          launch(mpi(), 2, "multiple/finalize," + scenario, {mode}, mpi().own_rank);
      expect_records(outcome, "kInvalidArgument ", {operation + " is not possible after MPI_Fin"});
      EXPECT_EQ(outcome.codes, (std::vector{3, 3})) << outcome.err;
    }
  }
}

// MPICH whose calls threads may make at once forgets its lock as MPI_Finalize begins: what is under
// way then may end the process.
TEST_P(MpiBackend, MpiFinalizeAwaitsMessagesUnderWay) {
  const bool forgets_its_lock = std::string(mpi().name) == "mpich";
  for (const char* const mode : {"TUTTI_MPI_MODE=blocking", kNonblocking}) {
    for (const std::string level : {"serialized", "multiple"}) {
      if (forgets_its_lock && level == "multiple") continue;
      const Outcome outcome =
          launch(mpi(), 2, level + "/finalize_pending,leave", {mode}, mpi().own_rank);
      expect_ok(outcome);
      expect_said(outcome, kFinalizedTooEarly);
    }
  }
}

// At exit Tutti waits before it calls MPI_Finalize: right with any MPI.
TEST_P(MpiBackend, ExitAwaitsMessagesUnderWay) {
  // Over UCX's TCP MPICH 4.0 may hang in MPI_Finalize just after a message that was held up.
  const char* const kNoTcp = "UCX_TLS=^cma,tcp";
  for (const char* const mode : {"TUTTI_MPI_MODE=blocking", kNonblocking})
    for (int round = 0; round < 3; ++round) {
      const Outcome outcome = run(2, "exit_pending", {mode, kNoTcp});
      expect_ok(outcome);
      EXPECT_EQ(outcome.err.find(kFinalizedTooEarly), std::string::npos) << outcome.err;
    }
}

TEST_P(MpiBackend, TwoMpisInOneProcessAreRefused) {
  const std::string setting = std::string("TUTTI_MPI=") + other().name;
  expect_records(launch(mpi(), 2, "multiple/nothing", {setting}, mpi().own_rank), "kUnsupported",
                 {std::string("mpi=") + other().name, "both cannot be in one"});
}

}  // namespace
}  // namespace tutti::mpi_test
