// Becoming a world: what init_process_group refuses, and that several worlds live side by side.
#include "tutti/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "ranks.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test_kit::As;
using test_kit::collect_ranks;
using test_kit::Outcome;
using test_kit::Rank;

/// The process without anything that a launcher or a user has set.
class Init : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "TUTTI_AGENT", "TUTTI_BACKEND", "TUTTI_RANK", "TUTTI_WORLD_SIZE", "TUTTI_TIMEOUT",
          "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}) {
      ::unsetenv(name);
    }
  }
};

Error refused_backend(const std::string& name) {
  return thrown_by([&] { init_process_group({.backend = name}); });
}

void expect_all(const std::vector<Outcome>& outcomes, ErrorCode code, const std::string& part) {
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value()) << "rank " << outcome.rank << ": " << outcome.failure;
    EXPECT_EQ(outcome.error->code(), code) << outcome.failure;
    expect_text(*outcome.error, part);
  }
}

TEST_F(Init, ABackendThatIsNotHereIsNoAdvice) {
  expect_text(refused_backend("ncccl"),
              "there is no backend \"ncccl\" (\"nccl\" is one, which is not built in)");
  expect_text(refused_backend("cpu:native,xla:nccl"), "\"xla:nccl\" is not understood");
  expect_text(refused_backend("cpu:native,cpu:gloo"), "\"cpu:gloo\" is not understood");
  expect_text(refused_backend("cpu:nccl,cuda:nccl"), "nccl takes device memory only");
  expect_text(refused_backend("cpu:native,cuda:gloo"), "gloo takes the memory of the host only");
}

TEST_F(Init, ATimeoutInWhichNobodyCanMeetIsSaidInSeconds) {
  expect_text(thrown_by([&] { init_process_group({.timeout = -1s}); }), "the timeout is -1 s");
  expect_text(thrown_by([&] { init_process_group({.timeout = 0s}); }), "the timeout is 0 s");
  expect_text(thrown_by([&] {
                init_process_group({.settings = {{"timeout", "0ms"}}});
              }),
              "the timeout is 0 s");
}

TEST_F(Init, APlaceWithoutANumberIsNoWorldOfOne) {
  for (const char* const place : {"tcp://127.0.0.1:29500", "file:///tmp/meeting"}) {
    const Error error = thrown_by([&] { init_process_group({.init_method = place}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "nothing says which of them this is");
  }
  init_process_group({.init_method = "tcp://127.0.0.1:29500", .rank = 0, .world_size = 1}).close();
  ::setenv("SLURM_PROCID", "0", 1);
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);  // a step of one task, whose script names a place
  init_process_group({.init_method = "tcp://127.0.0.1:29500"}).close();
}

TEST_F(Init, InfoSaysWhichWorldWasMade) {
  testing::internal::CaptureStderr();
  { init_process_group({.settings = {{"log", "info"}}}).close(); }
  set_log_level(LogLevel::warn);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("this is rank 0 of 1 (nothing is set); backend native "), std::string::npos)
      << said;
  EXPECT_NE(said.find("; met at this process; tutti 0.1.0 (commit "), std::string::npos) << said;
}

