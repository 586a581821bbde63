// TCP: addresses, listening, connecting.
#include "net/tcp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <thread>

#include "net/listen.h"
#include "net/poller.h"
#include "net/port_holder.h"
#include "net/process_info.h"
#include "net/resolve.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

using namespace std::chrono_literals;

TcpAddress address(std::string_view text) {
  const std::optional<TcpAddress> parsed = TcpAddress::parse(text);
  EXPECT_TRUE(parsed) << text;
  return parsed.value_or(TcpAddress{});
}

TEST(TcpAddress, ReadsAndWritesBothFamilies) {
  for (const char* text : {"127.0.0.1:0", "192.0.2.255:65535", "[::1]:29500", "[2001:db8::8]:1",
                           "0.0.0.0:7", "[::]:7"}) {
    EXPECT_EQ(address(text).text(), text);
  }
  EXPECT_EQ(address("192.0.2.1:29500").port(), 29500);
  EXPECT_EQ(address("[::1]:29500").family(), AF_INET6);
  EXPECT_TRUE(address("0.0.0.0:1").is_wildcard());
  EXPECT_TRUE(address("[::]:1").is_wildcard());
  EXPECT_FALSE(address("[::1]:1").is_wildcard());
  EXPECT_EQ(address("[fe80::1%lo]:5").text(), "[fe80::1%lo]:5");
}

TEST(TcpAddress, IsEmptyForAnythingElse) {
  for (const char* text : {"",
                           ":",
                           "127.0.0.1",
                           "127.0.0.1:",
                           ":80",
                           "127.0.0.1:65536",
                           "127.0.0.1:-1",
                           "127.0.0.1: 1",
                           "127.0.0.1:1 ",
                           "127.0.0:1",
                           "256.0.0.1:1",
                           "localhost:1",
                           "::1:1",
                           "[::1]",
                           "[::1]:",
                           "[::1:1",
                           "[]:1",
                           "[127.0.0.1]:1",
                           "[fe80::1%no such device]:1",
                           "127.0.0.1:99999999999999999999",
                           "[:1"}) {
    EXPECT_FALSE(TcpAddress::parse(text)) << text;
  }
}

TEST(TcpAddress, KnowsLoopbackAndTakesPorts) {
  for (const char* text : {"127.0.0.1:1", "127.255.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"}) {
    EXPECT_TRUE(address(text).is_loopback()) << text;
  }
  for (const char* text : {"126.0.0.1:1", "[::2]:1", "[::ffff:10.0.0.1]:1", "0.0.0.0:1"}) {
    EXPECT_FALSE(address(text).is_loopback()) << text;
  }
  for (const char* text : {"10.0.0.1:1", "[fd00::1]:1"}) {
    TcpAddress changed = address(text);
    changed.set_port(65535);
    EXPECT_EQ(changed.port(), 65535);
    EXPECT_EQ(changed.host(), address(text).host());
    EXPECT_EQ(TcpAddress::of(changed.data(), changed.size()).text(), changed.text());
  }
}

TEST(Tcp, SaysWhyItCannotListenAndWhoHasThePort) {
  for (const char* text : {"127.0.0.1:0", "[::1]:0"}) {
    const Fd taken = listen_tcp(address(text));
    const TcpAddress there = TcpAddress::local(taken.get());
    int problem = 0;
    EXPECT_FALSE(try_listen_tcp(there, &problem));
    EXPECT_EQ(problem, EADDRINUSE);
    EXPECT_EQ(holder_of(there), describe_process(::getpid()));
    // One address stands in the way of all of its family.
    const char* const all = there.family() == AF_INET ? "0.0.0.0" : "[::]";
    EXPECT_EQ(holder_of(address(fmt::format("{}:{}", all, there.port()))),
              describe_process(::getpid()));
  }
  int problem = 0;
  EXPECT_FALSE(try_listen_tcp(address("198.51.100.7:0"), &problem));
  EXPECT_EQ(problem, EADDRNOTAVAIL);
  EXPECT_TRUE(is_of_this_host(address("127.0.0.1:1")));
  EXPECT_FALSE(is_of_this_host(address("198.51.100.7:1")));
  EXPECT_FALSE(is_of_this_host(address("0.0.0.0:1")));
  Fd gone = listen_tcp(address("127.0.0.1:0"));
  const TcpAddress free = TcpAddress::local(gone.get());
  gone.reset();
  EXPECT_EQ(holder_of(free), "");
}

TEST(Tcp, OneTryThatComesToNothingSaysWhy) {
  TcpAddress nobody;
  {
    const Fd listener = listen_tcp(address("127.0.0.1:0"));
    nobody = TcpAddress::local(listener.get());
  }
  Deadline deadline = Deadline::after(5s);
  std::string why;
  EXPECT_FALSE(try_connect_tcp(nobody, deadline, &why));
  EXPECT_EQ(why, "Connection refused");
}

