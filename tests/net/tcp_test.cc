// TCP: addresses, listening, connecting.
#include "net/tcp.h"

#include <gtest/gtest.h>

#include <thread>

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
