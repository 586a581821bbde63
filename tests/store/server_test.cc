// What the server does with clients that misbehave, and clients with a server that does.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <new>
#include <optional>
#include <random>
#include <thread>

#include "forks.h"
#include "net/process_info.h"
#include "ranks.h"
#include "sanitized.h"
#include "stores.h"
#include "tutti/log.h"

#ifndef TUTTI_SANITIZED
namespace {
/// While it is set there is memory only for threads that have set the other.
std::atomic<bool> is_memory_lacking{false};
thread_local bool has_memory = false;
}  // namespace

// Not inlined: g++ would see malloc meet delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  const bool lacks = is_memory_lacking.load() && !has_memory;
  void* const memory = lacks ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

using test::hello_bytes;
using test::is_closed_by_server;
using test::soon;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(StoreServer, GarbageClosesThatConnectionAndNoOther) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  store->set("job", "runs");
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    Deadline deadline = soon();
    const net::Fd socket = net::connect(under_test.address(), deadline);
    std::string bytes = round % 2 == 0 ? "" : hello_bytes();
    const std::size_t garbage = 20 + random() % 5000;
    for (std::size_t i = 0; i < garbage; ++i) bytes.push_back(static_cast<char>(random()));
    // A header that announces more than 64 MiB is malformed, whatever follows.
    bytes[bytes.size() - garbage + 3] = '\x7f';
    net::send_all(socket.get(), bytes_of(bytes), deadline);  // or until it is closed
    EXPECT_TRUE(is_closed_by_server(socket)) << "round " << round;
    EXPECT_EQ(store->get("job"), "runs");
  }
}

TEST(StoreServer, MalformedCallsCloseTheConnection) {
  test::ServerUnderTest under_test;
  const auto frame = [](std::uint32_t type, std::string body) {
    std::string bytes = hello_bytes();
    net::append_frame(&bytes, {type, 1, std::move(body)});
    return bytes;
  };
  std::string huge_list;
  net::ByteWriter(&huge_list).u32(0xffffffff);
  std::string huge_key;
  net::ByteWriter(&huge_key).u32(1);
  net::ByteWriter(&huge_key).u32(0x7fffffff);
  const std::string good = store::encode({store::Command::num_keys}, 1).body;
  for (const std::string& bytes :
       {frame(0, good), frame(99, good), frame(0xffffffff, good), frame(2, ""), frame(2, huge_list),
        frame(2, huge_key), frame(9, good + "x"), frame(store::kFrameCancel, "x"),
        frame(store::kFrameAnswer, good)}) {
    Deadline deadline = soon();
    const net::Fd socket = net::connect(under_test.address(), deadline);
    net::send_all(socket.get(), bytes_of(bytes), deadline);  // the server closes what is slow
    EXPECT_TRUE(is_closed_by_server(socket));
  }
  under_test.at(0)->set("still", "here");
}

TEST(StoreServer, AnEndInTheMiddleOfAFrameIsHarmless) {
  test::ServerUnderTest under_test;
  std::string bytes = hello_bytes();
  net::append_frame(&bytes, store::encode(store::Call{store::Command::set, {"k"}, {"v"}}, 1));
  for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
    Deadline deadline = soon();
    const net::Fd socket = net::connect(under_test.address(), deadline);
    net::send_all(socket.get(), bytes_of(bytes.substr(0, cut)), deadline);
  }
  EXPECT_EQ(under_test.at(0)->try_get("k"), std::nullopt);
}

// Its thread sleeps for an hour unless it hears that it is to stop, at whatever point of its loop
// it is.
TEST(StoreServer, StopsAtAnyPointOfItsLoop) {
  for (int round = 0; round < 3000; ++round) {
    store::Server server({});
    const auto busy_until = Clock::now() + std::chrono::microseconds(round % 100);
    do {
      server.fail(Error(ErrorCode::kAborted, "the job ends"));
    } while (Clock::now() < busy_until);
  }
}