TEST(Tcp, ThePortOneIsGivenOneselfIsNobodys) {
  // Where nobody listens at a port of the range from which the kernel gives ports to who connects,
  // one try of some ten thousand is given that very port, and would meet itself there.
  int low = 0, high = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  ASSERT_LT(low, high);
  TcpAddress nobody = address("127.0.0.1:0");
  nobody.set_port(low + (high - low) / 4 * 2);  // who connects is given every second port first
  std::string why;
  for (int i = 0; i < high - low; ++i) {
    Deadline deadline = Deadline::after(5s);
    ASSERT_FALSE(try_connect_tcp(nobody, deadline, &why)) << "try " << i;
  }
  EXPECT_EQ(why, "Connection refused");
}

TEST(Resolve, NumbersNeedNoLookUp) {
  Deadline past = Deadline::at(Deadline::Clock::now());
  for (const char* host : {"192.0.2.1", "2001:db8::1", "[2001:db8::1]"}) {
    const std::vector<TcpAddress> found = resolve(host, 29500, past);
    ASSERT_EQ(found.size(), 1u) << host;
    EXPECT_EQ(found[0].port(), 29500);
  }
  EXPECT_EQ(resolve("[2001:db8::1]", 1, past)[0].text(), "[2001:db8::1]:1");
}

TEST(Resolve, ANameIsLookedUpAndOneThatIsNotThereIsNamed) {
  Deadline deadline = Deadline::after(20s);
  for (const TcpAddress& found : resolve("localhost", 7, deadline)) {
    EXPECT_TRUE(found.is_loopback()) << found.text();
  }
  try {
    resolve("no-such-host.invalid", 7, deadline);
    ADD_FAILURE() << "found";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'no-such-host.invalid'"), std::string::npos);
  }
}

TEST(Tcp, ConnectsAndMovesBytes) {
  for (const char* text : {"127.0.0.1:0", "[::1]:0"}) {
    Fd listener;
    try {
      listener = listen_tcp(address(text));
    } catch (const Error& error) {
      if (std::string_view(text).front() != '[') throw;
      GTEST_SKIP() << "no IPv6 here: " << error.what();
    }
    EXPECT_FALSE(accept_tcp(listener.get()));  // nobody has come
    const TcpAddress at = TcpAddress::local(listener.get());
    EXPECT_NE(at.port(), 0);
    Deadline deadline = Deadline::after(20s);
    const Fd client = connect_tcp(at, deadline);
    ASSERT_EQ(poll_readable(listener.get(), deadline), PollResult::ready);
    Fd server = accept_tcp(listener.get());
    ASSERT_TRUE(server);
    EXPECT_EQ(TcpAddress::remote(client.get()).text(), at.text());
    EXPECT_EQ(TcpAddress::remote(server.get()).text(), TcpAddress::local(client.get()).text());

    char bytes[6] = {};
    const iovec into[] = {{bytes, 2}, {bytes + 2, 4}};
    EXPECT_EQ(receive_parts(server.get(), into).result, IoResult::again);
    char text_out[] = "ABCDEF";
    const iovec from[] = {{text_out, 1}, {text_out + 1, 5}};
    EXPECT_EQ(send_parts(client.get(), from).bytes, 6u);
    ASSERT_EQ(poll_readable(server.get(), deadline), PollResult::ready);
    EXPECT_EQ(receive_parts(server.get(), into).bytes, 6u);
    EXPECT_EQ(std::string_view(bytes, 6), "ABCDEF");

    server.reset();
    ASSERT_EQ(poll_readable(client.get(), deadline), PollResult::ready);
    const TcpMoved end = receive_parts(client.get(), into);
    EXPECT_EQ(end.result, IoResult::closed);
    EXPECT_EQ(end.error_number, 0);
  }
}

TEST(Tcp, AnAddressIsChosenByTheWayToAnother) {
  const auto own = address_toward(address("127.0.0.1:29500"));
  ASSERT_TRUE(own);
  EXPECT_EQ(own->text(), "127.0.0.1:0");
  EXPECT_TRUE(is_of_this_host(*own));
}

TEST(Tcp, WhatWasBegunSaysHowItWent) {
  const Fd listener = listen_tcp(address("127.0.0.1:0"));
  Deadline deadline = Deadline::after(20s);
  int at_once = -1;
  const Fd socket = begin_connect(TcpAddress::local(listener.get()), &at_once);
  EXPECT_EQ(at_once, 0);
  ASSERT_EQ(poll_writable(socket.get(), deadline), PollResult::ready);
  EXPECT_EQ(end_connect(socket.get()), 0);
  end_if_silent(socket.get(), 2000ms);

  TcpAddress nobody;
  {
    const Fd gone = listen_tcp(address("127.0.0.1:0"));
    nobody = TcpAddress::local(gone.get());
  }
  const Fd refused = begin_connect(nobody, &at_once);
  ASSERT_EQ(poll_writable(refused.get(), deadline), PollResult::ready);
  EXPECT_EQ(at_once != 0 ? at_once : end_connect(refused.get()), ECONNREFUSED);
}

