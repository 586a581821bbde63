// Ranks that may be on several hosts: at an address of this host, and in network namespaces.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "children.h"
#include "cutting_relay.h"
#include "meetings.h"
#include "namespaces.h"
#include "net/port_holder.h"
#include "net/process_info.h"
#include "net/shake_hands.h"
#include "net/tcp.h"
#include "own_store.h"
#include "ranks.h"
#include "rendezvous/claim.h"
#include "rendezvous/company.h"
#include "rendezvous/meeting.h"
#include "rendezvous/place.h"
#include "rendezvous/round.h"
#include "sanitized.h"
#include "secret_file.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/init.h"
#include "tutti/log.h"

namespace tutti::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::Child;
using test::Cut;
using test::CuttingRelay;
using test::expect_has;
using test::meet_and_greet;
using test::Namespaces;

/// An address at which other hosts could reach this one; empty: it has none.
std::string own_address() {
  const std::string all = net::addresses_of_this_host();
  const std::string first = all.substr(0, all.find(','));
  return net::TcpAddress::parse(first + ":0") ? first : std::string();
}

net::TcpAddress at(const std::string& host, int port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string text = (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  return *net::TcpAddress::parse(text);
}

Identity rank_of(int rank, int world_size, const std::string& host, int port) {
  Identity identity = test::by_hand(rank, world_size, port);
  identity.master_addr = host;
  return identity;
}

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    host_ = own_address();
    if (host_.empty()) GTEST_SKIP() << "this host has no IPv4 address but loopback";
  }
  Child start(int rank, int world_size, const MeetingOptions& options = {.timeout = 20s}) {
    const Identity identity = rank_of(rank, world_size, host_, port_);
    return Child([=] { return meet_and_greet(identity, options); });
  }
  /// Connected over TCP, as a rank on another host is.
  std::shared_ptr<Store> connect(store::Connected* connected, net::Level level = net::Level::none,
                                 const store::Hello& hello = {}) {
    const std::vector<net::TcpAddress> addresses = {at(host_, port_)};
    Deadline deadline = Deadline::after(20s);
    std::string why;
    for (;;) {
      auto found = store::try_connect_tcp_store(addresses, hello, {.level = level}, deadline, &why);
      if (found) {
        *connected = std::move(*found);
        return connected->store;
      }
      if (net::pause(1ms, deadline) == net::PollResult::expired) throw std::runtime_error(why);
    }
  }
  std::string host_;
  const net::HeldPort held_ = net::hold_port(0);
  const int port_ = held_.port;
};

TEST_F(Hosts, MeetAtAnAddressOfThisHostInAnyOrder) {
  for (const auto& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    std::vector<Child> ranks;
    for (const int rank : order) ranks.push_back(start(rank, 4));
    for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
  }
}

TEST_F(Hosts, MeetOverTcpAlone) {
  // Whoever is another user looks for another local socket: only TCP is left.
  if (::geteuid() != 0) GTEST_SKIP() << "not root: cannot become another user";
  Child zero = start(0, 3);
  std::vector<Child> others;
  for (int rank = 1; rank < 3; ++rank) {
    const Identity identity = rank_of(rank, 3, host_, port_);
    others.emplace_back([=] {
      if (::setuid(65534) != 0) return std::string("cannot become another user");
      return meet_and_greet(identity, {.timeout = 20s});
    });
  }
  EXPECT_EQ(zero.result(), "met in round 1");
  for (Child& other : others) EXPECT_EQ(other.result(), "met in round 1");
}

TEST_F(Hosts, TheSameProcessesMeetAgainAndAgain) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const Identity identity = rank_of(rank, 3, host_, port_);
    ranks.emplace_back([=] {
      std::vector<Meeting> alive;
      for (int world = 0; world < 10; ++world) {
        const MeetingOptions options{.timeout = 20s, .name = world % 2 == 0 ? "a" : "b"};
        alive.push_back(meet(identity, options));
        alive.back().store->set("world", std::to_string(world));
        alive.back().store->barrier("together", 3, 20s);
        if (alive.back().store->get("world") != std::to_string(world)) return "mixed";
      }
      test::leave(alive.back(), 3);
      return "ten worlds";
    });
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "ten worlds");
}

TEST_F(Hosts, WorldsOfDifferentNamesTakeTurnsAtOnePort) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const Identity identity = rank_of(rank, 2, host_, port_);
    ranks.emplace_back([=] {
      std::string results[2];
      std::thread other(
          [&] { results[0] = meet_and_greet(identity, {.timeout = 20s, .name = "a"}); });
      results[1] = meet_and_greet(identity, {.timeout = 20s, .name = "b"});
      other.join();
      return results[0] + ", " + results[1];
    });
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1, met in round 1");
}

TEST_F(Hosts, APortIsOpenOnlyWhereItMustBeAndUntilAllAreThere) {
  const net::TcpAddress address = at(host_, port_);
  Child zero = start(0, 2);
  store::Connected connected;
  connect(&connected);
  EXPECT_EQ(net::holder_of(address), net::describe_process(zero.pid()));
  EXPECT_EQ(net::holder_of(at("127.0.0.1", port_)), "");  // the address given, never the wildcard
  const Identity identity = rank_of(1, 2, host_, port_);
  Child one([=] {
    const Meeting meeting = meet(identity, {.timeout = 20s});
    meeting.store->set("here/1", "", 20s);
    meeting.store->get("here/0", 20s);  // rank 0 has met, too
    int problem = 0;
    const bool is_free = net::try_listen_tcp(address, &problem).has_value();
    meeting.store->set("gone/1", "", 20s);
    return std::string(is_free ? "free" : "taken");
  });
  EXPECT_EQ(zero.result(), "met in round 1");
  EXPECT_EQ(one.result(), "free");
}

TEST_F(Hosts, NoPortIsOpenedForOneHost) {
  Identity loopback = rank_of(0, 2, "127.0.0.1", port_);
  const net::HeldPort other_port = net::hold_port(0);
  Identity one_host = rank_of(0, 2, host_, other_port.port);
  one_host.is_one_host = true;
  for (const Identity& identity : {loopback, one_host}) {
    Child zero([=] { return meet_and_greet(identity, {.timeout = 20s}); });
    test::await_claim(identity.master_port, 0);
    EXPECT_EQ(net::holder_of(at(host_, identity.master_port)), "");
    EXPECT_EQ(net::holder_of(at("127.0.0.1", identity.master_port)), "");
    Identity other = identity;
    other.rank = 1;
    Child one([=] { return meet_and_greet(other, {.timeout = 20s}); });
    EXPECT_EQ(zero.result(), "met in round 1");
    EXPECT_EQ(one.result(), "met in round 1");
  }
}

