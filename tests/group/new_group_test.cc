// Making a group when a member dies, leaves, fails or asks for something else meanwhile: it ends on
// every member, soon, and says why.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "tutti/objects.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test_kit::As;
using test_kit::Outcome;
using test_kit::Rank;

/// What each rank's `call` on a fresh world threw, by rank. The world is left as it is.
template <class Call>
std::vector<Outcome> outcomes_of(int world_size, Call call, const test_kit::RunOptions& options) {
  return test_kit::collect_ranks(
      world_size,
      [&](const Rank& me) -> std::string {
        ProcessGroup world = init_process_group(me.init);
        world.barrier();
        call(world);
        return "returned";
      },
      options);
}

/// Returns once the board shows that `rank` makes a group; at the latest after about 20 s.
void await_meeting(ProcessGroup& world, int rank) {
  for (int tries = 0; tries < 4000; ++tries) {
    float x = 0;
    const Error error = thrown_by([&] { world.recv(x, rank, {.tag = 99, .timeout = 5ms}); });
    if (error.code() != ErrorCode::kTimeout) throw error;
    if (std::string(error.what()).find("is in new_group(") != std::string::npos) return;
  }
  ADD_FAILURE() << "rank " << rank << " has not asked for a group";
}

TEST(NewGroup, RanksThatAskForOthersAreTold) {
  std::atomic<int> told{0};
  const auto outcomes = outcomes_of(
      3,
      [&](ProcessGroup& world) {
        if (world.rank() == 1) {
          (void)world.new_group({0, 2});  // no member: it goes on, and leaves once all are told
          while (told.load() < 2) std::this_thread::sleep_for(1ms);
          return;
        }
        try {
          (void)world.new_group(world.rank() == 2 ? std::vector{0, 1, 2} : std::vector{0, 2});
        } catch (const Error&) {
          ++told;
          throw;
        }
      },
      {});
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.error) << outcome.failure << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().culprits, (std::vector<int>{0, 2})) << "either may be wrong";
    expect_text(*outcome.error, "is in new_group({0, 2}) at new_group_test.cc:");
    expect_text(*outcome.error, "is in new_group({0, 1, 2}) at new_group_test.cc:");
    expect_text(*outcome.error,
                rank == 0 ? "new_group({0, 2}) (rank 0)" : "new_group({0, 1, 2}) (rank 2)");
  }
}

/// Which ranks each rank asks for, and who is named for it by all; none: whoever it is.
struct Asked {
  std::vector<std::vector<int>> by_rank;
  std::vector<int> culprits;
};

std::vector<Outcome> told_of(const Asked& asked, const std::vector<int>& hosts) {
  test_kit::RunOptions options;
  options.hosts = hosts;
  options.init.timeout = 15s;
  options.deadline = 100s;
  return outcomes_of(
      static_cast<int>(asked.by_rank.size()),
      [&](ProcessGroup& world) {
        try {
          (void)world.new_group(asked.by_rank[static_cast<std::size_t>(world.rank())]);
        } catch (const Error&) {
          world.barrier({.timeout = 60s});  // nobody leaves before all are told
          world.close(60s);                 // nor gives up while others are in that
          throw;
        }
      },
      options);
}

bool is_late(const Outcome& outcome) {
  return outcome.error && outcome.error->code() == ErrorCode::kTimeout;
}

/// Who comes half a second after the others finds them told, and is not one of those who are.
bool is_told_in_time(const std::vector<Outcome>& outcomes, const std::vector<int>& culprits) {
  return std::all_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
    return outcome.error && outcome.error->code() == ErrorCode::kCollectiveMismatch &&
           (culprits.empty() || outcome.error->context().culprits == culprits);
  });
}

constexpr int kTries = 4;  // on a slow machine

void ask(const Asked& asked, const std::vector<int>& hosts = {}) {
  std::vector<Outcome> outcomes;
  for (int tries = 0; tries < kTries && !(tries == 0 || !is_told_in_time(outcomes, asked.culprits));
       ++tries)
    outcomes = told_of(asked, hosts);
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error) << outcome.failure << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().culprits,
              asked.culprits.empty() ? outcomes[0].error->context().culprits : asked.culprits)
        << outcome.error->what();
  }
}

