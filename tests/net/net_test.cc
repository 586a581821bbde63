// Descriptors, sockets, the poller, framing, processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string_view>
#include <thread>

#include "net/entrance.h"
#include "net/fd.h"
#include "net/frame.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/system_error.h"
#include "net/unix_socket.h"
#include "ranks.h"

namespace tutti::net {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

Deadline soon() { return Deadline::after(20s); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Pair {
  Fd listener, client, server;
};
Pair connected_pair() {
  const std::string address = random_address("tutti-test");
  Pair pair;
  pair.listener = listen(address);
  Deadline deadline = soon();
  pair.client = connect(address, deadline);
  pair.server = accept(pair.listener.get()).socket;
  EXPECT_TRUE(pair.server);
  return pair;
}

TEST(Fd, ClosesOnceAndMoves) {
  Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = first.get();
  Fd second(std::move(first));
  EXPECT_FALSE(first);
  EXPECT_EQ(second.get(), number);
  Fd third;
  third = std::move(second);
  EXPECT_TRUE(is_open(number));
  const Fd copy = third.duplicate();
  EXPECT_NE(copy.get(), number);
  EXPECT_EQ(::fcntl(copy.get(), F_GETFD), FD_CLOEXEC);
  third.reset();
  EXPECT_FALSE(is_open(number));
  EXPECT_TRUE(is_open(copy.get()));
}

TEST(SystemError, WhatIsFullIsNotTakenForMemory) {
  const std::string full = system_error("cannot write the file x", ENOSPC).what();
  EXPECT_EQ(full,
            "cannot write the file x: No space left on device (errno 28); what this goes to is "
            "full: free space on its file system or device");
  const std::string memory = system_error("cannot reserve", ENOMEM).what();
  EXPECT_NE(memory.find("memory is short"), std::string::npos) << memory;
}

/// Exit code of a forked child that runs `body`.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fd, AForkedChildHoldsNoSocketOfOurs) {
  Deadline deadline = Deadline::after(20s);
  const std::string address = random_address("tutti-test");
  Fd listener = listen(address);
  Fd client = connect(address, deadline);
  Fd served = accept(listener.get()).socket;
  Fd moved = std::move(served);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  // A helper that lives on: the ends of all three are seen although it does.
  const pid_t helper = ::fork();
  if (helper == 0) {
    write_end.reset();
    char byte;
    _exit(::read(read_end.get(), &byte, 1) == 0 ? 0 : 1);  // until the test is over
  }
  moved.reset();
  listener.reset();
  EXPECT_EQ(poll_readable(client.get(), deadline), PollResult::ready);
  char byte;
  EXPECT_EQ(::read(client.get(), &byte, 1), 0) << "the helper does not hold the other end";
  EXPECT_TRUE(try_listen(address)) << "nor the listener";
  // The numbers stay taken in a child, and stand for nothing there; those closed by now do not.
  const Fd other = listen(address);
  const Fd released(::fcntl(listen(random_address("tutti-test")).release(), F_DUPFD_CLOEXEC, 0));
  EXPECT_EQ(in_child([&] {
              if (::write(client.get(), "x", 1) != -1 || errno == EBADF) return 1;
              int listens = 1;
              socklen_t size = sizeof listens;
              ::getsockopt(other.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
              if (listens != 0) return 2;
              ::getsockopt(released.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
              return listens == 1 ? 0 : 3;
            }),
            0);
  write_end.reset();
  int status = -1;
  ::waitpid(helper, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Socket, BothEndsKnowWhoTheOtherIs) {
  const Pair pair = connected_pair();
  EXPECT_EQ(peer_of(pair.client.get()).pid, ::getpid());
  EXPECT_EQ(peer_of(pair.server.get()).uid, ::geteuid());
  EXPECT_TRUE(is_trusted({1, ::geteuid()}));
  EXPECT_TRUE(is_trusted({1, 0}));
  EXPECT_FALSE(is_trusted({1, 4242}));
}

TEST(Socket, DescriptorsOfOursAreClosedOnExec) {
  const Pair pair = connected_pair();
  for (const Fd* fd : {&pair.listener, &pair.client, &pair.server}) {
    EXPECT_EQ(::fcntl(fd->get(), F_GETFD), FD_CLOEXEC);
  }
  const Wakeup wakeup;
  EXPECT_EQ(::fcntl(wakeup.fd(), F_GETFD), FD_CLOEXEC);
}

TEST(Socket, AnotherUserIsRefusedAtBothEnds) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const std::string address = random_address("tutti-test");
  const Fd listener = listen(address);
  // A child that is nobody connects here, then listens where we connect.
  const std::string theirs = random_address("tutti-test");
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    bool is_as_expected = ::setresuid(65534, 65534, 65534) == 0;
    try {
      Deadline deadline = soon();
      connect(address, deadline);  // root listens: we trust it
      const Fd own = listen(theirs);
      is_as_expected = is_as_expected && ::write(ready[1], "x", 1) == 1;
      for (;;) ::pause();
    } catch (const Error&) {
      is_as_expected = false;
    }
    ::_exit(is_as_expected ? 0 : 1);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  const Accepted accepted = accept(listener.get());
  EXPECT_TRUE(accepted.refused);
  EXPECT_FALSE(accepted.socket);
  EXPECT_EQ(accepted.peer.uid, 65534u);
  const Error error = thrown_by([&] {
    Deadline deadline = soon();
    connect(theirs, deadline);
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated);
  expect_text(error, "65534");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Socket, OneListenerPerAddressAndNoneOfNonsense) {
  const std::string address = random_address("tutti-test");
  {
    const Fd listener = listen(address);
    EXPECT_FALSE(try_listen(address).has_value());
    EXPECT_EQ(thrown_by([&] { listen(address); }).code(), ErrorCode::kSystem);
  }
  EXPECT_TRUE(try_listen(address).has_value());  // gone with its descriptor
  Deadline deadline = soon();
  EXPECT_FALSE(try_connect(address, deadline).has_value());
  for (const std::string& bad :
       {std::string(), std::string("@"), std::string("/tmp/x"), "@" + std::string(108, 'x')}) {
    EXPECT_EQ(thrown_by([&] { listen(bad); }).code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(Socket, AFullQueueIsWaitedForUntilTheDeadline) {
  const std::string address = random_address("tutti-test");
  const Fd listener = listen(address);
  ::listen(listener.get(), 0);  // room for one
  Deadline first = soon();
  const Fd waiting = connect(address, first);
  const auto begin = Clock::now();
  Deadline deadline = Deadline::after(100ms);
  const Error error = thrown_by([&] { connect(address, deadline); });
  EXPECT_GE(Clock::now() - begin, 100ms);
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_EQ(std::string(error.what()),
            "connecting to " + address +
                ": its queue was full until the deadline. Either the process that listens there is "
                "stopped, or others connect to it all the time: `ss -xp` shows who");
}

TEST(Socket, WhoWaitsAtAFullQueueGetsInAsSoonAsThereIsRoom) {
  const std::string address = random_address("tutti-test");
  const Fd listener = listen(address);
  ::listen(listener.get(), 0);  // room for one
  Deadline deadline = soon();
  std::vector<Fd> connected(8);
  std::vector<std::thread> clients;
  for (Fd& socket : connected) {
    clients.emplace_back([&, own = deadline]() mutable { socket = connect(address, own); });
  }
  for (std::size_t taken = 0; taken < connected.size();) {
    ASSERT_EQ(poll_readable(listener.get(), deadline), PollResult::ready);
    taken += accept(listener.get()).socket ? 1 : 0;
  }
  for (std::thread& client : clients) client.join();
  for (const Fd& socket : connected) {  // as every socket of ours is
    EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
  }
}

/// An entrance with `count` connections in its queue.
struct Crowd {
  explicit Crowd(int count) : entrance(listen(address)) {
    for (int i = 0; i < count; ++i) {
      Deadline deadline = soon();
      clients.push_back(connect(address, deadline));
    }
  }
  std::string address = random_address("tutti-test");
  Entrance entrance;
  std::vector<Fd> clients;
};

TEST(Entrance, ATurnEndsWhateverTheQueueAndThenItRests) {
  Crowd crowd(50);
  int taken = 0;
  const auto take_slowly = [&](Fd, const Peer&) {
    ++taken;
    for (const auto end = Clock::now() + 1ms; Clock::now() < end;) {
    }
    return false;
  };
  EXPECT_EQ(crowd.entrance.next_look(Clock::now()), Clock::time_point::max());
  const Clock::time_point before = Clock::now();
  crowd.entrance.take_turn(take_slowly);
  EXPECT_GE(taken, 1);
  EXPECT_LT(taken, 50);
  const Clock::time_point look = crowd.entrance.next_look(before);  // it may be over by now
  EXPECT_LT(look, Clock::now() + 20s);
  if (look != Clock::time_point::max()) {
    EXPECT_LT(crowd.entrance.watched(look - 1ns), 0);
    EXPECT_GE(crowd.entrance.watched(look), 0);
  }
}

TEST(Entrance, ItDoesNotRestFromThoseWhoAreOurs) {
  Crowd crowd(50);
  std::vector<Fd> ours;
  while (ours.size() < crowd.clients.size()) {
    ASSERT_GE(crowd.entrance.watched(Clock::now()), 0);
    crowd.entrance.take_turn([&](Fd socket, const Peer&) {
      ours.push_back(std::move(socket));
      return true;
    });
  }
}

TEST(Socket, BytesAndDescriptorsArriveWhole) {
  const Pair pair = connected_pair();
  std::string sent(5 << 20, '\0');
  std::mt19937_64 random(11);
  for (char& c : sent) c = static_cast<char>(random());
  const Fd file(::memfd_create("tutti-test", MFD_CLOEXEC));
  std::thread sender([&] {
    Deadline deadline = soon();
    const std::array<int, 2> files{file.get(), STDERR_FILENO};
    send_all(pair.client.get(), bytes_of(sent), deadline, files);
  });
  std::string got(sent.size(), '\0');
  std::vector<Fd> files;
  Deadline deadline = soon();
  EXPECT_TRUE(
      receive_all(pair.server.get(), std::as_writable_bytes(std::span(got)), deadline, &files, 2));
  sender.join();
  EXPECT_TRUE(got == sent);
  ASSERT_EQ(files.size(), 2u);
  struct stat mine {
  }, theirs{};
  ::fstat(file.get(), &mine);
  ::fstat(files[0].get(), &theirs);
  EXPECT_EQ(mine.st_ino, theirs.st_ino);
  EXPECT_EQ(::fcntl(files[0].get(), F_GETFD), FD_CLOEXEC);
}

TEST(Socket, DescriptorsThatNobodyAskedForAreClosedAndRefused) {
  const Pair pair = connected_pair();
  Deadline deadline = soon();
  const std::array<int, 1> file{STDERR_FILENO};
  const int next_free = Fd(::dup(0)).get();
  send_all(pair.client.get(), bytes_of("x"), deadline, file);
  std::array<std::byte, 1> byte;
  std::size_t moved = 0;
  EXPECT_EQ(thrown_by([&] { receive_some(pair.server.get(), byte, &moved); }).code(),
            ErrorCode::kUnauthenticated);
  EXPECT_EQ(Fd(::dup(0)).get(), next_free);  // nothing leaked
}

TEST(Descriptors, ASoftLimitIsRaisedAndAHardOneIsAnError) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{64, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &low);
  require_descriptors(10, 200, "a test");
  rlimit raised{};
  ::getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_GE(raised.rlim_cur, 200u);
  EXPECT_EQ(raised.rlim_max, before.rlim_max);
  const auto most = static_cast<std::size_t>(before.rlim_max);
  const Error error = thrown_by([&] { require_descriptors(most, most, "a test"); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "a test needs " + std::to_string(most) + " descriptors more");
  expect_text(error, "ulimit -n");
}

TEST(Socket, RunningOutOfDescriptorsIsAnErrorThatSaysSo) {
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer) || __has_feature(address_sanitizer)
  GTEST_SKIP() << "UBSan looks at memory through a pipe, and this test leaves no descriptor";
#endif
#endif
  const Pair pair = connected_pair();
  Deadline deadline = soon();
  const std::array<int, 2> files{STDERR_FILENO, STDERR_FILENO};
  send_all(pair.client.get(), bytes_of("x"), deadline, files);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int next_free = Fd(::dup(0)).get();
  const rlimit tight{static_cast<rlim_t>(next_free + 1), before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &tight);
  std::array<std::byte, 1> byte;
  std::size_t moved = 0;
  std::vector<Fd> got;
  const Error error = thrown_by([&] { receive_some(pair.server.get(), byte, &moved, &got, 2); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "ulimit -n");
  EXPECT_EQ(Fd(::dup(0)).get(), next_free);
}

TEST(Socket, AnEndIsNoSignalAndNotTheSameAsNothingYet) {
  Pair pair = connected_pair();
  std::array<std::byte, 4> bytes;
  std::size_t moved = 0;
  EXPECT_EQ(receive_some(pair.server.get(), bytes, &moved), IoResult::again);
  Deadline short_time = Deadline::after(20ms);
  EXPECT_EQ(thrown_by([&] { receive_all(pair.server.get(), bytes, short_time); }).code(),
            ErrorCode::kTimeout);
  Deadline deadline = soon();
  send_all(pair.client.get(), bytes_of("xy"), deadline);
  pair.client.reset();
  // Two bytes of four, then the end: an error; at the start of a message: the end.
  EXPECT_EQ(thrown_by([&] { receive_all(pair.server.get(), bytes, deadline); }).code(),
            ErrorCode::kSystem);
  EXPECT_FALSE(receive_all(pair.server.get(), bytes, deadline));
  EXPECT_EQ(receive_some(pair.server.get(), bytes, &moved), IoResult::closed);
  // No SIGPIPE: it would have killed this test.
  EXPECT_EQ(send_some(pair.server.get(), bytes, &moved), IoResult::closed);
  EXPECT_FALSE(send_all(pair.server.get(), bytes, deadline));
}

TEST(Poller, DeadlinesWakeupsAndAborts) {
  const Pair pair = connected_pair();
  auto begin = Clock::now();
  Deadline deadline = Deadline::after(50ms);
  EXPECT_EQ(poll_readable(pair.server.get(), deadline), PollResult::expired);
  EXPECT_GE(Clock::now() - begin, 50ms);
  EXPECT_EQ(poll_readable(pair.server.get(), deadline), PollResult::expired);  // still over
  Deadline later = soon();
  EXPECT_EQ(poll_writable(pair.server.get(), later), PollResult::ready);
  send_all(pair.client.get(), bytes_of("x"), later);
  EXPECT_EQ(poll_readable(pair.server.get(), later), PollResult::ready);

  Wakeup wakeup;
  std::thread signaller([&] { wakeup.signal(); });
  EXPECT_EQ(poll_readable(pair.client.get(), later, {.wakeup = &wakeup}), PollResult::woken);
  signaller.join();
  EXPECT_EQ(pause(10s, later, {.wakeup = &wakeup}), PollResult::woken);  // kept until drained
  wakeup.drain();
  EXPECT_EQ(pause(1ms, later, {.wakeup = &wakeup}), PollResult::ready);

  std::atomic<std::uint64_t> abort_word{0};
  begin = Clock::now();
  std::thread aborter([&] { abort_word = 1; });
  EXPECT_EQ(poll_readable(pair.client.get(), later, {.abort_word = &abort_word}),
            PollResult::aborted);
  EXPECT_LT(Clock::now() - begin, 5s);
  aborter.join();
}

TEST(Poller, PauseEndsWithTheDeadline) {
  Deadline deadline = Deadline::after(10ms);
  EXPECT_EQ(pause(2ms, deadline), PollResult::ready);
  EXPECT_EQ(pause(10s, deadline), PollResult::expired);
}

TEST(Poller, SignalsDoNotEndAWait) {
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = [](int) {};  // without SA_RESTART
  ::sigaction(SIGUSR1, &ignore, &before);
  const pthread_t self = ::pthread_self();
  std::atomic<bool> is_over{false};
  std::thread noise([&] {
    while (!is_over) {
      ::pthread_kill(self, SIGUSR1);
      std::this_thread::yield();
    }
  });
  const Pair pair = connected_pair();
  const auto begin = Clock::now();
  Deadline deadline = Deadline::after(50ms);
  EXPECT_EQ(poll_readable(pair.server.get(), deadline), PollResult::expired);
  EXPECT_GE(Clock::now() - begin, 50ms);
  is_over = true;
  noise.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

/// Whose pieces end inside of frames, as nearly all do where frames are large.
TEST(FrameDecoder, HoldsWhatIsLeftAlone) {
  std::string frame;
  append_frame(&frame, {.type = 1, .id = 2, .body = std::string(100'000, 'x')}, nullptr);
  std::string stream;
  for (int i = 0; i < 200; ++i) stream += frame;
  FrameDecoder decoder(1 << 20);
  Frame read;
  int count = 0;
  constexpr std::size_t kPiece = 65'536;
  for (std::size_t at = 0; at < stream.size(); at += kPiece) {
    decoder.feed(
        std::as_bytes(std::span(stream)).subspan(at, std::min(kPiece, stream.size() - at)));
    while (decoder.next(&read) == FrameDecoder::Next::frame) ++count;
    ASSERT_LT(decoder.held(), std::size_t{1} << 20);
  }
  EXPECT_EQ(count, 200);
}

TEST(Frame, ComeOutAsTheyWentInHoweverTheyAreCut) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<Frame> sent;
    std::string stream;
    for (std::uint64_t i = 0; i < random() % 20; ++i) {
      sent.push_back({static_cast<std::uint32_t>(random()), random(),
                      std::string(random() % (random() % 8 == 0 ? 200000 : 50), 'x')});
      append_frame(&stream, sent.back());
    }
    FrameDecoder decoder(1 << 20);
    std::size_t next = 0;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t cut = std::min<std::size_t>(1 + random() % 5000, stream.size() - at);
      decoder.feed(bytes_of(std::string_view(stream).substr(at, cut)));
      at += cut;
      Frame frame;
      while (decoder.next(&frame) == FrameDecoder::Next::frame) {
        ASSERT_LT(next, sent.size());
        EXPECT_EQ(frame.type, sent[next].type);
        EXPECT_EQ(frame.id, sent[next].id);
        EXPECT_TRUE(frame.body == sent[next].body);
        ++next;
      }
    }
    EXPECT_EQ(next, sent.size());
    EXPECT_EQ(decoder.buffered(), 0u);
  }
}

TEST(Frame, TooLongIsMalformedBeforeItArrives) {
  std::string stream;
  append_frame(&stream, {1, 2, std::string(101, 'x')});
  FrameDecoder decoder(100);
  decoder.feed(bytes_of(std::string_view(stream).substr(0, 15)));
  Frame frame;
  EXPECT_EQ(decoder.next(&frame), FrameDecoder::Next::more);
  decoder.feed(bytes_of(std::string_view(stream).substr(15, 1)));
  EXPECT_EQ(decoder.next(&frame), FrameDecoder::Next::malformed);
  EXPECT_EQ(decoder.next(&frame), FrameDecoder::Next::malformed);
}

TEST(Frame, IsLittleEndianOnTheWire) {
  std::string stream;
  append_frame(&stream, {0x01020304, 0x1122334455667788, "ab"});
  EXPECT_EQ(stream, std::string("\x02\0\0\0\x04\x03\x02\x01\x88\x77\x66\x55\x44\x33\x22\x11"
                                "ab",
                                18));
}

TEST(Frame, AReaderStopsAtTheEnd) {
  std::string body;
  ByteWriter writer(&body);
  writer.u32(7);
  writer.bytes("abc");
  writer.i64(-5);
  ByteReader reader(body);
  EXPECT_EQ(reader.u32(), 7u);
  EXPECT_EQ(reader.bytes(3), "abc");
  EXPECT_EQ(reader.i64(), -5);
  EXPECT_TRUE(reader.at_end());
  EXPECT_EQ(reader.u64(), 0u);
  EXPECT_FALSE(reader.ok());
  ByteReader bounded(std::string_view(body).substr(4));
  EXPECT_EQ(bounded.bytes(2), "");  // longer than allowed
  EXPECT_FALSE(bounded.ok());
}

TEST(ProcessInfo, ThisProcessAndItsChildren) {
  EXPECT_EQ(program_of(::getpid()), "net_test");
  EXPECT_EQ(describe_process(::getpid()), "pid " + std::to_string(::getpid()) + " (net_test)");
  EXPECT_EQ(program_of(0x3fffff), "?");
  EXPECT_FALSE(stat_of(0x3fffff).has_value());
  const auto own = stat_of(::getpid());
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->parent, ::getppid());
  EXPECT_EQ(own->session, ::getsid(0));
  EXPECT_GT(own->start_time, 0u);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  EXPECT_TRUE(descends_from(child, ::getpid()));
  EXPECT_TRUE(descends_from(child, 1) || ::getpid() == 1);
  EXPECT_FALSE(descends_from(::getpid(), child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(descends_from(child, ::getpid()));
}

TEST(ProcessInfo, WhoHasEnded) {
  const auto start_time = [](pid_t pid) { return stat_of(pid)->start_time; };
  EXPECT_FALSE(has_ended(::getpid(), start_time(::getpid())));
  EXPECT_FALSE(has_ended(::getpid(), 0));
  EXPECT_TRUE(has_ended(::getpid(), start_time(::getpid()) + 1)) << "the pid is another's by now";
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  const std::uint64_t began = start_time(child);
  EXPECT_FALSE(has_ended(child, began));
  ::kill(child, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_TRUE(has_ended(child, began)) << "a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(has_ended(child, began));
  EXPECT_TRUE(has_ended(child, 0));
}

TEST(ProcessInfo, TheNameOfAHostIsAWord) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr std::string_view kName = "of two\nlines";
    if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) ::_exit(77);
    if (::sethostname(kName.data(), kName.size()) != 0) ::_exit(77);
    if (own_host_name() != "of?two?lines") ::_exit(1);
    if (::sethostname("", 0) != 0) ::_exit(77);
    ::_exit(own_host_name() == "localhost" ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no names of hosts of its own here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti::net
