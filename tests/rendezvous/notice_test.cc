// Ranks that meet by a file: on one host, on several, at what a job has left there that died, and
// where two jobs have one path.
#include "rendezvous/notice.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "children.h"
#include "meetings.h"
#include "namespaces.h"
#include "net/tcp.h"
#include "ranks.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/init.h"
#include "tutti/process_group.h"
#include "tutti/store.h"

namespace tutti::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::Child;
using test::expect_has;
using test::meet_and_greet;
using test::Namespaces;

Identity rank_of(int rank, int world_size, std::string job = {}) {
  return test::by_hand(rank, world_size, 0, std::move(job));
}

struct ByFile : testing::Test {
  ByFile() {
    char folder[] = "/tmp/tutti-notice-XXXXXX";
    if (::mkdtemp(folder) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = folder;
    path_ = folder_ + "/job";
  }
  ~ByFile() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  MeetingOptions options(std::chrono::milliseconds timeout = 20s, std::string name = {}) const {
    return {.timeout = timeout, .init_method = "file://" + path_, .name = std::move(name)};
  }
  Child start(const Identity& identity, std::chrono::milliseconds timeout = 20s) const {
    return Child([=, this] { return meet_and_greet(identity, options(timeout)); });
  }
  std::string notice() const { return NoticeFile(path_, "").read(); }
  /// Returns once there is one.
  Notice await_notice() const {
    Deadline deadline = Deadline::after(20s);
    for (;;) {
      const std::string text = notice();
      if (!text.empty()) return *decode_notice(text);
      if (net::pause(5ms, deadline) == net::PollResult::expired) throw std::runtime_error("none");
    }
  }
  /// Returns once that rank has claimed its number in the store of that notice; on its host.
  static void await_claim(const Notice& posted, int rank) {
    Deadline deadline = Deadline::after(20s);
    const std::string& nonce = posted.claim.nonce;
    const auto store =
        store::connect_store("@tutti-" + std::to_string(::geteuid()) + "-file-" + nonce,
                             {.world = hash_combine(0, hash_text(nonce))}, deadline)
            .store;
    store->get("world//1/rank/" + std::to_string(rank), 20s);
  }
  void leave(const Notice& left) const { NoticeFile(path_, "").replace("", encode(left)); }
  void expect_met(int world_size) const {
    std::vector<Child> ranks;
    for (int rank = world_size; rank-- > 0;) ranks.push_back(start(rank_of(rank, world_size)));
    for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
    EXPECT_EQ(notice(), "");
  }

  std::string folder_, path_;
};

/// Of a process that nobody here can look at, and that serves at `tcp`.
Notice from_elsewhere(const net::TcpAddress& tcp) {
  Notice left{claim_of_this_process(2), tcp};
  left.claim.where = "another-boot/pid:[1]";
  left.claim.host = "elsewhere";
  left.claim.pid = 1;
  return left;
}

net::TcpAddress address(const std::string& text) { return *net::TcpAddress::parse(text); }

TEST_F(ByFile, RanksMeetInAnyOrder) {
  for (const auto& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    std::vector<Child> ranks;
    for (const int rank : order) ranks.push_back(start(rank_of(rank, 4)));
    for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
    EXPECT_EQ(notice(), "");  // for the next job
  }
}

TEST_F(ByFile, TheSameProcessesMeetAgainAndAgain) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([=, this] {
      for (int world = 0; world < 10; ++world) {
        const MeetingOptions where = options(20s, world % 2 == 0 ? "a" : "b");
        const std::string met = meet_and_greet(rank_of(rank, 3), where);
        if (met != "met in round 1") return met;
      }
      return std::string("ten worlds");
    });
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "ten worlds");
}

TEST_F(ByFile, AWorldWorksFromEndToEnd) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([=, this] {
      for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
        ::unsetenv(name);
      const std::string who = "?rank=" + std::to_string(rank) + "&world_size=2";
      ProcessGroup world =
          init_process_group({.init_method = "file://" + path_ + who, .timeout = 20s});
      const double sum = world.all_reduce_value(1.0 + world.rank());
      world.close();
      return std::to_string(sum);
    });
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "3.000000");
}