void one_asks_for_another(const std::vector<int>& hosts) {
  const std::vector<int> usual = {0, 1, 2, 3};
  ask({{usual, usual, {3, 2, 1, 0}, usual}, {2}}, hosts);
}

TEST(NewGroup, TheOneThatAsksForAnotherIsNamedByAll) { one_asks_for_another({}); }
TEST(NewGroup, TheOneThatAsksForAnotherIsNamedByAllHosts) { one_asks_for_another({0, 1, 0, 1}); }

TEST(NewGroup, AllWhoDoNotAskForTheSameAsMostAreNamed) {
  const std::vector<int> usual = {0, 1, 2, 3, 4};
  ask({{usual, usual, usual, {1, 0, 2, 3, 4}, {0, 2, 1, 3, 4}}, {3, 4}});
  ask({{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}}, {0, 1, 2}});
}

// Of the others rank 3 sees rank 0 alone, and who of them it would name depends on who finds it.
TEST(NewGroup, AMemberOfTheLargerGroupTellsWhoIsWrong) {
  const std::vector<int> usual = {0, 1, 2, 3};
  for (const std::vector<int>& hosts : {std::vector<int>{}, {0, 1, 0, 1}})
    ask({{usual, usual, usual, {3, 0}}, {3}}, hosts);
}

Asked all_differently(int world_size) {
  Asked asked;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int>& ranks = asked.by_rank.emplace_back();
    for (int i = 0; i < world_size; ++i) ranks.push_back((rank + i) % world_size);
  }
  return asked;
}

std::vector<int> two_hosts(int world_size) {
  std::vector<int> hosts;
  for (int rank = 0; rank < world_size; ++rank) hosts.push_back(2 * rank / world_size);
  return hosts;
}

// More groups than one entry of the log names.
TEST(NewGroup, AllAreToldWhereAllAskForOthers) { ask(all_differently(18)); }
TEST(NewGroup, AllHostsAreToldWhereAllAskForOthers) { ask(all_differently(18), two_hosts(18)); }

/// Several find it, each with those who have asked by then.
TEST(NewGroup, EachOfManyIsToldWhereAllAskForOthers) {
  if (kNoForks) GTEST_SKIP() << "TSan takes half a minute for so many beside other tests";
  std::vector<Outcome> outcomes;
  for (int tries = 0; tries < kTries && (tries == 0 || !is_told_in_time(outcomes, {})); ++tries)
    outcomes = told_of(all_differently(40), two_hosts(40));
  for (int rank = 0; rank < 40; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.error) << rank << outcome.failure << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.error->what();
    const std::vector<int>& culprits = outcome.error->context().culprits;
    EXPECT_NE(std::find(culprits.begin(), culprits.end(), rank), culprits.end())
        << rank << ": " << outcome.error->what();
  }
}

/// Rank 2 asks for all ranks while the rest ask for `others`: then all ask for the same ones.
void ask_again(const std::vector<int>& others, const std::vector<int>& hosts = {}) {
  test_kit::RunOptions options;
  options.hosts = hosts;
  options.init.settings = {{"deadlock", "off"}};  // two that wait for a third who is slow
  const std::vector<int> all = {0, 1, 2};
  const auto outcomes = test_kit::collect_ranks(
      3,
      [&](const Rank& me) -> std::string {
        ProcessGroup world = init_process_group(me.init);
        std::string said;
        try {
          (void)world.new_group(me.rank == 2 ? all : others);
        } catch (const Error& error) {
          said = name_of(error.code());
        }
        world.barrier();
        for (const std::vector<int>& ranks : {all, others, all}) {
          ProcessGroup made = world.new_group(ranks);
          if (made.is_member()) said += fmt::format(" {}", made.all_reduce_value(1));
        }
        return said;
      },
      options);
  for (int rank = 0; rank < 3; ++rank) {
    const bool is_member = std::find(others.begin(), others.end(), rank) != others.end();
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].result,
              is_member ? fmt::format("kCollectiveMismatch 3 {} 3", others.size()) : " 3 3")
        << outcomes[static_cast<std::size_t>(rank)].failure;
  }
}

