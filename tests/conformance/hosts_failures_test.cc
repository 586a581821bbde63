// What goes wrong between ranks of several hosts is told as it is on one: who is lost, late, or has
// called something else; groups of some of them; messages.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "open_descriptors.h"
#include "ranks.h"

namespace tutti::conformance {
namespace {

using namespace std::chrono_literals;
using test_kit::As;
using test_kit::Outcome;
using test_kit::Rank;

using Layout = std::vector<int>;
const std::vector<Layout> kLayouts = {
    {0, 1}, {0, 0, 1, 1}, {0, 1, 1}, {0, 1, 0, 1}, {0, 0, 1, 2, 2}};

int count_of(const Layout& hosts) { return static_cast<int>(hosts.size()); }

std::string expected_among(const std::vector<int>& culprits) {
  std::string text;
  for (const int culprit : culprits) text += std::to_string(culprit) + " ";
  return text;
}

/// What the ranks were told: the code and the culprits.
std::string told(const Error& error) {
  return std::string(name_of(error.code())) + " " + expected_among(error.context().culprits);
}

/// Runs `function` on ranks that are threads, whose world fails there.
void in_a_world_that_fails(const Layout& hosts,
                           const std::function<void(ProcessGroup&)>& function) {
  for (const Outcome& outcome : test_kit::collect_ranks(count_of(hosts),
                                                        [&](const Rank& me) {
                                                          ProcessGroup world =
                                                              init_process_group(me.init);
                                                          function(world);
                                                          return std::string();
                                                        },
                                                        {.deadline = 30s, .hosts = hosts}))
    EXPECT_EQ(outcome.failure, "") << outcome.rank;
}

/// Made before main, so it ends after all that exit handlers do.
std::optional<ProcessGroup> global_world;

TEST(HostsFailures, AGlobalWorldLeavesInOrderAtExit) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const bool closes : {false, true}) {
    const std::vector<Outcome> outcomes =
        test_kit::collect_ranks(3,
                                [&](const Rank& me) -> std::string {
                                  global_world = init_process_group(me.init);
                                  std::vector<float> data(5000, 1.0F);
                                  global_world->all_reduce(data);
                                  if (closes) global_world->close();
                                  std::exit(0);
                                },
                                {.as = As::processes, .deadline = 30s, .hosts = {0, 1, 1}});
    for (const Outcome& outcome : outcomes)
      EXPECT_EQ(outcome.wait_status, 0) << outcome.rank << ": " << outcome.failure;
  }
}

/// Its copies of the groups and works wait for nothing, whatever their threads were at.
TEST(HostsFailures, AForkedChildThatTouchesNoGroupEnds) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  if (kKeepsFreed) GTEST_SKIP() << "a child waits for locks of ASan's allocator for ever";
  const auto function = [](const Rank& me) {
    int hung = 0;
    auto world = std::make_unique<ProcessGroup>(init_process_group(me.init));
    for (int round = 0; round < 40; ++round) {
      std::vector<float> data(1000, 1.0f), from(1);
      auto work = std::make_unique<Work>(world->all_reduce(data, async));
      const pid_t child = world->rank() == 1 ? ::fork() : -1;
      if (child == 0) {
        work.reset();
        world.reset();
        ::_exit(0);
      }
      work->wait();
      if (child > 0) {
        int status = -1;
        pid_t ended = 0;
        for (int i = 0; i < 1500 && ended == 0; ++i) {
          ended = ::waitpid(child, &status, WNOHANG);
          if (ended == 0) std::this_thread::sleep_for(10ms);
        }
        if (ended == 0) {
          ++hung;
          ::kill(child, SIGKILL);
          ::waitpid(child, &status, 0);
        }
      }
      world->barrier();
    }
    return std::to_string(hung);
  };
  for (const Layout& hosts : {Layout{0, 1}, Layout{0, 0}}) {
    for (const Outcome& outcome : test_kit::collect_ranks(
             2, function, {.as = As::processes, .deadline = 250s, .hosts = hosts})) {
      EXPECT_EQ(outcome.failure, "") << outcome.rank;
      EXPECT_EQ(outcome.result, "0") << outcome.rank;
    }
  }
}

