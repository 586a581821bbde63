// Meetings of real processes: by hand, under Open MPI's names, at an agent, in the program's store.
#include "rendezvous/meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <regex>
#include <thread>

#include "children.h"
#include "meetings.h"
#include "net/process_info.h"
#include "net/unix_socket.h"
#include "own_store.h"
#include "ranks.h"
#include "rendezvous/claim.h"
#include "rendezvous/company.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/log.h"

namespace tutti::rendezvous {
namespace {

using namespace std::chrono_literals;
using test::address_of;
using test::await_claim;
using test::await_listener;
using test::by_hand;
using test::Child;
using test::expect_has;
using test::fresh_port;
using test::meet_and_greet;

Child start(const Identity& identity, const MeetingOptions& options = {.timeout = 20s}) {
  return Child([=] { return meet_and_greet(identity, options); });
}

TEST(Meeting, ByHandInAnyOrder) {
  for (const auto& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    const int port = fresh_port();
    std::vector<Child> ranks;
    for (const int rank : order) ranks.push_back(start(by_hand(rank, 4, port)));
    for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
  }
}

TEST(Meeting, ThePlaceIsFreeOnceTheWorldIsComplete) {
  const int port = fresh_port();
  const auto body = [port](int rank) {
    return [=] {
      const Meeting meeting = meet(by_hand(rank, 2, port), {.timeout = 20s});
      if (rank == 1) {
        meeting.store->set("met", "", 20s);
        try {
          meeting.store->get("end", 20s);  // the first world still lives, with its store
        } catch (const Error&) {           // whoever serves it need not stay for the answer
        }
        return std::string("free");
      }
      meeting.store->get("met", 20s);  // one that dies before is lost to a world that is not there
      const bool is_free = net::try_listen(address_of(port)).has_value();
      meeting.store->set("end", "", 20s);
      return std::string(is_free ? "free" : "taken");
    };
  };
  Child first(body(0));
  Child second(body(1));
  EXPECT_EQ(first.result(), "free");
  EXPECT_EQ(second.result(), "free");
}

TEST(Meeting, TheSameProcessesMeetAgainAndAgainAtOnePlace) {
  const int port = fresh_port();
  std::vector<Child> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([=] {
      std::vector<Meeting> alive;
      for (int world = 0; world < 20; ++world) {
        alive.push_back(meet(by_hand(rank, 3, port), {.timeout = 20s}));
        alive.back().store->set("world", std::to_string(world));
        alive.back().store->barrier("together", 3, 20s);
        if (alive.back().store->get("world") != std::to_string(world)) return "mixed";
      }
      test::leave(alive.back(), 3);
      return "twenty worlds";
    });
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "twenty worlds");
}

TEST(Meeting, WorldsOfDifferentNamesDoNotMix) {
  const int port = fresh_port();
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(start(by_hand(rank, 2, port), {.timeout = 20s, .name = "a"}));
    ranks.push_back(start(by_hand(rank, 2, port), {.timeout = 20s, .name = "b"}));
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
}

TEST(Meeting, UnequalSizesAreShownToAllWhoCanKnow) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 3, port));
  Child one = start(by_hand(1, 3, port));
  await_claim(port, 0);
  await_claim(port, 1);
  Child two = start(by_hand(2, 4, port));
  for (Child* child : {&zero, &one, &two}) {
    const std::string text = child->result();
    expect_has(text, "kInvalidArgument");
    expect_has(text, "says 3");
    expect_has(text, "rank 2");
    expect_has(text, "says 4");
  }
}

TEST(Meeting, ASecondJobIsRefusedNamingTheFirst) {
  const int port = fresh_port();
  // Each job is started by a process of its own, like a shell script.
  Child job([=] {
    ::setpgid(0, 0);
    Child zero = start(by_hand(0, 2, port));
    await_claim(port, 0);
    Deadline deadline = Deadline::after(20s);
    const auto store = store::connect_store(address_of(port), {}, deadline).store;
    store->get("world//1/intruders", 20s);
    Child one = start(by_hand(1, 2, port));
    return zero.result() + " " + one.result() + " " + std::to_string(zero.pid());
  });
  await_claim(port, 0);
  Child second([=] {
    ::setpgid(0, 0);
    return start(by_hand(0, 2, port)).result();
  });
  const std::string refused = second.result();
  const std::string met = job.result();
  expect_has(met, "met in round 1 met in round 1");
  expect_has(refused, "kInvalidArgument: rank 0 is already present");
  const std::string pid = met.substr(met.rfind(' ') + 1);
  expect_has(refused, "pid " + pid + " (" + net::program_of(::getpid()) + ") is meeting");
}