TEST(NewGroup, OneThatWasDisputedMayBeAskedForAgain) {
  ask_again({2, 1, 0});
  ask_again({0, 2});  // rank 1 is no member of that
}
TEST(NewGroup, OneThatHostsDisputedMayBeAskedForAgain) {
  ask_again({2, 1, 0}, {0, 1, 0});
  ask_again({0, 2}, {0, 1, 1});
}

// Rank 0 stops before the time of its meeting is over; meanwhile it is, and the world fails.
TEST(NewGroup, AFailureMeanwhileIsNeitherItsReasonNorTold) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  test_kit::RunOptions options;
  options.as = As::processes;
  options.init.timeout = 5s;
  const auto outcomes = outcomes_of(
      3,
      [](ProcessGroup& world) {
        const auto pids = all_gather_object(world, static_cast<int>(getpid()));
        if (world.rank() == 2) {
          EXPECT_EQ(thrown_by([&] { world.barrier({.timeout = 20s}); }).code(),
                    ErrorCode::kAborted);
        } else {
          if (world.rank() == 1) {
            await_meeting(world, 0);
            kill(pids[0], SIGSTOP);
          }
          const Error late = thrown_by([&] { (void)world.new_group({0, 1, 2}); });
          EXPECT_EQ(late.code(), ErrorCode::kTimeout) << late.what();
          EXPECT_EQ(late.context().culprits, std::vector<int>{2}) << late.what();
          if (world.rank() == 1) {
            world.abort("enough");
            kill(pids[0], SIGCONT);
          } else {
            const Error error = thrown_by([&] { (void)world.new_group({0, 1}); });
            EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
            EXPECT_EQ(error.context().culprits, std::vector<int>{1}) << error.what();
          }
        }
        throw Error(ErrorCode::kAborted, "as it should be");  // the world has failed in any case
      },
      options);
  for (const Outcome& outcome : outcomes)
    EXPECT_NE(outcome.failure.find("as it should be"), std::string::npos) << outcome.failure;
}

TEST(NewGroup, OfASecondThreadIsRefusedByItsName) {
  std::atomic<bool> is_inside{false};
  on_ranks(2, [&](ProcessGroup& world) {
    float x = 0;
    if (world.rank() == 1) {
      await_meeting(world, 0);  // no call of rank 0 can see that it is inside
      is_inside.store(true);
      world.recv(x, 0, {.timeout = 20s});
      return world.new_group({0, 1}).close();
    }
    std::thread first([&] { world.new_group({0, 1}).close(); });
    while (!is_inside.load()) std::this_thread::sleep_for(1ms);
    const Error error = thrown_by([&] { (void)world.new_group({1, 0}, {"role.cc", 7}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    expect_text(error, "new_group({1, 0}) (rank 0) at role.cc:7: another thread is in a call on ");
    world.send(x, 1, {.timeout = 20s});
    first.join();
  });
}

void within(std::chrono::milliseconds timeout, const std::string& deadlock_after) {
  test_kit::RunOptions options;
  options.init.timeout = timeout;
  options.init.settings = {{"deadlock_after", deadlock_after}};
  std::vector<Outcome> outcomes;
  for (int tries = 0;
       tries == 0 || (tries < kTries && std::any_of(outcomes.begin(), outcomes.end(), is_late));
       ++tries) {
    std::atomic<int> told{0};
    outcomes = outcomes_of(
        3,
        [&](ProcessGroup& world) {
          if (world.rank() == 2) {  // asks for nothing, and leaves once the others are told
            for (int i = 0; i < 2000 && told.load() < 2; ++i) std::this_thread::sleep_for(10ms);
            return;
          }
          try {
            (void)world.new_group(world.rank() == 0 ? std::vector{0, 1, 2} : std::vector{2, 1, 0});
          } catch (const Error&) {
            ++told;
            throw;
          }
        },
        options);
  }
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.error) << outcome.failure << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().culprits, (std::vector<int>{0, 1}));
  }
}

TEST(NewGroup, AskingForOthersIsNotTakenForBeingLate) { within(300ms, "1s"); }
TEST(NewGroup, AskingForOthersIsNotTakenForADeadlock) { within(20s, "50ms"); }