TEST(HostsFailures, ARankThatIsKilledIsNamedByAll) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const Layout& hosts : kLayouts) {
    for (const int victim : {0, count_of(hosts) - 1}) {
      SCOPED_TRACE(std::to_string(hosts.size()) + " ranks, victim " + std::to_string(victim));
      const std::vector<Outcome> outcomes =
          test_kit::collect_ranks(count_of(hosts),
                                  [&](const Rank& me) -> std::string {
                                    ProcessGroup world = init_process_group(me.init);
                                    std::vector<float> data(5000, 1.0F);
                                    try {
                                      for (int i = 0;; ++i) {
                                        world.all_reduce(data);
                                        if (me.rank == victim && i == 20)
                                          ::kill(::getpid(), SIGKILL);
                                      }
                                    } catch (const Error& error) {
                                      return told(error);
                                    }
                                  },
                                  {.as = As::processes, .deadline = 30s, .hosts = hosts});
      for (const Outcome& outcome : outcomes) {
        if (outcome.rank == victim) continue;
        EXPECT_EQ(outcome.failure, "") << outcome.rank;
        EXPECT_EQ(outcome.result, "kPeerLost " + std::to_string(victim) + " ") << outcome.rank;
      }
    }
  }
}

TEST(HostsFailures, WhoHasClosedAGroupHearsOfNoLossInIt) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  const std::vector<Outcome> outcomes =
      test_kit::collect_ranks(2,
                              [&](const Rank& me) -> std::string {
                                ProcessGroup world = init_process_group(me.init);
                                ProcessGroup closed = world.new_group({0, 1});
                                float x = 1;
                                closed.all_reduce(x);
                                closed.close();
                                if (me.rank == 1) {
                                  world.recv(x, 0);  // rank 0 has closed it, too
                                  ::kill(::getpid(), SIGKILL);
                                }
                                const Error error = thrown_by([&] {
                                  world.send(x, 1);
                                  world.recv(x, 1);
                                });
                                std::this_thread::sleep_for(100ms);
                                if (closed.error()) return closed.error()->what();
                                return told(error);
                              },
                              {.as = As::processes, .deadline = 30s, .hosts = Layout{0, 1}});
  EXPECT_EQ(outcomes[0].failure, "");
  EXPECT_EQ(outcomes[0].result, "kPeerLost 1 ");
}

TEST(HostsFailures, WhoComesLateIsNamed) {
  for (const Layout& hosts : kLayouts) {
    const int late = count_of(hosts) - 1;
    in_a_world_that_fails(hosts, [&](ProcessGroup& world) {
      float x = 1;
      world.all_reduce(x);
      if (world.rank() == late) {
        while (!world.error()) ::usleep(1000);
        EXPECT_EQ(told(*world.error()), "kTimeout " + std::to_string(late) + " ");
        return;
      }
      const Error error =
          thrown_by([&] { world.all_reduce(x, {.timeout = std::chrono::seconds(2)}); });
      EXPECT_EQ(told(error), "kTimeout " + std::to_string(late) + " ") << error.what();
    });
  }
}

TEST(HostsFailures, WhoCallsSomethingElseIsNamedAndNothingIsAdded) {
  for (const Layout& hosts : kLayouts) {
    const int other = count_of(hosts) - 1;
    in_a_world_that_fails(hosts, [&](ProcessGroup& world) {
      std::vector<float> data(world.rank() == other ? 7 : 1000, 1.0F);
      const Error error = thrown_by([&] {
        world.barrier();  // behind it nobody is still in init, which such a failure ends, too
        world.all_reduce(data);
        world.barrier();
      });
      EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
    });
  }
}

/// Found out by the rank itself: the others would blame it, or it them, for not coming.
TEST(HostsFailures, WhoMayOpenNoMoreFilesSaysSo) {
  if (kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  if (kKeepsFreed) GTEST_SKIP() << "UBSan opens a pipe where it looks at a vptr";
  int is_limited[2];  // a byte comes then: the other rank would have connected before
  ASSERT_EQ(::pipe(is_limited), 0);
  const auto run = [&](const test_kit::Rank& me) -> std::string {
    char byte = 0;
    const Error error = thrown_by([&] {  // which may also end an init that takes so long
      ProcessGroup world = init_process_group(me.init);
      if (me.rank == 0) {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_NOFILE, &none);
        EXPECT_EQ(::write(is_limited[1], &byte, 1), 1);
      } else {
        EXPECT_EQ(::read(is_limited[0], &byte, 1), 1);
      }
      std::vector<float> data(1000, 1.0F);
      world.all_reduce(data);
    });
    expect_text(error, ": rank 0: the connection to rank ");
    expect_text(error, "Too many open files (errno 24); this process may open no more files");
    return told(error);
  };
  for (const Outcome& outcome :
       test_kit::collect_ranks(2, run, {.as = As::processes, .deadline = 30s, .hosts = {0, 1}})) {
    EXPECT_EQ(outcome.failure, "") << outcome.rank;
    EXPECT_EQ(outcome.result, "kSystem 0 ") << outcome.rank;
  }
  for (const int end : is_limited) ::close(end);
}