TEST_F(ByFile, NoPortIsOpenedWhereAllAreOnOneHost) {
  Identity zero = rank_of(0, 2);
  zero.is_one_host = true;
  Child waits = start(zero);
  EXPECT_FALSE(await_notice().tcp);
  Identity one = zero;
  one.rank = 1;
  EXPECT_EQ(start(one).result(), "met in round 1");
  EXPECT_EQ(waits.result(), "met in round 1");
}

TEST_F(ByFile, Rank0ServesWhereItsSettingsSay) {
  const net::Fd held = net::listen_tcp(address("127.0.0.1:0"));  // the next ports, or some of them
  const int first = std::min(net::TcpAddress::local(held.get()).port(), 65000);
  MeetingOptions chosen = options();
  chosen.address = {.what = "TUTTI_SOCKET_IFNAME", .text = "lo"};
  chosen.ports = {first, first + 500};
  Child waits([&] { return meet_and_greet(rank_of(0, 2), chosen); });
  const Notice posted = await_notice();
  ASSERT_TRUE(posted.tcp);
  EXPECT_EQ(posted.tcp->host(), "127.0.0.1");
  EXPECT_GE(posted.tcp->port(), first);
  EXPECT_LE(posted.tcp->port(), first + 500);
  EXPECT_EQ(start(rank_of(1, 2)).result(), "met in round 1");
  EXPECT_EQ(waits.result(), "met in round 1");
}

TEST_F(ByFile, Rank0ServesWhereItsSettingsLeaveItNoPlace) {  // else the others wait in vain for it
  const net::Fd held = net::listen_tcp(address("127.0.0.1:0"));
  const int taken = net::TcpAddress::local(held.get()).port();
  MeetingOptions chosen = options();
  chosen.address = {.what = "TUTTI_SOCKET_IFNAME", .text = "no_such_one"};
  Child of_no_interface([&] { return meet_and_greet(rank_of(0, 2), chosen); });
  const bool has_address = net::addresses_of_this_host() != "none but loopback";
  EXPECT_EQ(await_notice().tcp.has_value(), has_address);
  EXPECT_EQ(start(rank_of(1, 2)).result(), "met in round 1");
  EXPECT_EQ(of_no_interface.result(), "met in round 1");

  chosen.address = {.what = "TUTTI_SOCKET_IFNAME", .text = "lo"};
  chosen.ports = {taken, taken};
  Child of_no_port([&] { return meet_and_greet(rank_of(0, 2), chosen); });
  EXPECT_EQ(start(rank_of(1, 2)).result(), "met in round 1");
  EXPECT_EQ(of_no_port.result(), "met in round 1");
}

// ---- what a job has left that died

TEST_F(ByFile, WhatAJobLeftThatWasKilledHoldsNobodyUp) {
  auto quickest = Clock::duration::max();
  for (int tries = 0; tries < 3 && quickest >= 4s; ++tries) {  // on a slow machine
    Child killed = start(rank_of(0, 2));
    await_notice();
    killed.kill();
    const auto begin = Clock::now();
    expect_met(3);
    quickest = std::min(quickest, Clock::now() - begin);
  }
  EXPECT_LT(quickest, 4s);  // its process can be looked at
}

TEST_F(ByFile, WhatAJobOfAnotherHostLeftIsReplacedWhenNobodyAnswers) {
  leave(from_elsewhere(address("127.0.0.1:1")));  // refused
  const auto begin = Clock::now();
  expect_met(2);
  EXPECT_GE(Clock::now() - begin, 4s);  // it might have been away for a moment
}

TEST_F(ByFile, SomebodyElseMayHaveItsPortByNow) {
  // Not private: for the child.
  const net::Fd listener(net::listen_tcp(address("127.0.0.1:0")).release());
  const net::TcpAddress taken = net::TcpAddress::local(listener.get());
  Child other([&] {  // another job's store
    store::Server server({.tcp_listener = listener.duplicate(),
                          .admit = [](const store::Hello& hello, const net::Peer&) {
                            return hello.world == 0
                                       ? std::optional<Error>()
                                       : Error(ErrorCode::kSystem, "a world of another name");
                          }});
    Deadline never = Deadline::after(60s);
    net::pause(60s, never);
    return std::string();
  });
  leave(from_elsewhere(taken));
  expect_met(2);
}