void ask_for_another_order(const std::vector<int>& hosts) {
  test_kit::RunOptions options;
  options.hosts = hosts;
  const auto outcomes = outcomes_of(
      2,
      [](ProcessGroup& world) {
        const std::vector<int> ranks = {world.rank(), 1 - world.rank()};
        (void)world.new_group(ranks, {"role.cc", 5 + world.rank()});
      },
      options);
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.error) << outcome.failure << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.error->what();
    expect_text(*outcome.error, rank == 0 ? "new_group({0, 1}) (rank 0) at role.cc:5: "
                                          : "new_group({1, 0}) (rank 1) at role.cc:6: ");
    expect_text(*outcome.error, ") is in new_group({0, 1}) at role.cc:5");
    expect_text(*outcome.error, ") is in new_group({1, 0}) at role.cc:6");
    expect_text(*outcome.error,
                ", and each awaits the other. All ranks must make the same groups, of the same "
                "ranks in the same order");
  }
}

TEST(NewGroup, AnotherOrderIsAnotherGroup) { ask_for_another_order({}); }
TEST(NewGroup, AnotherOrderIsAnotherGroupOverHostsToo) { ask_for_another_order({0, 1}); }

TEST(NewGroup, SaysWhoIsMissingAndWhatItDoes) {
  test_kit::RunOptions options;
  options.init.timeout = 5s;
  const auto outcomes = outcomes_of(
      2,
      [&](ProcessGroup& world) {
        if (world.rank() == 1) {
          float x = 0;
          world.recv(x, 0, {.tag = 5, .timeout = 20s});
          return;
        }
        const Error error = thrown_by([&] { (void)world.new_group({1, 0}); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
        EXPECT_EQ(error.context().culprits, std::vector<int>{1});
        expect_text(error, "not called after 5 s by rank 0 (world rank 1, pid ");
        expect_text(error, "is in recv(f32 x 1, from 0, tag 5) at new_group_test.cc:");
        world.send(1.0f, 1, {.tag = 5});
      },
      options);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

/// What the others have given up is no group for who comes after it.
void comes_too_late(const std::vector<int>& hosts) {
  test_kit::RunOptions options;
  options.init.timeout = 5s;
  options.hosts = hosts;
  const auto outcomes = outcomes_of(
      2,
      [](ProcessGroup& world) {
        float x = 0;
        if (world.rank() == 1) {
          world.recv(x, 0, {.timeout = 20s});
          std::this_thread::sleep_for(200ms);  // data do not wait for news
        }
        const Error error = thrown_by([&] { (void)world.new_group({0, 1}); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
        EXPECT_EQ(error.context().culprits, std::vector<int>{1});
        if (world.rank() == 0) world.send(x, 1, {.timeout = 20s});
        EXPECT_FALSE(world.error());
      },
      options);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

TEST(NewGroup, NoneIsMadeOnceTheOthersHaveGivenUp) { comes_too_late({}); }
TEST(NewGroup, NoneIsMadeOnceOtherHostsHaveGivenUp) { comes_too_late({0, 1}); }

/// A rank that is lost after it has closed a group is no loss for that one.
void is_lost_after_it_closed(const std::vector<int>& hosts) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  test_kit::RunOptions options;
  options.as = As::processes;
  options.hosts = hosts;
  const auto outcomes = outcomes_of(
      3,
      [](ProcessGroup& world) {
        ProcessGroup group = world.new_group({0, 1, 2});
        group.close();
        const Error lost = thrown_by([&] {
          world.barrier();  // all have closed it
          if (world.rank() == 2) kill(getpid(), SIGKILL);
          world.barrier();
        });
        EXPECT_EQ(lost.code(), ErrorCode::kPeerLost) << lost.what();
        const auto failure = group.error();
        EXPECT_FALSE(failure) << failure->what();
        EXPECT_EQ(thrown_by([&] { group.barrier(); }).code(), ErrorCode::kClosed);
        throw Error(ErrorCode::kAborted, "as it should be");  // the world has failed in any case
      },
      options);
  for (const int rank : {0, 1})
    EXPECT_NE(outcomes[static_cast<std::size_t>(rank)].failure.find("as it should be"),
              std::string::npos)
        << outcomes[static_cast<std::size_t>(rank)].failure;
}

TEST(NewGroup, OneThatWasClosedOutlivesItsMembers) { is_lost_after_it_closed({}); }
TEST(NewGroup, OneThatWasClosedOutlivesMembersOnOtherHosts) { is_lost_after_it_closed({0, 1, 2}); }

/// For ranks that may be slow while two others wait for them.
test_kit::RunOptions without_deadlocks() {
  test_kit::RunOptions options;
  options.init.settings = {{"deadlock", "off"}};
  return options;
}

TEST(NewGroup, EndsWithItsParent) {
  const auto outcomes = outcomes_of(
      3,
      [](ProcessGroup& world) {
        if (world.rank() == 2) {
          await_meeting(world, 0);
          world.abort("enough");
          return;
        }
        if (world.rank() == 0) (void)world.new_group({0, 1});
        if (world.rank() == 1) {
          const Error error = thrown_by([&] { world.barrier(); });
          EXPECT_EQ(error.code(), ErrorCode::kAborted);
        }
      },
      without_deadlocks());
  ASSERT_TRUE(outcomes[0].error) << outcomes[0].failure << outcomes[0].result;
  EXPECT_EQ(outcomes[0].error->code(), ErrorCode::kAborted) << outcomes[0].error->what();
  EXPECT_EQ(outcomes[0].error->context().culprits, std::vector<int>{2});
  expect_text(*outcomes[0].error, "rank 2 aborted the group: enough");
}

TEST(NewGroup, SurvivorsOfAFailedWorldCountAnew) {
  const auto outcomes =
      outcomes_of(3,
                  [](ProcessGroup& world) {
                    if (world.rank() == 2) {
                      await_meeting(world, 0);
                      world.abort("enough");
                      return;
                    }
                    if (world.rank() == 0) {  // asks before the failure: once more than rank 1
                      const Error error = thrown_by([&] { (void)world.new_group({0, 1}); });
                      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
                    }
                    while (!world.error()) std::this_thread::yield();
                    ProcessGroup survivors = world.new_group({0, 1});
                    EXPECT_EQ(survivors.all_reduce_value(1), 2);
                    survivors.close();
                  },
                  {});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
}

/// By hand: it served the store.
TEST(NewGroup, NoneIsMadeOnceRank0IsDead) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const auto outcomes = outcomes_of(3,
                                    [](ProcessGroup& world) {
                                      if (world.rank() == 0) kill(getpid(), SIGKILL);
                                      while (!world.error()) std::this_thread::yield();
                                      (void)world.new_group({1, 2});
                                    },
                                    {.as = As::processes});
  for (const int rank : {1, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.error) << outcome.failure << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kSystem) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{0}) << outcome.error->what();
    expect_text(
        *outcome.error,
        " with what was stored in it, and no group can be made without it: the process that served "
        "it (of make_tcp_store the one with is_server, of a job started by hand rank 0, else the "
        "launcher) has ended or closed it, or its host cannot be reached. See why, then start all "
        "that use it again");
  }
}

TEST(NewGroup, AMemberThatDiesEndsIt) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const auto outcomes = outcomes_of(3,
                                    [](ProcessGroup& world) {
                                      if (world.rank() == 1) kill(getpid(), SIGKILL);
                                      (void)world.new_group({2, 1, 0});
                                    },
                                    {.as = As::processes});
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_NE(outcome.failure.find("was lost"), std::string::npos) << outcome.failure;
    EXPECT_NE(outcome.failure.find("new_group({2, 1, 0})"), std::string::npos) << outcome.failure;
  }
  EXPECT_TRUE(WIFSIGNALED(outcomes[1].wait_status));
}

