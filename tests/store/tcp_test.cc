// The store over TCP that a program makes: who serves it, who comes, and what is wrong.
#include "net/tcp.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <vector>

#include "net/port_holder.h"
#include "net/process_info.h"
#include "ranks.h"
#include "store/client.h"
#include "store/server.h"
#include "stores.h"
#include "tutti/log.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

net::TcpAddress address_of(int port) {
  return *net::TcpAddress::parse("127.0.0.1:" + std::to_string(port));
}

TEST(TcpStore, WhoServesItWaitsForAll) {
  const net::HeldPort held = net::hold_port(0);
  const int port = held.port;
  std::vector<std::thread> threads;
  for (const int rank : {2, 0, 1}) {
    threads.emplace_back([=] {
      const auto store = make_tcp_store({.host = "127.0.0.1",
                                         .port = port,
                                         .is_server = rank == 0,
                                         .world_size = 3,
                                         .timeout = 20s});
      store->set(std::to_string(rank), "here");
      store->barrier("all", 3, 20s);
      for (const char* key : {"0", "1", "2"}) EXPECT_EQ(store->get(key, 20s), "here");
      if (rank != 0) return store->set("gone/" + std::to_string(rank), "", 20s);
      const std::vector<std::string> others = {"gone/1", "gone/2"};
      store->wait(others, 20s);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TcpStore, WhoHasComeAndGoneCounts) {
  const net::HeldPort held = net::hold_port(0);
  const TcpStoreOptions client{.host = "127.0.0.1", .port = held.port, .timeout = 20s};
  std::shared_ptr<Store> served;
  std::thread server([&] {
    TcpStoreOptions options = client;
    options.is_server = true;
    options.world_size = 3;
    served = make_tcp_store(options);
  });
  make_tcp_store(client)->set("first", "was here");
  make_tcp_store(client);
  server.join();
  EXPECT_EQ(served->get("first", 20s), "was here");
}

TEST(TcpStore, WhoComesTwiceCountsOnce) {
  const net::HeldPort held = net::hold_port(0);
  const net::TcpAddress at = address_of(held.port);
  const store::Server server({.tcp_listener = net::listen_tcp(at), .awaited = 2});
  std::string why;
  for (const std::uint64_t client : {7, 7, 0, 8, 9}) {
    const auto connected = store::try_connect_tcp_store(std::span(&at, 1), {.world = client}, {},
                                                        Deadline::after(20s), &why);
    ASSERT_TRUE(connected) << why;
    connected->store->num_keys();  // answered behind the welcome
    const std::size_t wanted = client < 8 ? 1 : 2;
    EXPECT_EQ(server.came_count(), wanted) << client;
  }
}

/// Until the timeout it would be in vain.
TEST(TcpStore, APortThatThisProcessServesIsRefusedAtOnce) {
  const net::HeldPort held = net::hold_port(0);
  const TcpStoreOptions options{
      .host = "127.0.0.1", .port = held.port, .is_server = true, .timeout = 60s};
  const auto store = make_tcp_store(options);
  const auto begin = Clock::now();
  const Error error = thrown_by([&] { make_tcp_store(options); });
  EXPECT_LT(Clock::now() - begin, 20s);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "is taken by this process itself, " + net::describe_process(::getpid()));
}

TEST(TcpStore, ARankThatWouldMeetOthersIsTurnedAway) {
  const net::HeldPort held = net::hold_port(0);
  const auto store = make_tcp_store({.host = "127.0.0.1", .port = held.port, .is_server = true});
  const net::TcpAddress at = address_of(held.port);
  std::string why;
  const Error error = thrown_by([&] {
    store::try_connect_tcp_store(std::span(&at, 1), {.rank = 1, .world_size = 2},
                                 {.level = net::Level::opportunistic}, Deadline::after(20s), &why);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "rank 1 does not meet the others at " + at.text() + ": " +
                         net::describe_process(::getpid()) +
                         " serves a store of the program there (make_tcp_store). Give that store "
                         "to all ranks (InitOptions::store), or another port");
}

TEST(TcpStore, ATimeoutSaysWhoHasNotCome) {
  const net::HeldPort held = net::hold_port(0);
  const int port = held.port;
  const Error server = told_in_time("1 of 3", [&](Store::Timeout time) {
    make_tcp_store(
        {.host = "127.0.0.1", .port = port, .is_server = true, .world_size = 3, .timeout = time});
  });
  EXPECT_EQ(server.code(), ErrorCode::kTimeout);
  expect_text(server, "1 of 3 have connected to 127.0.0.1:" + std::to_string(port));
  const Error client = told_in_time("Connection refused", [&](Store::Timeout time) {
    make_tcp_store({.host = "127.0.0.1", .port = port, .timeout = time});
  });
  EXPECT_EQ(client.code(), ErrorCode::kTimeout);
  expect_text(client, "nobody serves it at 127.0.0.1:" + std::to_string(port));
  expect_text(client, "Connection refused");
}

TEST(TcpStore, ThePortIsFreeOnceTheServerHasGone) {
  const net::HeldPort held = net::hold_port(0);
  const int port = held.port;
  for (int round = 0; round < 3; ++round) {
    auto server = make_tcp_store({.host = "127.0.0.1", .port = port, .is_server = true});
    const auto client = make_tcp_store({.host = "127.0.0.1", .port = port});
    client->set("k", "v");
    server.reset();
    const Error gone = thrown_by([&] { client->get("k"); });
    EXPECT_EQ(gone.code(), ErrorCode::kSystem);
    expect_text(gone, "of make_tcp_store the one with is_server");
    expect_text(gone, "See why, then start all that use it again");
  }
}

TEST(TcpStore, WhatCannotBeIsRefusedWithTheValue) {
  const auto refused = [](const TcpStoreOptions& options) {
    const Error error = thrown_by([&] { make_tcp_store(options); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error;
  };
  expect_text(refused({}), "no host is given");
  expect_text(refused({.host = "127.0.0.1", .port = 0}), "port 0 is out of range");
  expect_text(refused({.host = "127.0.0.1", .port = 65536}), "port 65536 is out of range");
  expect_text(refused({.host = "127.0.0.1", .world_size = -1}), "a world_size of -1");
  expect_text(refused({.host = "127.0.0.1", .timeout = -5ms}), "a timeout of -5 ms");
  expect_text(refused({.host = "0.0.0.0", .is_server = true}), "is all addresses of a host");
  expect_text(refused({.host = "198.51.100.7", .is_server = true}),
              "198.51.100.7 is not an address of this host");
  const net::Fd holder = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  const int port = net::TcpAddress::local(holder.get()).port();
  expect_text(refused({.host = "127.0.0.1", .port = port, .is_server = true, .timeout = 100ms}),
              "port " + std::to_string(port) + " of 127.0.0.1 is taken by " +
                  "this process itself, " + net::describe_process(::getpid()) +
                  ": give another port to all who use it");
}

TEST(TcpStore, ANameThatDoesNotExistIsNamed) {
  const Error error =
      thrown_by([&] { make_tcp_store({.host = "no-such-host.invalid", .timeout = 20s}); });
  expect_text(error, "no-such-host.invalid");
}

TEST(TcpStore, ProtectionWithoutASecretIsRefusedAndEncryptionByName) {
  for (const char* security : {"auth", "integrity", "encrypt"}) {
    ::setenv("TUTTI_SECURITY", security, 1);
    for (const bool is_server : {true, false}) {
      const Error error = thrown_by([&] {
        const net::HeldPort held = net::hold_port(0);
        make_tcp_store({.host = "127.0.0.1", .port = held.port, .is_server = is_server});
      });
      const bool is_encrypt = std::string(security) == "encrypt";
      EXPECT_EQ(error.code(), is_encrypt ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument);
      expect_text(error, "make_tcp_store: the store at 127.0.0.1:");
      expect_text(error, std::string("TUTTI_SECURITY=") + security);
      if (!is_encrypt) expect_text(error, "set TUTTI_SECRET_FILE");
    }
    ::unsetenv("TUTTI_SECURITY");
  }
}

}  // namespace
}  // namespace tutti