TEST_F(ByFile, AProgramThatIsNoStoreMayHaveItsPortByNow) {
  // Not private: for the child.
  const net::Fd listener(net::listen_tcp(address("127.0.0.1:0")).release());
  Child other([&] {
    const std::string_view banner = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7\r\n";
    for (Deadline deadline = Deadline::after(60s);;) {
      if (net::poll_readable(listener.get(), deadline) != net::PollResult::ready) return "";
      const net::Fd socket = net::accept_tcp(listener.get());
      net::send_all(socket.get(), std::as_bytes(std::span(banner)), deadline);
    }
  });
  leave(from_elsewhere(net::TcpAddress::local(listener.get())));
  expect_met(2);
}

TEST_F(ByFile, WhatIsNoNoticeIsReplaced) {
  NoticeFile(path_, "").replace("", "of a later version");
  expect_met(2);
}

TEST_F(ByFile, AFileThatIsRemovedWhileRanksComeIsMadeAgain) {
  Child zero = start(rank_of(0, 2));
  await_notice();
  ::unlink(path_.c_str());
  EXPECT_EQ(start(rank_of(1, 2)).result(), "met in round 1");
  EXPECT_EQ(zero.result(), "met in round 1");
}

// ---- two jobs

TEST_F(ByFile, TheSecondJobAtAPathIsRefusedAndSeesBothSides) {
  Child zero = start(rank_of(0, 2));
  await_claim(await_notice(), 0);
  const std::string text = start(rank_of(0, 2)).result();
  expect_has(text, "kInvalidArgument: rank 0 is already present at file://" + path_);
  expect_has(text, "pid " + std::to_string(zero.pid()));
  expect_has(text, "Another job? Then give each its own path in init_method.");
}

TEST_F(ByFile, JobsThatTheirLauncherTellsApartNeverMix) {
  Child zero = start(rank_of(0, 2, "torchrun a"));
  await_notice();
  for (const int rank : {0, 1}) {
    const std::string text = start(rank_of(rank, 2, "torchrun b")).result();
    expect_has(text, "kInvalidArgument: file://" + path_ + " is taken by another job");
    expect_has(text, "Give each job its own path in init_method");
  }
  EXPECT_EQ(start(rank_of(1, 2, "torchrun a")).result(), "met in round 1");
  EXPECT_EQ(zero.result(), "met in round 1");
}

TEST_F(ByFile, Rank0WhoseNoticeAnotherJobHasReplacedEndsItsRound) {
  Child zero = start(rank_of(0, 3));
  Child one = start(rank_of(1, 3));
  const Notice posted = await_notice();
  for (const int rank : {0, 1}) await_claim(posted, rank);
  const std::string own = encode(posted);
  const std::string other = encode(from_elsewhere(address("192.0.2.1:1")));
  ASSERT_EQ(NoticeFile(path_, "").replace(own, other), other);
  const std::string text = zero.result();
  expect_has(text, "kInvalidArgument: file://" + path_ + " is used by two jobs: rank 0 of this ");
  expect_has(text, "on elsewhere has taken its place there");
  expect_has(one.result(), "is used by two jobs");
  EXPECT_EQ(notice(), other);  // which is not taken down
}

// ---- errors