/// It does not mean the group that others make of those who are left.
TEST(NewGroup, NoneIsMadeBeforeTheFailureIsTold) {
  on_ranks(
      3,
      [](ProcessGroup& world) {
        ProcessGroup group = world.new_group({0, 1, 2});
        if (world.rank() == 2) return group.abort("for the others");
        if (world.rank() == 0) thrown_by([&] { group.barrier(); });
        std::this_thread::sleep_for(100ms);
        if (world.rank() == 1) {
          const Error error = thrown_by([&] { (void)group.new_group({0, 1}); });
          EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
          EXPECT_EQ(error.context().culprits, std::vector<int>{2});
          expect_text(error, "for the others");
        }
        ProcessGroup survivors = group.new_group({0, 1});
        EXPECT_EQ(survivors.all_reduce_value(1), 2);
        survivors.close();
      },
      without_deadlocks());
}

TEST(NewGroup, MembersWithoutRoomSayTheSame) {
  std::array<std::vector<int>, 2> culprits;
  on_ranks(2, [&](ProcessGroup& world) {
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 1023; ++i) groups.push_back(world.new_group({0, 1}));
    const Error error = thrown_by([&] { (void)world.new_group({0, 1}); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
    culprits[static_cast<std::size_t>(world.rank())] = error.context().culprits;
    groups.pop_back();
    groups.push_back(world.new_group({0, 1}));
  });
  EXPECT_EQ(culprits[0], culprits[1]);
  EXPECT_EQ(culprits[0].size(), 1u);
}

TEST(NewGroup, AMemberWithoutRoomEndsIt) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<ProcessGroup> groups;
    if (world.rank() == 0) {
      const Error error = thrown_by([&] {
        for (;;) groups.push_back(world.new_group({0}));
      });
      EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
    }
    world.barrier();
    const Error error = thrown_by([&] { (void)world.new_group({0, 1}); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
    EXPECT_EQ(error.context().culprits, std::vector<int>{0}) << error.what();
    expect_text(error, "is in 1024 groups already");
    if (!groups.empty()) groups.pop_back();
    ProcessGroup group = world.new_group({0, 1});
    EXPECT_EQ(group.all_reduce_value(1), 2);
    group.close();
  });
}