TEST(Meeting, TwoJobsThatNothingTellsApartAreBothRefused) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 3, port));
  await_claim(port, 0);
  Child one = start(by_hand(1, 3, port));
  await_claim(port, 1);
  Child intruder = start(by_hand(0, 3, port));
  expect_has(intruder.result(), "rank 0 is already present");
  Child two = start(by_hand(2, 3, port));  // of which job?
  for (Child* child : {&zero, &one, &two}) {
    expect_has(child->result(), "kInvalidArgument: two jobs are meeting");
  }
}

TEST(Meeting, WithTheLaunchersNameOfTheJobOnlyTheSecondIsRefused) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 2, port, "job 1"));
  await_listener(port);
  Child other_zero = start(by_hand(0, 2, port, "job 2"));
  Child other_one = start(by_hand(1, 2, port, "job 2"));
  for (Child* child : {&other_zero, &other_one}) {
    const std::string text = child->result();
    expect_has(text, "kInvalidArgument");
    expect_has(text, "taken by another job");
    expect_has(text, net::describe_process(zero.pid()));
  }
  Child one = start(by_hand(1, 2, port, "job 1"));
  EXPECT_EQ(zero.result(), "met in round 1");
  EXPECT_EQ(one.result(), "met in round 1");
}

TEST(Meeting, ATimeoutNamesWhoIsMissing) {
  const int port = fresh_port();
  const MeetingOptions options{.timeout = 5s};
  Child zero = start(by_hand(0, 6, port), options);
  Child two = start(by_hand(2, 6, port), {.timeout = 20s});
  const std::string text = zero.result();
  expect_has(text, "kTimeout");
  expect_has(text, "4 of 6 ranks missing: 1, 3-5");
  expect_has(two.result(), "4 of 6 ranks missing: 1, 3-5");  // at once, not after 20 s
  Identity alone = by_hand(1, 2, fresh_port());
  const Error error = thrown_by([&] { meet(alone, {.timeout = 100ms}); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_EQ(error.context().culprits, std::vector<int>{0});
  expect_text(error, "rank 0 of 2 is missing");
  Child named = start(by_hand(0, 2, fresh_port()), {.timeout = 3s, .name = "a"});
  expect_has(named.result(), "with this WORLD_SIZE, this name (\"a\") and this meeting point?");
}

TEST(Meeting, WhoIsAwaitedIsSaidWhileWaiting) {
  static std::mutex mutex;
  static std::vector<std::string> lines;
  lines.clear();
  set_log_callback([](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  const Error error = thrown_by(
      [&] { meet(by_hand(0, 4, fresh_port()), {.timeout = 4s, .first_line_after = 100ms}); });
  set_log_callback({});
  EXPECT_EQ(error.context().culprits, (std::vector<int>{1, 2, 3}));
  const std::lock_guard lock(mutex);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_LE(lines.size(), 6u);  // 100, 200, 400, 800, 1600, 3200 ms
  EXPECT_TRUE(std::regex_search(lines[0], std::regex("waiting \\d+ s: 3 of 4 ranks missing: 1-3")))
      << lines[0];
}

TEST(Meeting, ARankThatDiesWhileOthersWaitFailsTheRoundOnAll) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 4, port));
  Child doomed = start(by_hand(1, 4, port));
  Child two = start(by_hand(2, 4, port));
  for (int rank = 0; rank < 3; ++rank) await_claim(port, rank);
  const std::string who = net::describe_process(doomed.pid());
  doomed.kill();
  for (Child* child : {&zero, &two}) {
    EXPECT_EQ(child->result(),
              "kPeerLost: init: rank 1 (" + who +
                  ") was lost before the world of 4 ranks was complete. See why it ended, then "
                  "start the job again (culprits: 1)");
  }
}

TEST(Meeting, AClaimThatWasDeadBeforeOneCameMayBeReplaced) {
  const std::string address = net::random_address("tutti-place");
  net::Fd listener(net::listen(address).release());  // not private: for the child
  const Child place([&] {  // its threads are not those of the process that forks
    const store::Server server({.listener = std::move(listener)});
    for (;;) ::pause();
    return std::string();
  });
  listener.reset();
  const auto in_store = [&](int rank) {
    return Child([=] {
      Deadline deadline = Deadline::after(20s);
      MeetingOptions options{.timeout = 20s};
      options.store = store::connect_store(address, {}, deadline).store;
      return meet_and_greet(by_hand(rank, 3, 0), options);
    });
  };
  Deadline deadline = Deadline::after(20s);
  const auto looking = store::connect_store(address, {}, deadline).store;
  const auto await = [&](int rank) { looking->get("world//1/rank/" + std::to_string(rank), 20s); };
  Child doomed = in_store(1);
  await(1);
  doomed.kill();
  Child zero = in_store(0);
  Child two = in_store(2);  // one of the two comes last, and does not count the dead
  await(0);
  await(2);
  EXPECT_EQ(looking->try_get("world//1/verdict"), std::nullopt);
  Child one = in_store(1);  // takes over
  for (Child* child : {&zero, &one, &two}) EXPECT_EQ(child->result(), "met in round 1");
}

TEST(Meeting, Rank0KilledWhileOthersWait) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 3, port));
  Child one = start(by_hand(1, 3, port));
  await_claim(port, 1);
  const std::string who = net::describe_process(zero.pid());
  zero.kill();
  EXPECT_EQ(one.result(), "kPeerLost: init: rank 0 (" + who +
                              ") was lost before the world of 3 ranks was complete. See why it "
                              "ended, then start the job again (culprits: 0)");
}