TEST_F(ByFile, WhoWaitsForNobodyIsToldWhatToCheck) {
  const Error error = thrown_by([&] { meet(rank_of(1, 2), options(300ms)); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_EQ(error.context().culprits, std::vector<int>{0});
  expect_text(error, "rank 0 of 2 is missing (it has left no notice in " + path_ + ")");
  expect_text(error, "Was it started, with this path in init_method?");
  expect_text(error, "Do all hosts see one file at " + path_);
  MeetingOptions named = options(300ms);
  named.name = "other";
  expect_text(thrown_by([&] { meet(rank_of(1, 2), named); }),
              "Was it started, with this path in init_method and this name (\"other\")?");
  leave(from_elsewhere(address("127.0.0.1:1")));
  const Error stale = thrown_by([&] { meet(rank_of(1, 2), options(300ms)); });
  expect_text(stale, "the notice in " + path_ + " is of pid 1 (");
  expect_text(stale, ") on elsewhere, who does not answer: 127.0.0.1:1: Connection refused");
}

TEST_F(ByFile, APlaceThatCannotBeIsToldAtOnce) {
  MeetingOptions nowhere = options();
  nowhere.init_method = "file:///no/such/folder/job";
  const Error folder = thrown_by([&] { meet(rank_of(1, 2), nowhere); });
  EXPECT_EQ(folder.code(), ErrorCode::kSystem);
  expect_text(folder, "cannot open the store's file /no/such/folder/job");
  std::ofstream(path_) << std::string(200, '#');
  const Error text = thrown_by([&] { meet(rank_of(0, 2), options()); });
  EXPECT_EQ(text.code(), ErrorCode::kInvalidArgument);
  expect_text(text, path_ + " is no store's file of Tutti: give another path, or remove it");
}

TEST_F(ByFile, AListOfHostsIsNoPlace) {
  for (const int rank : {0, 1}) {
    std::ofstream(path_, std::ios::trunc) << "node-1\n";
    const Error error = thrown_by([&] { meet(rank_of(rank, 2), options()); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, path_ + " is no store's file of Tutti: give another path, or remove it");
    std::string line;
    std::getline(std::ifstream(path_), line);
    EXPECT_EQ(line, "node-1");
  }
}

TEST_F(ByFile, ALimitOfTheSizeOfFilesIsTold) {
  Child zero([this] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_FSIZE, &none);
    return meet_and_greet(rank_of(0, 2), options());
  });
  expect_has(zero.result(), "kSystem: cannot write the store's file " + path_ + ": File too large");
}

// ---- several hosts

struct ByFileInNamespaces : ByFile {
  void SetUp() override {
    if (!spaces.why_not().empty()) GTEST_SKIP() << spaces.why_not();
  }
  Child start_on(int host, const Identity& identity, std::chrono::milliseconds timeout = 20s) {
    return spaces.on_host(host, [=, this] { return meet_and_greet(identity, options(timeout)); });
  }
  /// Returns once that rank has claimed its number; `host`: of rank 0.
  void await_claim_on(int host, int rank) {
    const Notice posted = await_notice();
    Child looks = spaces.on_host(host, [&] {
      await_claim(posted, rank);
      return std::string("here");
    });
    EXPECT_EQ(looks.result(), "here");
  }
  Namespaces spaces{3};
};

TEST_F(ByFileInNamespaces, RanksOfThreeHostsMeet) {
  std::vector<Child> ranks;
  for (const int rank : {4, 0, 2, 5, 1, 3}) ranks.push_back(start_on(rank % 3, rank_of(rank, 6)));
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
}

TEST_F(ByFileInNamespaces, ARankKilledOnAnotherHostIsNamed) {
  Child zero = start_on(0, rank_of(0, 3));
  Child one = start_on(1, rank_of(1, 3));
  await_claim_on(0, 0);
  await_claim_on(0, 1);
  one.kill();
  expect_has(zero.result(), ") on host-1) was lost before the world of 3 ranks was complete");
}

TEST_F(ByFileInNamespaces, AJobThatDiedOnAnotherHostIsForgotten) {
  Child killed = start_on(1, rank_of(0, 2));
  const std::string left = encode(await_notice());
  killed.kill();
  Child one = start_on(1, rank_of(1, 2));
  Child zero = start_on(0, rank_of(0, 2));
  EXPECT_EQ(zero.result(), "met in round 1");
  EXPECT_EQ(one.result(), "met in round 1");
}

/// Nothing says there which interface leads to the others.
TEST_F(ByFileInNamespaces, AWorldInAStoreOfTheProgram) {
  const auto start_world = [&](int rank, const Settings& settings) {
    return spaces.on_host(rank, [=, this] {
      ProcessGroup world = init_process_group({.rank = rank,
                                               .world_size = 3,
                                               .timeout = 20s,
                                               .store = make_file_store(path_),
                                               .settings = settings});
      int sum = rank + 1;
      world.all_reduce(sum);
      return std::to_string(sum);
    });
  };
  for (const Settings& settings : {Settings{}, Settings{{"socket_ifname", "lo"}}}) {
    std::vector<Child> ranks;
    for (const int rank : {0, 1, 2}) ranks.push_back(start_world(rank, settings));
    for (Child& rank : ranks) {
      expect_has(rank.result(), settings.empty() ? "6" : "a loopback address is of one host alone");
    }
    ::unlink(path_.c_str());
  }
}

TEST_F(ByFileInNamespaces, ALivingJobOfAnotherHostIsNot) {
  Child zero = start_on(1, rank_of(0, 2));
  await_claim_on(1, 0);
  expect_has(start_on(0, rank_of(0, 2)).result(), ") on host-1 is meeting there");
}

}  // namespace
}  // namespace tutti::rendezvous