TEST_F(Hosts, ABusyPortNamesItsHolder) {
  const net::Fd holder = net::listen_tcp(at(host_, port_));
  const std::string text = start(0, 2).result();
  expect_has(text, "kInvalidArgument: init (rank 0): MASTER_ADDR=" + host_ + ": port " +
                       std::to_string(port_) + " of " + host_ + " is taken by " +
                       net::describe_process(::getpid()) + ": give all ranks another MASTER_PORT");
}

TEST_F(Hosts, AStoreOfTheProgramAtThePortIsSaidToAllAtOnce) {
  const Identity first = rank_of(0, 2, host_, port_);
  MeetingOptions as_by_default{.timeout = 60s};
  as_by_default.before_tcp = [](const std::string&) -> net::Security {
    return {.level = net::Level::opportunistic};
  };
  Child zero([=, host = host_, port = port_] {
    const auto store = make_tcp_store({.host = host, .port = port, .is_server = true});
    store->set("served", "");
    const std::string told =
        thrown_by([&] { meet(first, as_by_default); }).what();  // not after the whole minute
    store->set("told", told);
    store->get("one has heard it", 20s);
    return told;
  });
  const auto look = make_tcp_store({.host = host_, .port = port_, .timeout = 20s});
  look->get("told", 20s);
  const std::string who = net::describe_process(zero.pid());  // while it lives
  Child one = start(1, 2, as_by_default);
  expect_has(one.result(20s), "kInvalidArgument: rank 1 does not meet the others at " +
                                  at(host_, port_).text() + ": " + who +
                                  " serves a store of the program there");
  look->set("one has heard it", "");
  expect_has(zero.result(20s),
             "init (rank 0): MASTER_ADDR=" + host_ + ": port " + std::to_string(port_) + " of " +
                 host_ + " is taken by this process itself, " + who +
                 ": it serves a store there (make_tcp_store). Give that store to all ranks "
                 "(InitOptions::store), or another MASTER_PORT");
}

TEST_F(Hosts, WhoAnswersThereMayBeNoStore) {
  const net::Fd listener = net::listen_tcp(at(host_, port_));
  const Identity identity = rank_of(1, 2, host_, port_);
  Child one([=] { return meet_and_greet(identity, {.timeout = 20s}); });
  Deadline deadline = Deadline::after(20s);
  ASSERT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
  const net::Fd socket = net::accept_tcp(listener.get());
  const std::string_view banner = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7\r\n";
  net::send_all(socket.get(), std::as_bytes(std::span(banner)), deadline);
  expect_has(one.result(), "who listens there does not speak as Tutti does");
}

TEST_F(Hosts, AnotherVersionIsToldByBothSides) {
  Child zero = start(0, 2);
  store::Connected connected;
  connect(&connected);
  const std::vector<net::TcpAddress> addresses = {at(host_, port_)};
  std::string why;
  const Error refused = thrown_by([&] {
    store::try_connect_tcp_store(addresses, {.version = store::kProtocolVersion + 1}, {},
                                 Deadline::after(20s), &why);
  });
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  expect_text(refused, "use one version of Tutti for the whole job");
}

TEST_F(Hosts, AServerOfAnotherVersionIsSaidToBeThat) {
  const net::Fd listener = net::listen_tcp(at(host_, port_));
  const Identity identity = rank_of(1, 2, host_, port_);
  Child one([=] { return meet_and_greet(identity, {.timeout = 20s}); });
  Deadline deadline = Deadline::after(20s);
  ASSERT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
  const net::Fd socket = net::accept_tcp(listener.get());
  net::Handshake handshake = net::Handshake::called(
      net::Level::none, [](const net::Claim&) { return store::key_of_store({}); });
  ASSERT_TRUE(net::shake_hands(handshake, socket.get(), deadline));
  net::Frame welcome = store::encode_welcome(std::nullopt, false);
  welcome.body[4] = static_cast<char>(store::kProtocolVersion + 1);
  std::string bytes;
  net::append_frame(&bytes, welcome);
  net::send_all(socket.get(), std::as_bytes(std::span(bytes)), deadline);
  const std::string text = one.result();
  expect_has(text, "kUnsupported");
  expect_has(text,
             fmt::format("version {} of the store's protocol, we speak {}: use one version of "
                         "Tutti",
                         store::kProtocolVersion + 1, store::kProtocolVersion));
}