TEST(Meeting, ARankThatGivesUpTellsTheOthers) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 3, port));
  await_claim(port, 0);
  Child one = start(by_hand(1, 3, port), {.timeout = 3s});
  const std::string place = "1 of 3 ranks missing: 2 (at MASTER_PORT " + std::to_string(port) +
                            " (" + address_of(port) + "))";
  for (Child* child : {&zero, &one}) {
    const std::string text = child->result();
    expect_has(text, "kTimeout: init: " + place);
    expect_has(text, "(culprits: 2)");
  }
}

TEST(Meeting, ARankMayBeStoppedForAWhile) {
  const int port = fresh_port();
  const MeetingOptions options{.timeout = 20s, .first_line_after = 100ms};
  Child zero = start(by_hand(0, 3, port), options);
  Child one = start(by_hand(1, 3, port), options);
  await_claim(port, 1);
  ::kill(zero.pid(), SIGSTOP);
  EXPECT_EQ(one.result(2500ms), "(still running)");  // beyond every patience of the store's client
  ::kill(zero.pid(), SIGCONT);
  Child two = start(by_hand(2, 3, port), options);
  for (Child* child : {&zero, &one, &two}) EXPECT_EQ(child->result(), "met in round 1");
}

TEST(Meeting, WhoseStoreIsStoppedEndsSoonAfterItsTimeout) {
  const int port = fresh_port();
  Child zero = start(by_hand(0, 3, port));
  await_claim(port, 0);
  const auto begin = std::chrono::steady_clock::now();
  Child one = start(by_hand(1, 3, port), {.timeout = 5s});
  await_claim(port, 1);
  ::kill(zero.pid(), SIGSTOP);
  const std::string text = one.result();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 12s);  // 5 s, and a second for questions
  // What follows says whether the number of this rank was already agreed upon.
  const std::string place = std::to_string(port) + " (" + address_of(port) + ")";
  EXPECT_TRUE(text.starts_with("kTimeout: init: the store does not answer (at MASTER_PORT " +
                               place + "): the process that serves it is stopped or overloaded"))
      << text;
}

/// Rank 1 comes last and is cut off before it can say that all are there.
class CutOffStore final : public test::OwnStore {
 public:
  std::string get(std::string_view key, Timeout timeout) override {
    if (key == "world//1/verdict")
      base_->set("world//1/rank/1", encode(claim_of_this_process(2)), timeout);
    return OwnStore::get(key, timeout);
  }
};