TEST(HostsFailures, AnAbortIsToldToAll) {
  for (const Layout& hosts : kLayouts) {
    in_a_world_that_fails(hosts, [&](ProcessGroup& world) {
      float x = 1;
      if (world.rank() == 1) {
        world.all_reduce(x);
        world.abort("enough");
        return;
      }
      const Error error = thrown_by([&] {  // it may still be in the first one
        world.all_reduce(x);
        world.all_reduce(x);
      });
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos);
    });
  }
}

TEST(HostsFailures, GroupsOfSomeOfThemWorkOnAfterAnotherFails) {
  on_ranks(4,
           [](ProcessGroup& world) {
             ProcessGroup across = world.new_group({0, 2, 3});
             ProcessGroup here = world.new_group({0, 1});
             if (across.is_member()) {
               int sum = 1;
               across.all_reduce(sum);
               EXPECT_EQ(sum, 3);
             }
             if (here.is_member()) {
               int sum = 1;
               here.all_reduce(sum);
               EXPECT_EQ(sum, 2);
             }
             world.barrier();  // nobody is in it any more
             if (across.is_member()) {
               if (across.rank() == 2) across.abort("only this one");
               while (!across.error()) ::usleep(1000);
             }
             std::vector<double> all(1000, 1.0);
             world.all_reduce(all);
             EXPECT_EQ(all[999], 4.0);
             if (here.is_member()) here.close();
           },
           {.deadline = 60s, .hosts = {0, 0, 1, 1}});
}

TEST(HostsFailures, MessagesOfAllSizesCrossHosts) {
  for (const Layout& hosts : kLayouts) {
    on_ranks(count_of(hosts),
             [](ProcessGroup& world) {
               const int n = world.world_size(), rank = world.rank();
               for (const std::size_t count : {0, 1, 1000, 5000, 3'000'000}) {
                 std::vector<int> out(count), in(count);
                 std::iota(out.begin(), out.end(), rank);
                 Work sent = world.send(out, (rank + 1) % n, async);
                 world.recv(in, (rank + n - 1) % n);
                 sent.wait();
                 const int from = (rank + n - 1) % n;
                 for (std::size_t i = 0; i < count; ++i)
                   ASSERT_EQ(in[i], from + static_cast<int>(i)) << count;
               }
             },
             {.deadline = 60s, .hosts = hosts});
  }
}

TEST(HostsFailures, WhoReceivesFromAnyIsToldThatNobodyIsLeft) {
  for (const Layout& hosts : {Layout{0, 1}, Layout{0, 1, 1}, Layout{0, 0, 1, 2, 2}}) {
    in_a_world_that_fails(hosts, [&](ProcessGroup& world) {
      if (world.rank() != 0) return;
      float x = 0;
      const auto began = std::chrono::steady_clock::now();
      const Error error = thrown_by([&] { world.recv(x, kAnyRank, {.timeout = 20s}); });
      EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
      EXPECT_LT(std::chrono::steady_clock::now() - began, 10s) << "not for want of a connection";
    });
  }
}

/// A receive that takes longer than a few milliseconds asks for its connection: here as its group
/// fails.
TEST(HostsFailures, GroupsThatFailAsTheyConnectLeaveNoDescriptors) {
  constexpr int kGroups = 60;
  std::vector<int> counts;
  on_ranks(2,
           [&](ProcessGroup& world) {
             for (int i = 0; i < kGroups; ++i) {
               {
                 std::vector<int> data(10);
                 if (world.rank() == 1) {
                   ProcessGroup pair = world.new_group({0, 1});
                   std::this_thread::sleep_for(std::chrono::microseconds(4000 + i * 50));
                   pair.abort("enough");
                 } else {
                   const Error error = thrown_by([&] {
                     ProcessGroup pair = world.new_group({0, 1});  // it may be told in this
                     pair.recv(data, 1);
                   });
                   EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
                 }
               }
               world.barrier();
               if (world.rank() == 0 && (i == 0 || i == kGroups - 1)) {
                 std::this_thread::sleep_for(200ms);  // calls that were given up are over
                 for (int look = 0;
                      look < 2000 && !counts.empty() && open_descriptors() > counts.front() + 4;
                      ++look) {
                   std::this_thread::sleep_for(10ms);
                 }
                 counts.push_back(open_descriptors());
               }
               world.barrier();
             }
           },
           {.deadline = 60s, .hosts = {0, 1}});
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_LE(counts[1], counts[0] + 4);
}

}  // namespace
}  // namespace tutti::conformance