TEST_F(Hosts, WhoIsNobodysAddressIsTold) {
  const Error error =
      thrown_by([&] { meet(rank_of(0, 2, "198.51.100.7", port_), {.timeout = 20s}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error,
              "MASTER_ADDR=198.51.100.7: 198.51.100.7 is not an address of this host, which has ");
  expect_text(error, host_);
  expect_text(error, "rank 0 must run where it points");
}

TEST_F(Hosts, AWildcardIsNoPlace) {
  for (const char* wildcard : {"0.0.0.0", "::"}) {
    const Error error = thrown_by([&] { meet(rank_of(0, 2, wildcard, port_), {.timeout = 20s}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "is all addresses of a host");
  }
}

TEST_F(Hosts, ANameThatDoesNotExistIsToldRank0AtOnceAndOthersAfterAWhile) {
  const auto begin = Clock::now();
  const Error zero =
      thrown_by([&] { meet(rank_of(0, 2, "no-such-host.invalid", port_), {.timeout = 60s}); });
  expect_text(zero, "MASTER_ADDR=no-such-host.invalid");
  expect_text(zero, "An address in numbers");
  EXPECT_LT(Clock::now() - begin, 30s);
  const auto later = Clock::now();
  const Error one =
      thrown_by([&] { meet(rank_of(1, 2, "no-such-host.invalid", port_), {.timeout = 500ms}); });
  expect_text(one, "init (rank 1): MASTER_ADDR=no-such-host.invalid");
  EXPECT_LT(Clock::now() - later, 20s);
}

/// Gives this process a file of its own in place of `path`; whether that is allowed.
bool use_file(const char* path, const std::string& text) {
  std::string made = "/tmp/tutti-file-XXXXXX";
  const net::Fd fd(::mkstemp(made.data()));
  const bool is_used = ::write(fd.get(), text.data(), text.size()) > 0 &&
                       ::fchmod(fd.get(), 0644) == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       ::mount(made.c_str(), path, nullptr, MS_BIND, nullptr) == 0;
  ::unlink(made.c_str());
  return is_used;
}
bool use_hosts(const std::string& lines) { return use_file("/etc/hosts", lines); }

TEST_F(Hosts, ANameServerThatDoesNotAnswerHoldsNobodyUpBeyondTheDeadline) {
  const Identity identity = rank_of(1, 2, "node-a.test", port_);
  const auto begin = Clock::now();
  const std::string text =
      Child([=] {
        if (!use_file("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:30\n") ||
            ::unshare(CLONE_NEWNET) != 0 || std::system("ip link set lo up") != 0) {
          return std::string("no");
        }
        const net::Fd silent(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        const net::TcpAddress name_server = at("127.0.0.1", 53);
        if (::bind(silent.get(), name_server.data(), name_server.size()) != 0) {
          return std::string("no");
        }
        return meet_and_greet(identity, {.timeout = 500ms});
      }).result();
  if (text == "no") GTEST_SKIP() << "no namespaces here";
  expect_has(text,
             "kTimeout: init (rank 1): MASTER_ADDR=node-a.test: looking up the name of host "
             "'node-a.test': no answer for 0.5 s");
  EXPECT_LT(Clock::now() - begin, 15s);
}

TEST_F(Hosts, ANameOfThisHostAloneIsSaidToBeThat) {
  const Identity identity = rank_of(0, 2, "node-a.test", port_);
  const std::string text = Child([=] {
                             if (!use_hosts("127.0.1.1 node-a.test\n")) return std::string("no");
                             return meet_and_greet(identity, {.timeout = 3s});
                           }).result();
  if (text == "no") GTEST_SKIP() << "no mount namespaces here";
  expect_has(text, "kTimeout: init: 1 of 2 ranks missing: 1");
  expect_has(text,
             "MASTER_ADDR=node-a.test means 127.0.1.1 here (see /etc/hosts), which is this "
             "host alone");
}

TEST_F(Hosts, MeetByName) {
  std::vector<Child> ranks;
  for (const int rank : {1, 0}) {
    const Identity identity = rank_of(rank, 2, "node-a.test", port_);
    ranks.emplace_back([=, host = host_] {
      // The first address is nobody's: both go on to the next.
      if (!use_hosts("198.51.100.7 node-a.test\n" + host + " node-a.test\n")) {
        return std::string("no");
      }
      return meet_and_greet(identity, {.timeout = 20s});
    });
  }
  for (Child& rank : ranks) {
    const std::string text = rank.result();
    if (text == "no") GTEST_SKIP() << "no mount namespaces here";
    EXPECT_EQ(text, "met in round 1");
  }
}

TEST_F(Hosts, WhoWaitsForNobodyIsToldWhatToCheck) {
  const Error away = told_in_time("Connection refused", [&](std::chrono::milliseconds time) {
    meet(rank_of(1, 2, host_, port_), {.timeout = time});
  });
  EXPECT_EQ(away.code(), ErrorCode::kTimeout);
  EXPECT_EQ(away.context().culprits, std::vector<int>{0});
  expect_text(away, "rank 0 of 2 is missing (" + host_ + ":" + std::to_string(port_) +
                        ": Connection refused)");
  expect_text(away, "One that was given 127.0.0.1");
  expect_text(away, "does a firewall let the port through");
  const Error here = thrown_by([&] { meet(rank_of(0, 2, "127.0.0.1", port_), {.timeout = 3s}); });
  expect_text(here,
              "MASTER_ADDR=127.0.0.1 is this host alone: if ranks are on other hosts, give "
              "all of them an address of rank 0's host");
}

TEST_F(Hosts, WhatIsForbiddenOverTcpIsForbiddenBeforeAPortIsOpen) {
  MeetingOptions options{.timeout = 20s};
  options.before_tcp = [](const std::string& place) -> net::Security {
    throw Error(ErrorCode::kUnsupported, "not at " + place);
  };
  const Error error = thrown_by([&] { meet(rank_of(0, 2, host_, port_), options); });
  expect_text(error, "not at MASTER_ADDR=" + host_ + " MASTER_PORT=" + std::to_string(port_));
  const Error local = thrown_by([&] {
    MeetingOptions short_one = options;
    short_one.timeout = 100ms;
    meet(rank_of(0, 2, "127.0.0.1", port_), short_one);
  });
  EXPECT_EQ(local.code(), ErrorCode::kTimeout);  // nobody was asked
}

/// A claim of a process that nobody here can look at.
Claim claim_from_elsewhere(int world_size) {
  Claim claim = claim_of_this_process(world_size);
  claim.where = "another-boot/pid:[1]";
  claim.host = "elsewhere";
  claim.pid = 1;  // lives here, and means nothing
  return claim;
}

TEST_F(Hosts, AConnectionThatEndsFailsTheRoundOnAll) {
  Child zero = start(0, 4);
  Child two = start(2, 4);
  for (const int rank : {0, 2}) test::await_claim(port_, rank);
  const auto begin = Clock::now();
  Child one([&]() -> std::string {
    store::Connected connected;
    connect(&connected);
    CompanyOptions options{.rank = 1, .world_size = 4};
    options.remote = connected.remote;
    options.is_spread = true;
    const Claim claim = claim_from_elsewhere(4);
    Company company(connected.store, round_prefix("", 1), 1, claim, options);
    Deadline deadline = Deadline::after(20s);
    company.enlist(deadline);
    connected.store->set("world//1/rank/1", encode(claim));
    ::_exit(0);  // without a word
  });
  for (Child* child : {&zero, &two}) {
    EXPECT_EQ(child->result(), "kPeerLost: init: rank 1 (pid 1 (" + net::program_of(::getpid()) +
                                   ") on elsewhere) was lost before the world of 4 ranks was "
                                   "complete: its connection to the store where ranks meet has "
                                   "ended. See why the rank or the connection ended, then start "
                                   "the job again (culprits: 1)");
  }
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST_F(Hosts, AWillThatWasTakenBackSaysNothing) {
  Child zero = start(0, 3);
  test::await_claim(port_, 0);
  Child one([&]() -> std::string {
    store::Connected connected;
    connect(&connected);
    CompanyOptions options{.rank = 1, .world_size = 3};
    options.remote = connected.remote;
    const Claim claim = claim_from_elsewhere(3);
    {
      Company company(connected.store, round_prefix("", 1), 1, claim, options);
      Deadline deadline = Deadline::after(20s);
      company.enlist(deadline);
      connected.store->set("world//1/rank/1", encode(claim));
    }
    ::_exit(0);
  });
  EXPECT_EQ(one.result(), "");
  EXPECT_EQ(zero.result(1000ms), "(still running)");
}

TEST(Claims, OfAnotherHostAreNeitherKinNorDead) {
  const Claim own = claim_of_this_process(2);
  Claim other = claim_from_elsewhere(2);
  other.pid = own.pid;
  other.group = own.group;
  other.parent = own.parent;
  other.start_time = own.start_time + 1;  // here, that would be another process by now
  EXPECT_FALSE(is_kin(own, other));
  EXPECT_FALSE(is_dead(other, own));
  Claim same = other;
  same.where = own.where;
  same.host = own.host;
  EXPECT_TRUE(is_kin(own, same));
  EXPECT_TRUE(is_dead(same, own));
  EXPECT_EQ(describe_for(own, other), describe(own) + " on elsewhere");
  EXPECT_EQ(describe_for(own, same), describe(own));
  const auto decoded = decode_claim(encode(other));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(encode(*decoded), encode(other));
  EXPECT_EQ(decoded->host, "elsewhere");
}

TEST_F(Hosts, StrangersAtThePortDoNotDisturb) {
  Child zero = start(0, 2);
  store::Connected connected;
  connect(&connected);
  const net::TcpAddress address = at(host_, port_);
  std::vector<net::Fd> strangers;
  Deadline deadline = Deadline::after(20s);
  for (int i = 0; i < 600; ++i) {
    std::string why;
    if (auto socket = net::try_connect_tcp(address, deadline, &why)) {
      if (i % 2 == 0) {  // half of them say nothing, the others announce a frame of 2 GiB
        const std::string_view garbage = "\xff\xff\xff\x7f and more than a hello may have of it";
        std::size_t moved = 0;
        net::send_some(socket->get(), std::as_bytes(std::span(garbage)), &moved);
      }
      strangers.push_back(std::move(*socket));
    }
  }
  EXPECT_EQ(strangers.size(), 600u);
  Child one = start(1, 2);
  EXPECT_EQ(zero.result(), "met in round 1");
  EXPECT_EQ(one.result(), "met in round 1");
}

TEST_F(Hosts, AStrangerThatSaysNothingIsDroppedAfterTwoSeconds) {
  Child zero = start(0, 2);
  store::Connected connected;
  connect(&connected);
  Deadline deadline = Deadline::after(20s);
  std::string why;
  const auto begin = Clock::now();
  const auto socket = net::try_connect_tcp(at(host_, port_), deadline, &why);
  ASSERT_TRUE(socket) << why;
  ASSERT_EQ(net::poll_readable(socket->get(), deadline), net::PollResult::ready);
  std::array<std::byte, 1> byte;
  std::size_t moved = 0;
  EXPECT_EQ(net::receive_some(socket->get(), byte, &moved), net::IoResult::closed);
  EXPECT_GE(Clock::now() - begin, 1900ms);
}

// Worlds, from the variables on.

/// What a rank started by hand says in the end; "sum 3.0" if it has combined something.
std::string whole_rank(int rank, int world_size, const std::string& host, int port,
                       const Settings& settings = {}, std::chrono::milliseconds timeout = 20s) {
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
  ::setenv("MASTER_ADDR", host.c_str(), 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  static std::mutex mutex;
  static std::string lines;
  set_log_callback([](LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::warn) lines += std::string(line) + "\n";
  });
  ProcessGroup world = init_process_group({.timeout = timeout, .settings = settings});
  std::vector<double> one = {1.0 + world.rank()};
  world.all_reduce(one);
  world.close();
  const std::lock_guard lock(mutex);
  return "sum " + std::to_string(one[0]) + "\n" + lines;
}

TEST_F(Hosts, AWorldOfOneHostWorksFromEndToEnd) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([=, host = host_, port = port_] { return whole_rank(rank, 2, host, port); });
  }
  const std::string zero = ranks[0].result();
  expect_has(zero, "sum 3.0");
  expect_has(zero, "ranks meet at MASTER_ADDR=" + host_ + " MASTER_PORT=" + std::to_string(port_) +
                       " over TCP, security=opportunistic: until all ranks are there whoever "
                       "reaches that place can join or disturb; after that nobody connects to a "
                       "rank who has only listened.");
  EXPECT_EQ(std::count(zero.begin(), zero.end(), '\n'), 2) << zero;  // the sum and one line
  EXPECT_EQ(ranks[1].result(), "sum 3.000000\n");
}

TEST_F(Hosts, WhoCannotServeSaysNothingOfHowItsPlaceIsProtected) {
  const net::Fd holder = net::listen_tcp(at(host_, port_));
  Child zero([&] {
    static std::mutex mutex;
    static std::string lines;
    set_log_callback([](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex);
      lines += std::string(line) + "\n";
    });
    const Error error = thrown_by([&] {
      init_process_group({.init_method = "tcp://" + host_ + ":" + std::to_string(port_),
                          .rank = 0,
                          .world_size = 2});
    });
    const std::lock_guard lock(mutex);
    return lines + error.what();
  });
  const std::string text = zero.result();
  expect_has(text, " is taken by ");
  EXPECT_EQ(text.find("ranks meet at"), std::string::npos) << text;
}

TEST_F(Hosts, WhoDoesNotGoOnAfterTheMeetingIsNamed) {
  const Error error = told_in_time("did not go on", [](std::chrono::milliseconds time) {
    const std::shared_ptr<Store> store = make_memory_store();
    const std::jthread other([&] {
      try {
        meet(rank_of(1, 2, "", 0), {.timeout = 20s, .store = store});
      } catch (const Error&) {  // the time below was too short for the meeting
      }
    });
    store->get("world//1/rank/1", 20s);  // so that the init below completes the meeting
    init_process_group({.rank = 0, .world_size = 2, .timeout = time, .store = store});
  });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_EQ(error.context().culprits, std::vector<int>{1});
  expect_text(error, ": rank 1 came to the meeting and did not go on within ");
  expect_text(error, " s: stopped, or very slow. A longer timeout is given by");
}

/// Once this process has said where it hands over memory it can open nothing more.
struct TightStore : test::OwnStore {
  using OwnStore::OwnStore;
  void set(std::string_view key, std::string_view value, Timeout timeout) override {
    OwnStore::set(key, value, timeout);
    if (!key.ends_with("hand-over")) return;
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const net::Fd next(::dup(STDIN_FILENO));
    limit.rlim_cur = static_cast<rlim_t>(next.get());
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
};

TEST_F(Hosts, WhoCanTakeInNobodysMemoryIsNamedWithTheReason) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "a sanitizer needs descriptors of its own";
#endif
  const Child server([host = host_, port = port_]() -> std::string {
    make_tcp_store({.host = host, .port = port, .is_server = true, .timeout = 20s})
        ->get("the end", 60s);
    return {};
  });
  std::vector<Child> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([=, host = host_, port = port_]() -> std::string {
      std::shared_ptr<Store> store = make_tcp_store({.host = host, .port = port, .timeout = 20s});
      if (rank == 0) store = std::make_shared<TightStore>(store);
      init_process_group({.rank = rank, .world_size = 3, .timeout = 20s, .store = store});
      return "met";
    });
  }
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = ranks[static_cast<std::size_t>(rank)].result();
    expect_has(text, "ulimit -n");
    if (rank == 0) continue;
    expect_has(text, "could not join the world: cannot accept");
    expect_has(text, "(culprits: 0)");
  }
}

TEST_F(Hosts, AStoreThatDoesNotAnswerAfterTheMeetingIsSaidToBeRank0s) {
  const Identity identity = rank_of(0, 2, host_, port_);
  Child zero([=] {
    const Meeting meeting = meet(identity, {.timeout = 20s});
    ::raise(SIGSTOP);
    return std::string("went on");
  });
  test::await_claim(port_, 0);
  const auto begin = Clock::now();
  Child one([&] { return whole_rank(1, 2, host_, port_, {}, 5s); });
  const std::string text = one.result();
  EXPECT_LT(Clock::now() - begin, 12s) << "an answer that does not come is waited for once";
  expect_has(text, "kTimeout: init_process_group (rank 1) at hosts_test.cc:");
  expect_has(text, ": the store does not answer (at MASTER_ADDR=" + host_);
  expect_has(text, "the process that serves it is stopped or overloaded");
  expect_has(text, "(culprits: 0)");
}

TEST_F(Hosts, ProtectionWithoutASecretIsRefusedAndEncryptionByName) {
  for (const char* security : {"auth", "integrity", "encrypt"}) {
    for (int rank = 0; rank < 2; ++rank) {
      Child refused([=, host = host_, port = port_] {
        return whole_rank(rank, 2, host, port, {{"security", security}});
      });
      const std::string text = refused.result();
      const bool is_encrypt = std::string(security) == "encrypt";
      expect_has(text, is_encrypt ? "kUnsupported: " : "kInvalidArgument: ");
      expect_has(text, "ranks meet at MASTER_ADDR=" + host_);
      expect_has(text, "TUTTI_SECURITY=" + std::string(security));
      expect_has(text, is_encrypt ? "which this version does not do" : "set TUTTI_SECRET_FILE to");
    }
  }
  std::vector<Child> local;  // no port, nothing to protect
  for (int rank = 0; rank < 2; ++rank) {
    local.emplace_back([=, port = port_] {
      return whole_rank(rank, 2, "127.0.0.1", port, {{"security", "auth"}});
    });
  }
  for (Child& rank : local) EXPECT_EQ(rank.result(), "sum 3.000000\n");
}

TEST_F(Hosts, TheInitMethodSaysWhereAndWho) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([=, host = host_, port = port_] {
      for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
        ::unsetenv(name);
      }
      ProcessGroup world =
          init_process_group({.init_method = "tcp://" + host + ":" + std::to_string(port) +
                                             "?rank=" + std::to_string(rank) + "&world_size=2",
                              .timeout = 20s});
      std::vector<double> one = {1.0 + world.rank()};
      world.all_reduce(one);
      world.close();
      return "rank " + std::to_string(rank) + " sum " + std::to_string(one[0]);
    });
  }
  EXPECT_EQ(ranks[0].result(), "rank 0 sum 3.000000");
  EXPECT_EQ(ranks[1].result(), "rank 1 sum 3.000000");
}