TEST(Meeting, WhereAllHaveComeAndNobodySaysSoThatIsSaid) {
  Identity identity;
  identity.world_size = 2;
  const Error error = thrown_by(
      [&] { meet(identity, {.timeout = 500ms, .store = std::make_shared<CutOffStore>()}); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_TRUE(error.context().culprits.empty());
  EXPECT_EQ(
      std::string(error.what()),
      "init: all 2 ranks have come (at the program's store), and the one that came last, "
      "which is to tell the others, has not done so: it is stopped, or its host is cut off. A "
      "longer timeout is given by InitOptions::timeout or TUTTI_TIMEOUT");
}

constexpr const char* kNotAllowed = "not allowed here";

/// A child may find that out after it was first asked.
void expect_met_if_allowed(const std::vector<Child*>& children) {
  for (Child* const child : children) {
    const std::string result = child->result();
    if (result == kNotAllowed) GTEST_SKIP() << result;
    EXPECT_EQ(result, "met in round 1");
  }
}

TEST(Meeting, WhoCannotSeeProcIsNotDead) {
  const int port = fresh_port();
  const auto blind = [&](int rank) {
    return Child([=] {
      // A name space of its own, in which /proc is an empty folder.
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0) {
        return std::string(kNotAllowed);
      }
      return meet_and_greet(by_hand(rank, 2, port), {.timeout = 20s});
    });
  };
  Child zero = blind(0);
  const std::string result = zero.result(1500ms);
  if (result == kNotAllowed) GTEST_SKIP() << result;
  EXPECT_EQ(result, "(still running)");
  Child one = blind(1);
  expect_met_if_allowed({&zero, &one});
}

TEST(Meeting, WhoSeesAnotherClockOfTheBootIsNotDead) {
  const int port = fresh_port();
  Child shifted([=] {
    // Its children have a time namespace of their own, in which start times are shifted.
    if (::unshare(CLONE_NEWTIME) != 0) return std::string(kNotAllowed);
    const net::Fd offsets(::open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC));
    constexpr std::string_view kShift = "boottime 100000 0";
    if (::write(offsets.get(), kShift.data(), kShift.size()) < 0) {
      return std::string(kNotAllowed);
    }
    Child inside([=] { return meet_and_greet(by_hand(1, 2, port), {.timeout = 20s}); });
    return inside.result();
  });
  const std::string result = shifted.result(500ms);
  if (result == kNotAllowed) GTEST_SKIP() << result;
  EXPECT_EQ(result, "(still running)");
  Child zero = start(by_hand(0, 2, port));
  expect_met_if_allowed({&shifted, &zero});
}