TEST_F(Init, NothingSetIsAWorldOfOneSaidInOneLine) {
  testing::internal::CaptureStderr();
  {
    ProcessGroup world = init_process_group();
    EXPECT_EQ(world.rank(), 0);
    EXPECT_EQ(world.world_size(), 1);
    EXPECT_EQ(world.name(), "world");
    EXPECT_EQ(world.backend().name, "native");
    EXPECT_EQ(world.all_reduce_value(3), 3);
    int x = 5;
    Work work = world.broadcast(x, async);
    work.wait();
    world.barrier();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("a world of one rank"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(Init, BackendsThatAreNotBuiltListThoseThatAre) {
  for (const char* absent : {"gloo", "mpi", "nccl"}) {
    const Error error = thrown_by([&] { (void)init_process_group({.backend = absent}); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    expect_text(error, std::string("\"") + absent + "\" is not built in; this build has: native");
  }
  const Error typo = thrown_by([] { (void)init_process_group({.backend = "natvie"}); });
  EXPECT_EQ(typo.code(), ErrorCode::kInvalidArgument);
  expect_text(typo, "did you mean \"native\"? If not, this build has: native");
  EXPECT_EQ(typo.context().op, "init_process_group");
  EXPECT_NE(typo.context().call_site.find("init_test.cc:"), std::string::npos);
}

TEST_F(Init, BadIdentitiesAreRefusedNamingTheValue) {
  const auto refused = [](InitOptions options, const std::string& part) {
    options.timeout = 5s;
    const Error error = thrown_by([&] { (void)init_process_group(options); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    expect_text(error, part);
  };
  refused({.rank = 4, .world_size = 4}, "4");
  refused({.rank = -7, .world_size = 4}, "-7");
  refused({.rank = 0, .world_size = 0}, "0");
  refused({.rank = 0, .world_size = -3}, "-3");
  refused({.rank = 0}, "world_size");
  refused({.rank = 0, .world_size = 4097}, "world_size 4097 is out of range: from 1 to 4096");
  refused({.settings = {{"rank", "0"}, {"world_size", "4294967298"}}}, "world_size 4294967298");
  refused({.store = make_memory_store()}, "give rank and world_size");
  refused({.rank = 0, .world_size = 2, .settings = {{"rank", "1"}}}, "rank is given twice");
  refused({.backend = "native", .settings = {{"backend", "gloo"}}}, "backend is given twice");
  refused({.settings = {{"timeuot", "5s"}}}, "timeout");
  refused({.settings = {{"stall_timeout", "soon"}}}, "soon");
  const Error negative = thrown_by([] { (void)init_process_group({.timeout = -1s}); });
  expect_text(negative, "the timeout is -1 s");
}

TEST_F(Init, MinusOneAmongTheSettingsIsTheLaunchersNumber) {
  ProcessGroup world = init_process_group({.settings = {{"rank", "-1"}, {"world_size", "-1"}}});
  EXPECT_EQ(world.world_size(), 1);
}

TEST_F(Init, UnequalWorldSizesAreRefusedOnEveryRank) {
  expect_all(collect_ranks(2,
                           [](const Rank& me) {
                             InitOptions options = me.init;
                             options.world_size = 2 + me.rank;
                             options.timeout = 20s;
                             ProcessGroup world = init_process_group(options);
                             return std::string();
                           }),
             ErrorCode::kInvalidArgument, "3");
}

TEST_F(Init, SettingsThatMustAgreeAreComparedByName) {
  expect_all(collect_ranks(3,
                           [](const Rank& me) {
                             InitOptions options = me.init;
                             if (me.rank == 2) options.settings["stall_timeout"] = "7s";
                             ProcessGroup world = init_process_group(options);
                             return std::string();
                           }),
             ErrorCode::kInvalidArgument, "stall_timeout=7s on rank 2");
}

TEST_F(Init, WhoHasOtherSettingsThanMostIsTheCulpritOnAll) {
  const std::vector<Outcome> outcomes = collect_ranks(4, [](const Rank& me) {
    InitOptions options = me.init;
    options.settings["deadlock_after"] = me.rank == 0 ? "5s" : "2s";
    ProcessGroup world = init_process_group(options);
    return std::string();
  });
  expect_all(outcomes, ErrorCode::kInvalidArgument,
             "deadlock_after=2s on rank 1, deadlock_after=5s on rank 0");
  for (const Outcome& outcome : outcomes)
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{0}) << outcome.rank;
}

TEST_F(Init, WhoIsMissingIsNamed) {
  const auto outcomes = collect_ranks(3, [](const Rank& me) {
    if (me.rank == 1) return std::string("never came");
    InitOptions options = me.init;
    if (me.rank == 0) me.init.store->get("world//1/rank/2", 20s);  // it has come
    options.timeout = me.rank == 0 ? 300ms : 20s;
    ProcessGroup world = init_process_group(options);
    return std::string();
  });
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kTimeout) << outcome.failure;
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{1}) << outcome.failure;
  }
}

TEST_F(Init, ARankThatIsPresentAlreadyIsRefused) {
  const auto outcomes = collect_ranks(2, [](const Rank& me) {
    InitOptions options = me.init;
    if (me.rank == 1) {  // claims to be rank 0 as well, and then comes as itself
      me.init.store->get("world//1/rank/0", 20s);
      options.rank = 0;
      EXPECT_EQ(thrown_by([&] { init_process_group(options); }).code(),
                ErrorCode::kInvalidArgument);
      options.rank = 1;
    }
    init_process_group(options).close();
    return std::string();
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

TEST_F(Init, SeveralWorldsLiveSideBySide) {
  for (const As as : {As::threads, As::processes}) {
    if (as == As::processes && kNoForks) continue;
    on_ranks(2, [](ProcessGroup& world) { EXPECT_EQ(world.all_reduce_value(1), 2); }, {.as = as});
    const auto outcomes = collect_ranks(2,
                                        [](const Rank& me) {
                                          ProcessGroup one = init_process_group(me.init);
                                          InitOptions named = me.init;
                                          named.name = "second";
                                          ProcessGroup two = init_process_group(named);
                                          ProcessGroup three = init_process_group(me.init);
                                          if (two.name() != "second")
                                            throw std::runtime_error(two.name());
                                          int x = 1, y = 10;
                                          Work first = one.all_reduce(x, async);
                                          Work second = two.all_reduce(y, async);
                                          const int z = three.all_reduce_value(100);
                                          second.wait();
                                          first.wait();
                                          one.close();
                                          const int after = two.all_reduce_value(1000);
                                          return std::to_string(x + y + z + after);
                                        },
                                        {.as = as});
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.failure, "");
      EXPECT_EQ(outcome.result, "2222");
    }
  }
}

TEST_F(Init, AWorldCanBeMadeAgainAfterOneHasFailed) {
  on_ranks(2, [](ProcessGroup& world) { EXPECT_EQ(world.all_reduce_value(1), 2); });
  const auto outcomes = collect_ranks(2, [](const Rank& me) {
    {
      ProcessGroup world = init_process_group(me.init);
      if (me.rank == 0) world.abort("once");
      try {
        world.barrier();
      } catch (const Error&) {
      }
    }
    ProcessGroup again = init_process_group(me.init);
    return std::to_string(again.all_reduce_value(1));
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.result, "2") << outcome.failure;
}

}  // namespace
}  // namespace tutti