std::string numbered_rank(const std::string& host, int port, int world_size) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  ProcessGroup world =
      init_process_group({.init_method = "tcp://" + host + ":" + std::to_string(port) +
                                         "?rank=auto&world_size=" + std::to_string(world_size),
                          .timeout = 20s});
  std::vector<double> one = {1.0};
  world.all_reduce(one);
  const std::string result = std::to_string(world.rank()) + " of " + std::to_string(one[0]);
  world.close();
  return result;
}

TEST_F(Hosts, NumbersAreGivenInTheOrderOfArrival) {
  for (const std::string& host : {host_, std::string("127.0.0.1")}) {
    for (int world = 0; world < 2; ++world) {  // of each world anew
      std::vector<Child> ranks;
      for (int i = 0; i < 4; ++i) {
        ranks.emplace_back([=, port = port_] { return numbered_rank(host, port, 4); });
      }
      std::set<std::string> results;
      for (Child& rank : ranks) results.insert(rank.result());
      EXPECT_EQ(results, (std::set<std::string>{"0 of 4.000000", "1 of 4.000000", "2 of 4.000000",
                                                "3 of 4.000000"}));
    }
  }
}

TEST_F(Hosts, RanksOfOneJobAreAllNumberedAlike) {
  const auto with_number = [&] {
    Identity identity = rank_of(0, 2, host_, port_);
    const std::string url = "tcp://" + host_ + ":" + std::to_string(port_);
    return Child([=] { return meet_and_greet(identity, {.timeout = 20s, .init_method = url}); });
  };
  const auto in_order = [&] { return Child([&] { return numbered_rank(host_, port_, 2); }); };
  for (const bool is_first_in_order : {false, true}) {
    Child first = is_first_in_order ? in_order() : with_number();
    test::await_listener(port_);
    Child second = is_first_in_order ? with_number() : in_order();
    const std::string text = second.result();
    expect_has(text, "kInvalidArgument: init");
    expect_has(text, is_first_in_order
                         ? " is given its number in the order of arrival (rank=auto), "
                           "and pid "
                         : " has a number of its own, and pid ");
    expect_has(text, "give all ranks rank=auto, or each its own number");
    EXPECT_EQ(first.result(200ms), "(still running)");
  }
}