/// It still waits in close for those who await it.
TEST(NewGroup, AMemberThatClosesItsParentEndsIt) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup parent = world.new_group({1, 0});
    if (world.rank() == 1) return parent.close();
    const Error error = thrown_by([&] { (void)parent.new_group({0, 1}); });
    EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
    EXPECT_EQ(error.context().culprits, std::vector<int>{0});
    expect_text(error, "has closed, or could not make, the parent of this group");
    parent.close();
  });
}

/// Where the parent has failed before, it waits for nobody in close.
TEST(NewGroup, AMemberThatIsDoneWithAFailedParentEndsIt) {
  for (const bool is_closed : {true, false}) {
    on_ranks(2, [is_closed](ProcessGroup& world) {
      ProcessGroup parent = world.new_group({1, 0});
      if (world.rank() == 1) parent.abort("enough");
      (void)thrown_by([&] { parent.barrier(); });
      if (world.rank() == 1) {
        if (is_closed) (void)thrown_by([&] { parent.close(); });
        parent = {};
        return;
      }
      const Error error = thrown_by([&] { (void)parent.new_group({0, 1}); });
      EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
      EXPECT_EQ(error.context().culprits, std::vector<int>{0});
      expect_text(error, "has closed, or could not make, the parent of this group");
    });
  }
}

TEST(NewGroup, AMemberThatLeavesEndsIt) {
  const auto outcomes = outcomes_of(2,
                                    [](ProcessGroup& world) {
                                      if (world.rank() == 0) (void)world.new_group({0, 1});
                                      if (world.rank() == 1)
                                        (void)thrown_by([&] { world.close(50ms); });
                                    },
                                    {});
  ASSERT_TRUE(outcomes[0].error) << outcomes[0].failure << outcomes[0].result;
  EXPECT_EQ(outcomes[0].error->code(), ErrorCode::kClosed) << outcomes[0].error->what();
  expect_text(*outcomes[0].error, "rank 1 (pid ");
  const std::string told = outcomes[0].error->what();  // by when rank 0 looks
  EXPECT_TRUE(told.find(") has left the world") != std::string::npos ||
              told.find(") has closed, or could not make, the parent of this group") !=
                  std::string::npos)
      << told;
}

}  // namespace
}  // namespace tutti