/// Two jobs of one launcher at the same time.
void meet_without_a_port(Launcher launcher) {
  std::vector<Child> ranks;
  for (const char* job : {"job a", "job b"}) {
    for (int rank = 0; rank < 2; ++rank) {
      Identity identity;
      identity.launcher = launcher;
      identity.rank = rank;
      identity.world_size = 2;
      identity.is_one_host = true;
      identity.job = job + std::to_string(::getpid());
      ranks.push_back(start(identity));
    }
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
}

TEST(Meeting, OpenMpiNeedsNoMasterPort) { meet_without_a_port(Launcher::open_mpi); }

TEST(Meeting, SlurmNeedsNoMasterPort) { meet_without_a_port(Launcher::slurm); }

TEST(Meeting, PlacesThatCannotBeAreRefusedAtOnce) {
  const auto refused = [](const Identity& identity, const MeetingOptions& options = {}) {
    return thrown_by([&] { meet(identity, options); });
  };
  expect_text(refused(by_hand(0, 257, 29500)), "a host holds at most 256");
  Identity identity = by_hand(0, 2, 29500);
  identity.master_addr = "";
  EXPECT_EQ(refused(identity).code(), ErrorCode::kInvalidArgument);
  identity.master_port = 0;
  expect_text(refused(identity), "MASTER_PORT is not set");
  expect_text(refused(identity), "set MASTER_ADDR=127.0.0.1");
  identity.launcher = Launcher::open_mpi;  // says by its local size that there are other hosts
  expect_text(refused(identity),
              "They are on several hosts: set MASTER_ADDR to an address of rank");
  identity.launcher = Launcher::slurm;
  identity.nodes = "n[1-2]";
  expect_text(refused(identity), "They are on several hosts (n[1-2]): set MASTER_ADDR");
  EXPECT_EQ(refused(identity, {.init_method = "tcp://"}).code(), ErrorCode::kInvalidArgument);
  identity.agent = net::random_address("tutti-nobody");
  EXPECT_EQ(refused(identity).code(), ErrorCode::kSystem);
  expect_text(refused(identity), identity.agent);
}

TEST(Meeting, AWorldOfOneMeetsNobody) {
  const Meeting meeting = meet(Identity());
  meeting.store->set("k", "v");
  EXPECT_EQ(meeting.store->get("k"), "v");
  EXPECT_FALSE(meeting.board);
}

TEST(Meeting, AtTheAgentWorldsAreNumberedAndTheBoardIsHandedOver) {
  const std::string address = net::random_address("tutti-agent");
  const net::Fd board(::open("/dev/null", O_RDWR | O_CLOEXEC));
  store::Server agent({.listener = net::listen(address), .descriptor = board.get()});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Identity identity = by_hand(rank, 4, 0);
      identity.agent = address;
      for (int round = 1; round <= 3; ++round) {
        const Meeting meeting = meet(identity, {.timeout = 20s});
        EXPECT_EQ(meeting.round, round);
        EXPECT_TRUE(meeting.board);
        EXPECT_EQ(meeting.store->compare_set("only in this world", "", std::to_string(round)),
                  std::to_string(round));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Meeting, InTheProgramsStore) {
  const std::shared_ptr<Store> store = make_memory_store();
  const auto body = [&](int rank) {
    Identity identity;
    identity.launcher = Launcher::options;
    identity.rank = rank;
    identity.world_size = 2;
    EXPECT_EQ(meet_and_greet(identity, {.timeout = 20s, .store = store}), "met in round 1");
    EXPECT_EQ(meet_and_greet(identity, {.timeout = 20s, .store = store}), "met in round 2");
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

/// Counts what is asked of it, without what waits.
class CountingStore final : public test::OwnStore {
 public:
  std::optional<std::string> try_get(std::string_view key, Timeout timeout) override {
    ++calls;
    return OwnStore::try_get(key, timeout);
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Timeout timeout) override {
    ++calls;
    return OwnStore::compare_set(key, expected, desired, timeout);
  }
  void append(std::string_view key, std::string_view value, Timeout timeout) override {
    ++calls;
    OwnStore::append(key, value, timeout);
  }
  std::atomic<int> calls{0};
};

/// By both ranks, in their world of this number.
int calls_for_world(int number, const std::shared_ptr<CountingStore>& store) {
  const int before = store->calls;
  const auto body = [&](int rank) {
    Identity identity;
    identity.launcher = Launcher::options;
    identity.rank = rank;
    identity.world_size = 2;
    EXPECT_EQ(meet_and_greet(identity, {.timeout = 20s, .store = store}),
              fmt::format("met in round {}", number));
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
  return store->calls - before;
}

TEST(Meeting, TheHundredthWorldOfAProgramAsksNoMoreThanTheTenth) {
  const auto store = std::make_shared<CountingStore>();
  int tenth = 0, last = 0;
  for (int number = 1; number <= 100; ++number) {
    last = calls_for_world(number, store);
    if (number == 10) tenth = last;
  }
  EXPECT_LE(last, tenth + 20);  // both judge, or one does; 90 rounds to look at would be 540 calls
}

TEST(Meeting, WhoSaysAnotherSizeCompletesNoWorld) {
  const std::shared_ptr<Store> store = make_memory_store();
  // It has its rank, and has not yet read which size the others say.
  store->set("world//1/rank/1", encode(claim_of_this_process(3)));
  Identity identity;
  identity.rank = 0;
  identity.world_size = 2;
  const Error error = thrown_by([&] { meet(identity, {.timeout = 300ms, .store = store}); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "1 of 2 ranks missing: 1");
}

/// As one of its ranks does that gives up.
void end_round(Store& store) {
  store.set("world//1/verdict", encode_failure(Error(ErrorCode::kTimeout, "init: enough")));
}

TEST(Meeting, ANumberOfTheProgramThatTwoHaveIsSaidToBeThat) {
  const std::shared_ptr<Store> store = make_memory_store();
  // Both are started by tutti run, and both call themselves rank 0 of 2.
  const auto identity_of = [](const char* rank) {
    const Environment started = {{"TUTTI_AGENT", "unix:x"}, {"RANK", rank}, {"WORLD_SIZE", "2"}};
    return identify(started, {.rank = 0, .world_size = 2});
  };
  std::thread first(
      [&] { thrown_by([&] { meet(identity_of("0"), {.timeout = 20s, .store = store}); }); });
  store->get("world//1/rank/0", 20s);
  const Error error = thrown_by([&] { meet(identity_of("1"), {.timeout = 20s, .store = store}); });
  expect_text(error,
              "The program gives itself this number (rank 0 of 2) where tutti run has "
              "started it as rank 1: leave rank and world_size out, or give each process "
              "its own rank");
  end_round(*store);
  first.join();
}

TEST(Meeting, OneRankTwiceInOneProcessIsAnError) {
  const std::shared_ptr<Store> store = make_memory_store();
  Identity identity;
  identity.rank = 0;
  identity.world_size = 2;
  std::thread first([&] {
    EXPECT_EQ(thrown_by([&] { meet(identity, {.timeout = 20s, .store = store}); }).code(),
              ErrorCode::kTimeout);
  });
  store->get("world//1/rank/0", 20s);
  const Error error = thrown_by([&] { meet(identity, {.timeout = 20s, .store = store}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "rank 0 is already present");
  expect_text(error,
              ". Another job? Then give each its own MASTER_PORT. The same job? Then give "
              "each process its own RANK");
  end_round(*store);
  first.join();
}

}  // namespace
}  // namespace tutti::rendezvous