TEST_F(Hosts, OneTooManyIsToldSoAndTheOthersMeet) {
  Child zero([&] { return numbered_rank(host_, port_, 3); });
  store::Connected connected;
  connect(&connected, net::Level::opportunistic, {.job = kInOrderOfArrival});
  connected.store->set("world//1/numbers", "one\nanother\n");  // about to claim theirs
  Child refused([&] { return numbered_rank(host_, port_, 3); });
  const std::string text = refused.result();
  expect_has(text, "kInvalidArgument: init_process_group at hosts_test.cc:");
  expect_has(text, ": 3 processes have come to tcp://" + host_);
  EXPECT_EQ(zero.result(500ms), "(still running)");
}

TEST_F(Hosts, ANumberGivenTwiceOrWithoutASizeIsRefused) {
  const std::string url = "tcp://" + host_ + ":29500?rank=auto";
  expect_text(thrown_by([&] { init_process_group({.init_method = url}); }),
              "rank=auto needs the world_size");
  const Error both =
      thrown_by([&] { init_process_group({.init_method = url, .rank = 1, .world_size = 2}); });
  expect_text(both, "rank is given twice: 1 among the options, auto in init_method '" + url + "'");
}

TEST_F(Hosts, AnOptionAndAnInitMethodThatDifferAreBothNamed) {
  const std::string url = "tcp://" + host_ + ":29500?rank=1&world_size=2";
  const Error rank = thrown_by([&] { init_process_group({.init_method = url, .rank = 0}); });
  EXPECT_EQ(rank.code(), ErrorCode::kInvalidArgument);
  expect_text(rank, "rank is given twice: 0 among the options, 1 in init_method '" + url + "'");
  const Error size = thrown_by([&] { init_process_group({.init_method = url, .world_size = 3}); });
  expect_text(size, "world_size is given twice: 3 among the options, 2 in init_method");
}