TEST(Tcp, WhoLetsItsWindowFillIsNotSilent) {
  const Fd listener = listen_tcp(address("127.0.0.1:0"));
  Deadline deadline = Deadline::after(20s);
  const Fd client = connect_tcp(TcpAddress::local(listener.get()), deadline);
  ASSERT_EQ(poll_readable(listener.get(), deadline), PollResult::ready);
  const Fd server = accept_tcp(listener.get());  // reads nothing
  watch_for_lost_host(client.get());
  const std::vector<char> bytes(1 << 20);
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  while (send_parts(client.get(), std::span(&part, 1)).result == IoResult::progress) {
  }
  HostWatch watch;
  Deadline end = Deadline::after(HostWatch::kPeriod + kSilence);
  while (pause(100ms, end) == PollResult::ready)
    EXPECT_FALSE(watch.is_silent(client.get(), std::chrono::steady_clock::now()));
  EXPECT_TRUE(has_unacknowledged(client.get())) << "nothing has gone on";
}

// Who is reset was not refused, whenever it asks: a process that is refused takes the other for
// dead.
TEST(Tcp, WhoIsResetWasNotRefused) {
  const Fd listener = listen_tcp(address("127.0.0.1:0"));
  Deadline deadline = Deadline::after(20s);
  int at_once = -1;
  const Fd socket = begin_connect(TcpAddress::local(listener.get()), &at_once);
  ASSERT_EQ(poll_readable(listener.get(), deadline), PollResult::ready);
  {
    const Fd accepted = accept_tcp(listener.get());
    ASSERT_TRUE(accepted);
    reset_at_close(accepted.get());
  }
  ASSERT_EQ(poll_readable(socket.get(), deadline), PollResult::ready);
  EXPECT_EQ(end_connect(socket.get()), ECONNRESET);
  EXPECT_EQ(end_connect(socket.get()), 0) << "an error is told once";
}

TEST(Tcp, WhoHasNoRouteWasNotRefused) {
  int at_once = 0;
  bool may = false;
  std::thread([&] {  // in a network without any device that is up
    may = ::unshare(CLONE_NEWNET) == 0;
    if (may) (void)begin_connect(address("127.0.0.1:9"), &at_once);
  })
      .join();
  if (!may) GTEST_SKIP() << "may not make a network namespace";
  EXPECT_EQ(at_once, ENETUNREACH);
}

TEST(Tcp, NeverListensEverywhere) {
  for (const char* text : {"0.0.0.0:0", "[::]:0"}) {
    EXPECT_THROW(listen_tcp(address(text)), Error) << text;
  }
}

TEST(Tcp, SaysWhatABusyPortIs) {
  const Fd listener = listen_tcp(address("127.0.0.1:0"));
  const TcpAddress taken = TcpAddress::local(listener.get());
  try {
    const Fd second = listen_tcp(taken);
    FAIL() << "two listen at " << taken.text();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_NE(std::string(error.what()).find(taken.text()), std::string::npos) << error.what();
  }
}

/// Who calls the name comes to the first address of it, and so to the other program.
TEST(Tcp, OfANameWithATakenAddressNoOtherOneIsUsed) {
  const Fd listener = listen_tcp(address("127.0.0.1:0"));
  const TcpAddress taken = TcpAddress::local(listener.get());
  const TcpAddress free = address(("127.0.0.2:" + std::to_string(taken.port())).c_str());
  Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
  const std::vector<TcpAddress> addresses = {taken, free};
  const ListenResult result = listen_at_one_of(addresses, std::chrono::milliseconds(50), deadline,
                                               [](const TcpAddress&) { return Holding::unknown; });
  EXPECT_EQ(result.status, ListenResult::Status::taken);
  EXPECT_EQ(result.address.text(), taken.text());
}

TEST(Tcp, TriesUntilSomebodyListens) {
  const TcpAddress at = [] {
    const Fd listener = listen_tcp(address("127.0.0.1:0"));
    return TcpAddress::local(listener.get());
  }();
  Fd listener;
  std::thread late([&] {
    std::this_thread::sleep_for(200ms);
    listener = listen_tcp(at);
  });
  Deadline deadline = Deadline::after(20s);
  EXPECT_TRUE(connect_tcp(at, deadline));
  late.join();
}

TEST(Tcp, SaysWhatTheLastTryMetAtTheDeadline) {
  const TcpAddress at = [] {
    const Fd listener = listen_tcp(address("127.0.0.1:0"));
    return TcpAddress::local(listener.get());
  }();
  Deadline deadline = Deadline::after(100ms);
  try {
    const Fd socket = connect_tcp(at, deadline);
    FAIL() << "nobody listens at " << at.text();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    const std::string text = error.what();
    EXPECT_NE(text.find(at.text()), std::string::npos) << text;
    EXPECT_NE(text.find("Connection refused"), std::string::npos) << text;
  }
}

TEST(Tcp, AnAbortEndsTheTries) {
  const TcpAddress at = [] {
    const Fd listener = listen_tcp(address("127.0.0.1:0"));
    return TcpAddress::local(listener.get());
  }();
  std::atomic<std::uint64_t> abort_word{1};
  Deadline deadline = Deadline::after(20s);
  try {
    const Fd socket = connect_tcp(at, deadline, {.abort_word = &abort_word});
    FAIL() << "nobody listens at " << at.text();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
}

}  // namespace
}  // namespace tutti::net