#ifndef TUTTI_SANITIZED
TEST(StoreServer, WithoutMemoryItTellsThoseWhoWait) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  const auto other = under_test.at(1);
  testing::internal::CaptureStderr();
  has_memory = true;
  std::thread waiter([&] {
    has_memory = true;
    const Error error = thrown_by([&] { other->get("never", 40s); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    expect_text(error, " is gone (it closed the connection)");
  });
  is_memory_lacking = true;
  thrown_by([&] { store->get("k", 40s); });  // it cannot read that, either
  waiter.join();
  // Either's connection may have ended at once, as the server could not read from it.
  for (Deadline deadline = soon(); net::try_connect(under_test.address(), deadline);) {
    net::pause(10ms, deadline);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the store where ranks meet lacks something"), std::string::npos) << said;
  EXPECT_NE(said.find("can serve nobody and has closed all connections"), std::string::npos)
      << said;
  under_test.server().stop_listening();
  under_test.stop();
  is_memory_lacking = false;
  has_memory = false;
}
#endif

TEST(StoreServer, WhoSaysNothingIsDroppedAfterTwoSeconds) {
  test::ServerUnderTest under_test;
  Deadline deadline = soon();
  const auto begin = Clock::now();  // it may be accepted before connect has returned
  const net::Fd silent = net::connect(under_test.address(), deadline);
  EXPECT_TRUE(is_closed_by_server(silent));
  EXPECT_GE(Clock::now() - begin, 1900ms);
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST(StoreServer, IdleConnectionsDoNotKeepOthersOut) {
  test::ServerUnderTest under_test;
  std::vector<net::Fd> idle;
  for (int i = 0; i < 600; ++i) {
    Deadline deadline = soon();
    idle.push_back(net::connect(under_test.address(), deadline));
  }
  under_test.at(0)->set("k", "v");
  EXPECT_EQ(under_test.at(1)->get("k"), "v");
  int closed = 0;
  for (const net::Fd& socket : idle) {
    std::array<std::byte, 1> byte;
    std::size_t moved = 0;
    closed += net::receive_some(socket.get(), byte, &moved) == net::IoResult::closed ? 1 : 0;
  }
  EXPECT_GE(closed, 600 - static_cast<int>(store::kMaxUngreeted));
}

TEST(StoreServer, AnotherVersionIsTold) {
  test::ServerUnderTest under_test;
  const Error error = thrown_by([&] {
    store::connect_store(under_test.address(), {.version = store::kProtocolVersion + 1}, soon());
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  expect_text(error, "version");
}

TEST(StoreServer, TheHookAdmitsOrRefuses) {
  const std::string address = net::random_address("tutti-test");
  net::Peer seen;
  store::Server server({.listener = net::listen(address),
                        .admit =
                            [&](const store::Hello& hello, const net::Peer& peer) {
                              seen = peer;
                              return hello.job == 7
                                         ? std::nullopt
                                         : std::optional(
                                               Error(ErrorCode::kInvalidArgument, "not this job"));
                            },
                        .descriptor = STDERR_FILENO});
  const store::Connected good = store::connect_store(address, {.job = 7}, soon());
  good.store->set("k", "v");
  EXPECT_TRUE(good.descriptor);
  EXPECT_EQ(good.server.pid, ::getpid());
  EXPECT_EQ(seen.pid, ::getpid());
  EXPECT_EQ(server.client_count(), 1u);
  const Error error = thrown_by([&] { store::connect_store(address, {.job = 8}, soon()); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "not this job");
}

TEST(StoreServer, StopsListeningAndKeepsItsClients) {
  test::ServerUnderTest under_test;
  under_test.at(0)->set("k", "v");
  under_test.server().stop_listening();
  const Error error = thrown_by([&] { store::connect_store(under_test.address(), {}, soon()); });
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  EXPECT_EQ(under_test.at(0)->get("k"), "v");
  EXPECT_TRUE(net::try_listen(under_test.address()).has_value());  // free for the next job
}

TEST(StoreServer, AWillIsExecutedOnceItsClientHasGone) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  store->set("claim", "mine");
  const auto leave = [&](const store::Will& will) {
    auto connected = store::connect_store(under_test.address(), {}, soon());
    connected.remote->leave_will(will, 20s);
    connected.store.reset();
    while (under_test.server().client_count() > 1) std::this_thread::yield();  // has gone
  };
  const store::Will good{"claim", "mine", {"failure", "verdict"}, "lost"};
  leave({"claim", "another's", {"failure", "verdict"}, "of another claim"});
  leave({"no claim", "", {"failure", "verdict"}, "of no claim"});
  {
    const auto connected = store::connect_store(under_test.address(), {}, soon());
    connected.remote->leave_will(good, 20s);
    connected.remote->take_back_will(20s);
  }
  leave(good);
  EXPECT_EQ(store->get("failure", 20s), "lost");  // whoever waits for it is woken
  EXPECT_EQ(store->get("verdict"), "lost");
  leave({"claim", "mine", {"failure", "later"}, "a second loss"});
  store->erase("failure");
  store->set("verdict", "ok");
  leave(good);
  EXPECT_EQ(store->get("failure", 20s), "lost");
  EXPECT_EQ(store->get("verdict"), "ok");
  EXPECT_EQ(store->try_get("later"), std::nullopt);  // the first loss counted
}

TEST(StoreServer, AMalformedWillIsRefused) {
  test::ServerUnderTest under_test;
  const auto connected = store::connect_store(under_test.address(), {}, soon());
  EXPECT_EQ(thrown_by([&] {
              connected.remote->leave_will({"claim", "", {}, ""}, 20s);
            }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] {
              connected.remote->leave_will({"claim", "", {""}, ""}, 20s);
            }).code(),
            ErrorCode::kInvalidArgument);
  under_test.at(0)->set("still", "here");
}

TEST(StoreServer, WillsAreVoidWhenTheServerEnds) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  store->set("claim", "mine");
  const auto connected = store::connect_store(under_test.address(), {}, soon());
  connected.remote->leave_will({"claim", "mine", {"failure"}, "lost"}, 20s);
  std::thread other([&] {
    EXPECT_EQ(thrown_by([&] { store->get("failure", 20s); }).code(), ErrorCode::kSystem);
  });
  under_test.stop();
  other.join();
}

TEST(StoreServer, ServesALocalSocketAndTcpAtOnce) {
  const std::string address = net::random_address("tutti-test");
  net::Fd tcp = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  const std::vector<net::TcpAddress> addresses = {net::TcpAddress::local(tcp.get())};
  std::vector<net::Peer> seen;
  store::Server server({.listener = net::listen(address),
                        .tcp_listener = std::move(tcp),
                        .admit =
                            [&](const store::Hello&, const net::Peer& peer) {
                              seen.push_back(peer);
                              return std::optional<Error>();
                            },
                        .descriptor = STDERR_FILENO});
  std::string why;
  const auto near = store::connect_store(address, {}, soon());
  std::optional<store::Connected> far;
  for (const auto end = Clock::now() + 20s; !far && Clock::now() < end;)
    far = store::try_connect_tcp_store(addresses, {}, {}, soon(), &why);
  ASSERT_TRUE(far) << why;
  near.store->set("k", "v");
  EXPECT_EQ(far->store->get("k"), "v");
  EXPECT_TRUE(near.descriptor);
  EXPECT_FALSE(far->descriptor);  // cannot travel
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].pid, ::getpid());
  EXPECT_EQ(seen[1].pid, 0);
  EXPECT_TRUE(seen[1].address.starts_with("127.0.0.1:"));
  EXPECT_FALSE(net::is_trusted(seen[1]));
  server.stop_listening();
  EXPECT_FALSE(store::try_connect_tcp_store(addresses, {}, {}, soon(), &why));
  expect_text(Error(ErrorCode::kSystem, why), addresses[0].text() + ": Connection refused");
  EXPECT_EQ(far->store->get("k"), "v");
}

net::Security secured(net::Level level, const char* secret) {
  return {.level = level, .secret = net::derive({}, {}, secret)};
}

/// A server over TCP alone.
struct Guarded {
  explicit Guarded(const net::Security& security) {
    net::Fd tcp = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
    addresses = {net::TcpAddress::local(tcp.get())};
    server.emplace(store::ServerOptions{.tcp_listener = std::move(tcp), .security = security});
  }
  std::optional<store::Connected> connect(const net::Security& security) {
    std::string why;
    Deadline deadline = soon();
    for (;;) {  // one that is slow is dropped, or gives up
      auto made = store::try_connect_tcp_store(addresses, {.rank = 1}, security, soon(), &why);
      if (made || net::pause(20ms, deadline) == net::PollResult::expired) return made;
    }
  }
  std::vector<net::TcpAddress> addresses;
  std::optional<store::Server> server;
};

TEST(StoreServer, AtEveryLevelWhoHasTheSecretIsServed) {
  for (const net::Level level :
       {net::Level::none, net::Level::opportunistic, net::Level::auth, net::Level::integrity}) {
    Guarded guarded(secured(level, "secret"));
    const auto one = guarded.connect(secured(level, "secret"));
    const auto other = guarded.connect(secured(level, "secret"));
    ASSERT_TRUE(one && other);
    const std::string large(1 << 20, 'x');
    std::thread setter([&] { other->store->set("later", large); });
    EXPECT_EQ(one->store->get("later", 20s), large);
    setter.join();
    one->store->set("k", "v");
    EXPECT_EQ(other->store->get("k"), "v");
    EXPECT_EQ(thrown_by([&] { one->store->get("never", 50ms); }).code(), ErrorCode::kTimeout);
  }
}

/// Between one client and the server; changes a bit of the next bytes that go one way.
class Relay {
 public:
  explicit Relay(const net::TcpAddress& server)
      : listener_(net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"))),
        address_(net::TcpAddress::local(listener_.get())),
        thread_([this, server] { run(server); }) {}
  ~Relay() {
    end_.signal();
    thread_.join();
  }
  const net::TcpAddress& address() const { return address_; }
  void strike(bool to_server) { (to_server ? strikes_up_ : strikes_down_) = true; }

 private:
  void run(const net::TcpAddress& server) {
    Deadline never;
    if (net::poll_readable(listener_.get(), never, {.wakeup = &end_}) != net::PollResult::ready) {
      return;
    }
    const net::Fd client = net::accept_tcp_peer(listener_.get()).socket;
    Deadline deadline = soon();
    const net::Fd upward = net::connect_tcp(server, deadline);
    for (;;) {
      std::array<net::Watch, 2> watches{net::Watch{.fd = client.get(), .want_read = true},
                                        net::Watch{.fd = upward.get(), .want_read = true}};
      if (net::poll_any(watches, never, {.wakeup = &end_}) != net::PollResult::ready) return;
      if (watches[0].readable && !pass(client, upward, strikes_up_)) return;
      if (watches[1].readable && !pass(upward, client, strikes_down_)) return;
    }
  }
  static bool pass(const net::Fd& from, const net::Fd& to, std::atomic<bool>& strikes) {
    std::array<std::byte, 4096> chunk;
    std::size_t moved = 0;
    const net::IoResult result = net::receive_some(from.get(), chunk, &moved);
    if (result != net::IoResult::progress) return result == net::IoResult::again;
    if (strikes.exchange(false)) chunk[moved - 1] ^= std::byte{1};
    Deadline deadline = soon();
    net::send_all(to.get(), std::span(chunk).first(moved), deadline);
    return true;
  }

  net::Fd listener_;
  net::TcpAddress address_;
  net::Wakeup end_;
  std::atomic<bool> strikes_up_{false}, strikes_down_{false};
  std::thread thread_;
};

TEST(StoreServer, AChangedFrameIsToldAsOneAtBothEnds) {
  for (const bool to_server : {true, false}) {
    SCOPED_TRACE(to_server ? "to the server" : "to the client");
    Guarded guarded(secured(net::Level::integrity, "secret"));
    const auto observer = guarded.connect(secured(net::Level::integrity, "secret"));
    ASSERT_TRUE(observer);
    observer->store->set("claim", "mine");
    Relay relay(guarded.addresses[0]);
    guarded.addresses = {relay.address()};
    const auto victim = guarded.connect(secured(net::Level::integrity, "secret"));
    ASSERT_TRUE(victim);
    victim->remote->leave_will({"claim", "mine", {"failure"}, "lost", "silent", "changed"}, 20s);
    testing::internal::CaptureStderr();
    relay.strike(to_server);
    const Error error = thrown_by([&] { victim->store->set("k", "v", 20s); });
    EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated);
    expect_text(error, "a frame on the connection of ");
    expect_text(error, " was changed on its way");
    EXPECT_EQ(observer->store->get("failure", 20s), "changed");
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the connection of rank 1 (a process at 127.0.0.1:"), std::string::npos)
        << said;
  }
}

TEST(StoreServer, WhoHasAnotherSecretOrLevelIsToldSoAtOnce) {
  Guarded guarded(secured(net::Level::auth, "secret"));
  const Error secret = thrown_by([&] { guarded.connect(secured(net::Level::auth, "another")); });
  EXPECT_EQ(secret.code(), ErrorCode::kUnauthenticated);
  expect_text(secret, "rank 1 on ");
  expect_text(secret,
              " and the store at " + guarded.addresses[0].text() + " do not have the same secret");
  for (const net::Level level :
       {net::Level::none, net::Level::opportunistic, net::Level::integrity}) {
    const Error other = thrown_by([&] { guarded.connect(secured(level, "secret")); });
    EXPECT_EQ(other.code(), ErrorCode::kInvalidArgument);
    expect_text(other, "has security=" + std::string(net::name_of(level)));
    expect_text(other, "has security=auth");
  }
  const auto right = guarded.connect(secured(net::Level::auth, "secret"));
  ASSERT_TRUE(right);
  right->store->set("k", "v");
  EXPECT_EQ(guarded.server->client_count(), 1u);
}

TEST(StoreServer, BeforeTheProofNothingIsRead) {
  Guarded guarded(secured(net::Level::auth, "secret"));
  const auto first_of_us = guarded.connect(secured(net::Level::auth, "secret"));
  Deadline deadline = soon();
  const net::Fd stranger = net::connect_tcp(guarded.addresses[0], deadline);
  net::send_all(stranger.get(), bytes_of(hello_bytes()), deadline);  // as at the local socket
  EXPECT_TRUE(test::is_closed_by_server(stranger));
  net::Fd silent = net::connect_tcp(guarded.addresses[0], deadline);
  guarded.server->stop_listening();  // and joining is closed for who has begun
  EXPECT_TRUE(test::is_closed_by_server(silent));
  first_of_us->store->set("k", "v");
}

TEST(StoreServer, WhoHoldsNoClaimIsTurnedOutWhenAllHaveCome) {
  const net::Security open = secured(net::Level::opportunistic, "");
  Guarded guarded(open);
  const store::Will will{"rank/1", "the first", {"failure"}, "lost"};
  const auto stranger = guarded.connect(open), copier = guarded.connect(open);
  const auto member = guarded.connect(open), late = guarded.connect(open);
  ASSERT_TRUE(stranger && copier && member && late);
  member->remote->leave_will(will, 20s);
  // A will is of the first who leaves it, or strangers would pass for ranks.
  EXPECT_EQ(thrown_by([&] { copier->remote->leave_will(will, 20s); }).code(),
            ErrorCode::kInvalidArgument);
  late->remote->leave_will({"rank/1", "the second", {"failure"}, "lost"}, 20s);
  guarded.server->stop_listening({{"rank/1", "the first"}});
  for (const auto* other : {&stranger, &copier, &late})
    EXPECT_EQ(thrown_by([&] { (*other)->store->set("k", "v"); }).code(), ErrorCode::kSystem);
  member->store->set("k", "v");
}

TEST(StoreServer, TenThousandSilentConnectionsDisturbNobody) {
  Guarded guarded(secured(net::Level::auth, "secret"));
  const auto client = guarded.connect(secured(net::Level::auth, "secret"));
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    long pages = 0, resident_pages = 0;
    file >> pages >> resident_pages;
    return resident_pages * ::sysconf(_SC_PAGESIZE);
  };
  const long before = resident();
  std::deque<net::Fd> crowd;
  for (int i = 0; i < 10'000; ++i) {
    Deadline deadline = soon();
    crowd.push_back(net::connect_tcp(guarded.addresses[0], deadline));
    if (crowd.size() > 400) crowd.pop_front();  // as many as there are descriptors for
    if (i % 1000 == 0) client->store->set("k", std::to_string(i));
  }
  EXPECT_EQ(client->store->get("k"), "9000");
  EXPECT_TRUE(guarded.connect(secured(net::Level::auth, "secret")));
  const bool is_bounded = resident() - before < (32 << 20);
  EXPECT_TRUE(is_bounded || kKeepsFreed);
}

TEST(StoreServer, FailReachesThoseWhoWaitAndThoseWhoComeLater) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  store->set("before", "");
  std::thread other([&] {
    const Error error = thrown_by([&] { store->get("never", 20s); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "sizes differ");
  });
  // Whether that call comes before or after this, it fails for the same reason.
  under_test.server().fail(Error(ErrorCode::kInvalidArgument, "sizes differ"));
  other.join();
  EXPECT_EQ(thrown_by([&] { under_test.at(1)->get("before"); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(StoreServer, AnswersAreSentBeforeItEnds) {
  for (int round = 0; round < 50; ++round) {
    test::ServerUnderTest under_test;
    Deadline deadline = soon();
    const net::Fd socket = net::connect(under_test.address(), deadline);
    std::string bytes = hello_bytes();
    net::append_frame(&bytes, store::encode(store::Call{store::Command::get, {"never"}}, 1));
    net::append_frame(&bytes, store::encode(store::Call{store::Command::num_keys}, 2));
    net::send_all(socket.get(), bytes_of(bytes), deadline);
    net::FrameDecoder decoder(store::kMaxCallBytes);
    const auto next_frame = [&] {
      net::Frame frame;
      while (decoder.next(&frame) != net::FrameDecoder::Next::frame) {
        EXPECT_EQ(net::poll_readable(socket.get(), deadline), net::PollResult::ready);
        if (net::receive_into(socket.get(), &decoder) == net::IoResult::closed) return net::Frame();
      }
      return frame;
    };
    EXPECT_EQ(next_frame().type, store::kFrameWelcome);
    EXPECT_EQ(next_frame().id, 2u);  // so the first one waits there
    under_test.server().fail(Error(ErrorCode::kAborted, "the reason"));
    under_test.stop();
    const net::Frame last = next_frame();
    EXPECT_EQ(last.id, 1u);
    expect_text(store::decode_failed(last), "the reason");
  }
}

TEST(StoreServer, ServerGoneNamesItsAddressAndProcess) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  std::thread other([&] {
    const Error error = thrown_by([&] { store->get("never", 20s); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    expect_text(error, under_test.address());
    expect_text(error, net::describe_process(::getpid()));
  });
  under_test.stop();
  other.join();
  EXPECT_EQ(thrown_by([&] { store->set("k", "v"); }).code(), ErrorCode::kSystem);
}

/// A store server in a process of its own, which can be killed and stopped.
class ServerProcess {
 public:
  ServerProcess() {
    net::Fd listener(net::listen(address_).release());  // not private: for the child
    pid_ = fork_alone();
    if (pid_ == 0) {
      {
        store::Server server({.listener = std::move(listener)});
        for (;;) ::pause();
      }
    }
  }
  ~ServerProcess() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// Returns once every thread of it stands still.
  void stop() const {
    signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  const std::string& address() const { return address_; }

 private:
  std::string address_ = net::random_address("tutti-test");
  pid_t pid_ = -1;
};

TEST(StoreServer, KilledInTheMiddleOfAGet) {
  const ServerProcess process;
  const auto store = store::connect_store(process.address(), {}, soon()).store;
  std::vector<std::thread> threads;
  std::atomic<int> waiting{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ++waiting;
      const Error error = thrown_by([&] { store->get("never", 20s); });
      EXPECT_EQ(error.code(), ErrorCode::kSystem);
      expect_text(error, process.address());
    });
  }
  while (waiting.load() < 4) std::this_thread::yield();
  const auto begin = Clock::now();
  process.signal(SIGKILL);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST(StoreServer, AStoppedServerIsATimeoutNotAHang) {
  const ServerProcess process;
  const auto store = store::connect_store(process.address(), {}, soon()).store;
  process.stop();
  const auto begin = Clock::now();
  const Error set = thrown_by([&] { store->set("k", "v", 100ms); });
  EXPECT_EQ(set.code(), ErrorCode::kTimeout);
  expect_text(set, "store set of 'k': no answer");
  const Error get = thrown_by([&] { store->get("k", 100ms); });
  EXPECT_EQ(get.code(), ErrorCode::kTimeout);
  expect_text(get, "store get of 'k': no answer");
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back(std::to_string(i));
  expect_text(thrown_by([&] { store->wait(many, 1ms); }), "'7' and 92 more: no answer");
  expect_text(thrown_by([&] { store->num_keys(1ms); }), "store num_keys: no answer");
  EXPECT_LT(Clock::now() - begin, 10s);
  process.signal(SIGCONT);
  EXPECT_EQ(store->get("k", 20s), "v");  // the call was kept, as the message said
}

TEST(StoreServer, ABarrierThatItDidNotAnswerInTimeIsNotPassedAlone) {
  const ServerProcess process;
  const auto one = store::connect_store(process.address(), {}, soon()).store;
  const auto other = store::connect_store(process.address(), {}, soon()).store;
  std::thread waits([&] {
    EXPECT_EQ(thrown_by([&] { other->barrier("waited for", 2, 300ms); }).code(),
              ErrorCode::kTimeout);
  });
  other->get("waited for/arrived", 20s);
  process.stop();
  waits.join();
  const Error error = thrown_by([&] { one->barrier("unheard", 2, 100ms); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "store add of 'unheard/arrived': no answer");
  process.signal(SIGCONT);
  const auto expect_ended = [](Store& store, const char* name) {
    const Error again = thrown_by([&] { store.barrier(name, 2, 10s); });
    EXPECT_EQ(again.code(), ErrorCode::kInvalidArgument) << again.what();
  };
  expect_ended(*other, "waited for");  // in the order of its own calls
  expect_ended(*one, "waited for");
  expect_ended(*one, "unheard");
  expect_ended(*other, "unheard");
}

long resident_bytes() {
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

TEST(StoreServer, AClientThatDoesNotReadHoldsUpNobody) {
  test::ServerUnderTest under_test;
  const auto store = under_test.at(0);
  store->set("big", std::string(16 << 20, 'v'));
  Deadline deadline = soon();
  const net::Fd lazy = net::connect(under_test.address(), deadline);
  std::string bytes = hello_bytes();
  for (std::uint64_t id = 1; id <= 64; ++id) {  // a GiB of answers
    net::append_frame(&bytes, store::encode(store::Call{store::Command::get, {"big"}}, id));
  }
  const long before = resident_bytes();
  net::send_all(lazy.get(), bytes_of(bytes), deadline);
  for (int i = 0; i < 100; ++i) {
    store->set("k", std::to_string(i));
    EXPECT_EQ(store->get("k"), std::to_string(i));
  }
  EXPECT_LT(resident_bytes() - before, 700l << 20);
}

}  // namespace
}  // namespace tutti