TEST_F(Hosts, RanksThatSayTheyAreOnTwoHostsComeAsFarAsTheirHost) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([=, host = host_, port = port_] {
      return whole_rank(rank, 2, host, port, {{"host_id", "host-" + std::to_string(rank)}});
    });
  }
  // They have met: whatever they say after that is of control::Host.
  for (Child& rank : ranks) {
    const std::string text = rank.result();
    EXPECT_TRUE(text.starts_with("kUnsupported: ") || text.starts_with("sum 3.0")) << text;
    if (text.starts_with("kUnsupported")) expect_has(text, "the ranks are on 2 hosts");
  }
}

// ---- cut off from the store ------------------------------------------------------------------

/// A rank 0 here, and a rank 1 that comes to it by a relay which cuts its connection.
struct CutOff : Hosts {
  /// What both ranks say in the end.
  std::vector<std::string> meet_with(const Cut& cut, int world_size = 2) {
    const int port = port_;
    Child zero = start(0, world_size);
    test::await_claim(port, 0);  // whom the relay calls is there, then
    Child one([=, host = host_] {
      const CuttingRelay relay(at(host, 0), at(host, port), cut);
      const Identity identity = rank_of(1, world_size, host, relay.address().port());
      const std::string said = meet_and_greet(identity, {.timeout = 20s});
      return fmt::format("{} after {}", said, relay.cuts());
    });
    return {zero.result(), one.result()};
  }
};

TEST_F(CutOff, BeforeItsClaimARankComesAgain) {
  for (const bool is_passed_on : {false, true}) {
    SCOPED_TRACE(is_passed_on);
    const auto said = meet_with({.at = "roster", .is_passed_on = is_passed_on});
    EXPECT_EQ(said[0], "met in round 1");
    EXPECT_EQ(said[1], "met in round 1 after 1");
  }
}

TEST_F(CutOff, ThreeTimesItComesAgain) {
  const auto said = meet_with({.at = "roster", .times = 3});
  EXPECT_EQ(said[1], "met in round 1 after 3");
  EXPECT_EQ(said[0], "met in round 1");
}

TEST_F(CutOff, WhereTheServerHasNotNoticedItWaitsUntilItHas) {
  // Until then the will of its connection before stands there.
  const auto said = meet_with({.at = "roster", .is_passed_on = true, .held_for = 700ms});
  EXPECT_EQ(said[0], "met in round 1");
  EXPECT_EQ(said[1], "met in round 1 after 1");
}

TEST_F(CutOff, AfterItsClaimAllAreToldOfIt) {
  // Rank 2 never comes: else all would be there where a cut is not noticed yet.
  const auto said = meet_with({.at = "world//1/size", .is_passed_on = true}, 3);
  expect_has(said[0], "rank 1 (pid ");
  expect_has(said[0],
             ") was lost before the world of 3 ranks was complete: its connection to the "
             "store where ranks meet has ended. ");
  expect_has(said[0], "(culprits: 1)");
}

TEST_F(CutOff, AnotherJobAtThePlaceIsNotJoined) {
  const int port = port_;
  Child zero = start(0, 2);
  test::await_listener(port);
  // Its rank 0 dies, and at once another job's is there.
  const auto meanwhile = [port, pid = zero.pid()] {
    ::kill(pid, SIGKILL);
    while (!net::has_ended(pid, 0)) std::this_thread::sleep_for(1ms);
    test::await_listener(port);
  };
  Child one([=, host = host_] {
    const CuttingRelay relay(at(host, 0), at(host, port), {.at = "roster", .meanwhile = meanwhile});
    const Identity identity = rank_of(1, 2, host, relay.address().port());
    return meet_and_greet(identity, {.timeout = 20s});
  });
  zero.result();
  Child zero_of_other = start(0, 2);
  expect_has(one.result(),
             "was lost before the world of 2 ranks was complete: our connection to "
             "its store has ended");
  Child one_of_other = start(1, 2);
  for (Child* child : {&zero_of_other, &one_of_other}) EXPECT_EQ(child->result(), "met in round 1");
}

// Real processes of several hosts, each with a network, pids and a name of its own.

struct InNamespaces : testing::Test {
  void SetUp() override {
    if (!spaces.why_not().empty()) GTEST_SKIP() << spaces.why_not();
  }
  Child start(int rank, int world_size, int host, const std::string& master,
              std::chrono::milliseconds timeout = 20s) const {
    return spaces.on_host(host, [=] {
      return meet_and_greet(rank_of(rank, world_size, master, 29500), {.timeout = timeout});
    });
  }
  /// Returns once these ranks have claimed their numbers, as the store on rank 0's host says.
  void await_claims(const std::vector<int>& ranks) const {
    Child looks = spaces.on_host(0, [=] {
      for (const int rank : ranks) test::await_claim(29500, rank);
      return std::string("here");
    });
    EXPECT_EQ(looks.result(), "here");
  }
  Namespaces spaces{3};
};

TEST_F(InNamespaces, RanksOfThreeHostsMeet) {
  for (const std::string& master : {Namespaces::address(0), Namespaces::address_v6(0)}) {
    std::vector<Child> ranks;
    for (const int rank : {4, 0, 2, 5, 1, 3}) ranks.push_back(start(rank, 6, rank % 3, master));
    for (Child& rank : ranks) EXPECT_EQ(rank.result(), "met in round 1");
  }
}

TEST_F(InNamespaces, ARankKilledOnAnotherHostIsNamedWithinASecond) {
  Child zero = start(0, 4, 0, Namespaces::address(0));
  Child one = start(1, 4, 1, Namespaces::address(0));
  Child two = start(2, 4, 2, Namespaces::address(0));
  await_claims({0, 1, 2});
  one.kill();  // and with it, as the parent of its pid namespace's first, the rank
  const auto begin = Clock::now();
  for (Child* child : {&zero, &two}) {
    const std::string text = child->result();
    expect_has(text, "kPeerLost: init: rank 1 (pid 1 (");
    expect_has(text, ") on host-1) was lost before the world of 4 ranks was complete");
    expect_has(text, "(culprits: 1)");
  }
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST_F(InNamespaces, ARankWithoutANumberThatIsCutOffKeepsTheOneThatItWasGiven) {
  const auto arrive = [this](int host, int at_host, int port) {
    return spaces.on_host(host, [=] {
      Identity identity = rank_of(0, 2, Namespaces::address(at_host), port);
      identity.is_rank_auto = true;
      return meet_and_greet(identity, {.timeout = 20s});
    });
  };
  const Child relay = spaces.on_host(2, [] {
    const CuttingRelay between(at(Namespaces::address(2), 29501), at(Namespaces::address(0), 29500),
                               {.at = "world//1/numbers", .is_passed_on = true});
    while (between.cuts() == 0) std::this_thread::sleep_for(1ms);
    for (;;) ::pause();
    return std::string();
  });
  Child zero = arrive(0, 0, 29500);
  Child one = arrive(1, 2, 29501);
  for (Child* child : {&zero, &one}) EXPECT_EQ(child->result(), "met in round 1");
}

TEST_F(InNamespaces, Rank0KilledIsNamedByTheOthers) {
  Child zero = start(0, 3, 0, Namespaces::address(0));
  await_claims({0});  // rank 1 knows of the process what it has read before it claims its number
  Child one = start(1, 3, 1, Namespaces::address(0));
  await_claims({1});
  zero.kill();
  const std::string text = one.result();
  expect_has(text, "kPeerLost: init: rank 0 (pid 1 (");
  expect_has(text,
             ") on host-0, at 10.77.0.1:29500) was lost before the world of 3 ranks was "
             "complete: our connection to its store has ended. ");
  expect_has(text, "(culprits: 0)");
}

TEST_F(InNamespaces, AHostThatIsCutOffIsNamedOnBothSides) {
  Child zero = start(0, 3, 0, Namespaces::address(0), 60s);
  Child one = start(1, 3, 1, Namespaces::address(0), 60s);
  await_claims({0, 1});
  spaces.cut(1);
  const auto begin = Clock::now();
  for (auto* const child : {&one, &zero}) {
    const std::string text = child->result();
    expect_has(text, "kPeerLost: init: host-1, where rank 1 (pid 1 (");
    expect_has(text,
               ")) runs, and rank 0's host at 10.77.0.1:29500 do not reach each other (nothing was "
               "acknowledged for 2 s): the network or one of the two hosts is down. Start the job "
               "again when it is up (culprits: ");
    expect_has(text, child == &one ? "(culprits: 0)" : "(culprits: 1)");
  }
  EXPECT_LT(Clock::now() - begin, 15s);
}

// Its kernel acknowledges, whichever side it is on.
TEST_F(InNamespaces, ARankThatIsStoppedIsNotCutOff) {
  Child zero = start(0, 3, 0, Namespaces::address(0), 60s);
  Child one = start(1, 3, 1, Namespaces::address(0), 60s);
  await_claims({0, 1});
  for (const auto& [stopped, other] : {std::pair(&zero, &one), std::pair(&one, &zero)}) {
    const pid_t pid = Namespaces::pid_inside(*stopped);
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    EXPECT_EQ(other->result(3500ms), "(still running)");
    ::kill(pid, SIGCONT);
  }
  Child two = start(2, 3, 2, Namespaces::address(0));
  for (Child* child : {&zero, &one, &two}) EXPECT_EQ(child->result(), "met in round 1");
}

TEST_F(InNamespaces, ARankThatGivesUpTellsTheOthers) {
  Child zero = start(0, 3, 0, Namespaces::address(0));
  Child one = start(1, 3, 1, Namespaces::address(0));
  await_claims({0, 1});
  Child late = start(1, 3, 2, Namespaces::address(0));
  const std::string text = late.result();
  expect_has(text, "kInvalidArgument: rank 1 is already present at MASTER_ADDR=10.77.0.1");
  expect_has(text, ") on host-1 is meeting there");
  Child two = start(2, 4, 2, Namespaces::address(0));
  for (Child* child : {&zero, &one, &two}) {
    const std::string disagreed = child->result();
    expect_has(disagreed, "ranks disagree about the size of the world");
    expect_has(disagreed, "on host-2) says 4");
  }
}

TEST_F(InNamespaces, WhereRank0SaysAnotherSizeThoseOnTheirWayAreToldToo) {
  Child zero = start(0, 2, 0, Namespaces::address(0));
  Child one = start(1, 3, 1, Namespaces::address(0));
  const std::string told = one.result();
  Child two = start(2, 3, 2, Namespaces::address(0));
  for (const std::string& text : {told, two.result(), zero.result()}) {
    expect_has(text, "ranks disagree about the size of the world: rank ");
    expect_has(text, "on host-0) says 2");
    expect_has(text, "on host-1) says 3");
    expect_has(text, "). Give all ranks the same WORLD_SIZE (culprits: 0, 1)");
  }
}

TEST_F(InNamespaces, ASecondRank0OnAnotherHostIsSaidToBeThat) {
  Child zero = start(0, 3, 0, Namespaces::address(0), 8s);
  Child one = start(1, 3, 1, Namespaces::address(0), 8s);
  await_claims({0, 1});
  Child second = start(0, 3, 2, Namespaces::address(0));
  const std::string refused = second.result();
  expect_has(refused, "kInvalidArgument: rank 0 is already present at MASTER_ADDR=10.77.0.1");
  expect_has(refused, ") on host-0 is meeting there");
  for (Child* child : {&zero, &one}) {
    const std::string text = child->result();
    expect_has(text, "1 of 3 ranks missing: 2 (at ");
    expect_has(text, "; a process was turned away: pid ");
    expect_has(text, ") on host-2 calls itself rank 0, as pid ");
  }
}

TEST_F(InNamespaces, NumbersAreGivenToAllHosts) {
  std::vector<Child> ranks;
  for (const int host : {1, 2, 0, 0}) {
    ranks.push_back(spaces.on_host(host, [] {
      Identity identity = rank_of(0, 4, "", 0);
      identity.is_rank_auto = true;
      const Meeting meeting =
          meet(identity,
               {.timeout = 20s, .init_method = "tcp://10.77.0.1:29500?rank=auto&world_size=4"});
      test::greet(meeting, 4);
      return std::to_string(meeting.rank);
    }));
  }
  std::vector<std::string> results;
  for (Child& rank : ranks) results.push_back(rank.result());
  EXPECT_TRUE(results[2] == "0" || results[3] == "0") << "rank 0 is on the host of the address";
  std::sort(results.begin(), results.end());
  EXPECT_EQ(results, (std::vector<std::string>{"0", "1", "2", "3"}));
}

TEST_F(InNamespaces, InTheProgramsTcpStoreADeathIsSeen) {
  const auto start_in_store = [&](int rank) {
    return spaces.on_host(rank, [=] {
      MeetingOptions options{.timeout = 20s};
      options.store =
          make_tcp_store({.host = Namespaces::address(0), .is_server = rank == 0, .timeout = 20s});
      return meet_and_greet(rank_of(rank, 3, "", 0), options);
    });
  };
  Child zero = start_in_store(0);
  Child one = start_in_store(1);
  Child looks = spaces.on_host(2, [] {
    const auto store = make_tcp_store({.host = Namespaces::address(0), .timeout = 20s});
    for (const int rank : {0, 1}) store->get("world//1/rank/" + std::to_string(rank), 20s);
    return std::string("here");
  });
  EXPECT_EQ(looks.result(), "here");
  one.kill();
  const std::string text = zero.result();
  expect_has(text, "kPeerLost: init: rank 1 (pid 1 (");
  expect_has(text, ") on host-1) was lost before the world of 3 ranks was complete");
}

struct WholeRanks : InNamespaces {
  /// Of a world of two, each on a host of its own.
  Child start_whole(int rank, const Settings& settings,
                    std::chrono::milliseconds timeout = 20s) const {
    return spaces.on_host(rank, [=] {
      return whole_rank(rank, 2, Namespaces::address(0), 29500, settings, timeout);
    });
  }
};

TEST_F(WholeRanks, AtEveryLevelTwoHostsMakeAWorld) {
  const SecretFile secret("a secret that nobody guesses");
  for (const char* level : {"none", "opportunistic", "auth", "integrity"}) {
    const Settings settings = {{"security", level}, {"secret_file", secret.path()}};
    Child zero = start_whole(0, settings), one = start_whole(1, settings);
    const std::string told = zero.result();
    expect_has(told, "sum 3.0");
    const bool warns = std::string(level) == "none" || std::string(level) == "opportunistic";
    EXPECT_EQ(told.find("security=" + std::string(level)) != std::string::npos, warns) << told;
    EXPECT_EQ(one.result(), "sum 3.000000\n");
  }
}

TEST_F(WholeRanks, ARankWithAnotherSecretOrLevelIsTurnedAwayAndTheRightOneComesIn) {
  const SecretFile secret("a secret that nobody guesses"), another("one that differs from that");
  const Settings right = {{"security", "auth"}, {"secret_file", secret.path()}};
  Child zero = start_whole(0, right);
  Child wrong = start_whole(1, {{"security", "auth"}, {"secret_file", another.path()}});
  const std::string text = wrong.result();
  expect_has(text, "kUnauthenticated: ");
  expect_has(text, "rank 1 on host-1 and the store at 10.77.0.1:29500 do not have the same secret");
  expect_has(text, "TUTTI_SECRET_FILE (that of rank 1 on host-1 is " + another.path() + ")");
  Child low = start_whole(1, {{"security", "none"}});
  expect_has(low.result(),
             "rank 1 on host-1 has security=none, the store at 10.77.0.1:29500 has "
             "security=auth");
  Child one = start_whole(1, right);
  const std::string told = zero.result();
  expect_has(told, "sum 3.0");
  expect_has(told, "the store of this rank has turned a client away: the store and a process at ");
  expect_has(told, ", as it says rank 1, do not have the same secret");
  expect_has(told, "TUTTI_SECRET_FILE (that of the store is " + secret.path() + ")");
  expect_has(told, "has security=none");
  EXPECT_EQ(one.result(), "sum 3.000000\n");
}

TEST_F(WholeRanks, HostsOfOneIdMustShareTheirNetwork) {
  Child zero = start_whole(0, {{"host_id", "rack"}}), one = start_whole(1, {{"host_id", "rack"}});
  for (Child* child : {&zero, &one})
    expect_has(child->result(),
               "ranks 0 (on host-0) and 1 (on host-1) have the same TUTTI_HOST_ID, \"rack\"");
}

TEST_F(WholeRanks, WhoWaitsForARankThatWasTurnedAwayIsToldWhy) {
  const SecretFile secret("a secret that nobody guesses"), another("one that differs from that");
  Child zero = start_whole(0, {{"security", "auth"}, {"secret_file", secret.path()}}, 6s);
  Child wrong = start_whole(1, {{"security", "auth"}, {"secret_file", another.path()}});
  expect_has(wrong.result(), "kUnauthenticated: ");
  const std::string text = zero.result();
  expect_has(text, "kTimeout: ");
  expect_has(text, "1 of 2 ranks missing: 1 (at ");
  expect_has(text, "; a process was turned away there: the store and a process at 10.77.0.2:");
  expect_has(text, ", as it says rank 1, do not have the same secret");
}

TEST_F(InNamespaces, WhoWaitsForARankIsToldThatAnotherOneHasItsProcess) {
  Child zero = start(0, 3, 0, Namespaces::address(0), 12s);
  Child one = start(1, 3, 1, Namespaces::address(0), 12s);
  await_claims({0, 1});
  Child late = start(1, 3, 2, Namespaces::address(0));
  expect_has(late.result(), "kInvalidArgument: rank 1 is already present at ");
  const std::string text = zero.result();
  expect_has(text, "1 of 3 ranks missing: 2 (at ");
  expect_has(text, "; a process was turned away: pid ");
  expect_has(text, ") on host-2 calls itself rank 1, as pid ");
  expect_has(text, ") on host-1 does. ");
}

TEST_F(WholeRanks, InterfaceAndPortsAreAsTheyWereChosen) {
  const Settings chosen = {{"socket_ifname", "=eth0"}, {"port_range", "31000-31003"}};
  Child zero = start_whole(0, chosen), one = start_whole(1, chosen);
  expect_has(zero.result(), "sum 3.0");
  EXPECT_EQ(one.result(), "sum 3.000000\n");
  for (int rank = 0; rank < 2; ++rank) {
    Child other = start_whole(1 - rank, {});
    Child refused = start_whole(rank, {{"socket_ifname", "wlan"}});
    const std::string text = refused.result();
    expect_has(text, "kInvalidArgument: ");
    expect_has(text,
               "socket_ifname=wlan leaves no interface: this host has lo (127.0.0.1), eth0 (");
    expect_has(other.result(), "could not join the world: socket_ifname=wlan leaves no interface");
  }
}

TEST_F(WholeRanks, WhatARankLacksBeforeItMeetsIsToldToTheOthers) {
  const std::vector<std::pair<Settings, std::string>> lacks = {
      {{{"backend", "glooo"}}, "there is no backend \"glooo\""},
      {{{"port_range", "31003-31000"}}, "port_range: the first port of \"31003-31000\" is larger"}};
  for (const auto& [settings, why] : lacks) {
    for (int rank = 0; rank < 2; ++rank) {
      Child other = start_whole(1 - rank, {}, 60s);
      Child refused = start_whole(rank, settings, 60s);
      const std::string text = refused.result();
      expect_has(text, "kInvalidArgument: init_process_group (rank " + std::to_string(rank) + ")");
      expect_has(text, ": " + why);
      const std::string told = other.result();
      expect_has(told, ") on host-" + std::to_string(rank) + ") could not join the world: " + why);
      expect_has(told, "(culprits: " + std::to_string(rank) + ")");
    }
  }
}

TEST_F(InNamespaces, Rank0AtItsLoopbackIsMissedWithAdvice) {
  Child zero = start(0, 2, 0, "127.0.0.1", 3s);
  Child one = start(1, 2, 1, Namespaces::address(0), 3s);
  expect_has(one.result(), "(10.77.0.1:29500: Connection refused)");
  expect_has(zero.result(), "MASTER_ADDR=127.0.0.1 is this host alone");
}

}  // namespace
}  // namespace tutti::rendezvous
