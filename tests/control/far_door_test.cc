// The relay of a host calls at a door that breaks what comes, and is called by whom it must not
// believe: the test is the rank behind that door, and whoever has recorded what it said.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "control/board/board.h"
#include "control/board/layout.h"
#include "control/far_host.h"
#include "control/hosts/door_notes.h"
#include "control/hosts/vote_frame.h"
#include "net/frame.h"
#include "net/shake_hands.h"
#include "sanitized.h"

namespace tutti::control {
namespace {

// A process that ends resets those who call between the end of its lines and that of its door. Each
// of those calls is answered by the other host, and followed by another one before the next beat.
TEST(FarDoor, WhoIsResetCallsAgainSoonAndHasHeardTheOtherHost) {
  Hosts hosts;
  int calls = 0;
  auto shortest = Clock::duration::max();  // from a reset to the next call
  const auto begin = Clock::now();
  while (calls <= 10 || Clock::now() < begin + Hearing::kSilence + 1s) {
    const auto since = Clock::now();
    net::Fd caller = hosts.next_call();
    if (calls > 0) shortest = std::min(shortest, Clock::now() - since);
    ASSERT_TRUE(caller) << "after " << calls << " calls, state " << static_cast<int>(hosts.state());
    reset(std::move(caller));
    ++calls;
    ASSERT_EQ(hosts.state(), HostFacts::State::reachable) << "after " << calls << " calls";
  }
  EXPECT_LT(shortest, 400ms) << "beats go every 500 ms";
  EXPECT_LT(hosts.time_until_dead(), 10s);
}

/// The queue of the far door is full as long as the result lives, and the kernel of the other host
/// drops the call of the relay.
net::Fd drop_calls(Hosts& hosts) {
  net::Fd caller = hosts.next_call();
  EXPECT_TRUE(caller);
  ::listen(hosts.far_door.get(), 0);
  Deadline deadline = Deadline::after(10s);
  net::Fd in_queue = net::connect_tcp(net::TcpAddress::local(hosts.far_door.get()), deadline);
  reset(std::move(caller));
  return in_queue;
}

/// How long a rank takes to see that the other host is dead, whose kernel has dropped its last call
/// before that.
Clock::duration time_to_see_death_after_a_dropped_call() {
  Hosts hosts;
  const net::Fd in_queue = drop_calls(hosts);
  std::this_thread::sleep_for(50ms);  // it has called again
  return hosts.time_until_dead();
}

// The kernel would repeat the call after a second. The best of several: this machine may be busy.
TEST(FarDoor, ACallThatWasDroppedIsMadeAnewSoon) {
  auto best = Clock::duration::max();
  for (int i = 0; i < 20 && best >= 500ms; ++i)
    best = std::min(best, time_to_see_death_after_a_dropped_call());
  EXPECT_LT(best, 500ms);
}

// What the relay has asked is open when another rank becomes the relay, and says nothing later.
TEST(FarDoor, OnlyTheRelayFindsSilence) {
  Hosts hosts;
  const net::Fd in_queue = drop_calls(hosts);
  for (const auto end = Clock::now() + 10s; hosts.state() != HostFacts::State::cut;) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::sleep_for(1ms);
  }
  hosts.near.links().close();
  run_posted(hosts);
  EXPECT_EQ(hosts.state(), HostFacts::State::reachable);
  hosts.near.links().open();
  EXPECT_EQ(hosts.state(), HostFacts::State::reachable);
  run_posted(hosts);
  std::this_thread::sleep_for(50ms);  // it has called, and looked who is silent
  EXPECT_EQ(hosts.state(), HostFacts::State::reachable);
}

TEST(FarDoor, WhoLeavesSaysSoAgainAfterAReset) {
  Hosts hosts;
  hosts.near.links().close();
  hosts.board.slot(SlotIndex(0)).state.store(RankState::left);
  bool is_first = true, is_told = false;
  const auto hear = [&](const net::Frame& frame) {
    const auto report = decode_report(frame.body, 2);
    is_told = is_told || (report && report->rank == kNear && report->has_left);
  };
  FarRank far(hosts, [&](net::Secured guest) {
    if (std::exchange(is_first, false)) return reset(std::move(guest.socket));
    far.lines.push_back(
        std::make_unique<Connection>(far.events, std::move(guest), 1 << 20, hear, [](int) {}));
  });
  std::thread leaving([&] { hosts.near.leave({}); });
  EXPECT_TRUE(far.run_until(is_told));
  leaving.join();
}

/// A descriptor that is ready, whose call runs once on the thread of `events`.
struct Bell {
  Bell(net::Events& events, std::function<void()> call)
      : watched(events.watch(wakeup.fd(), std::move(call))) {
    watched->arm(net::Events::Want::read);
  }
  net::Wakeup wakeup;
  std::unique_ptr<net::Events::Watched> watched;
};

// The thread for other hosts has not run for long, and the first that it finds is a line that was
// reset: what the other host has acknowledged meanwhile counts.
TEST(FarDoor, AResetAfterAStopPartsNobody) {
  Hosts hosts;
  net::Fd line;
  bool is_there = false;
  FarRank far(hosts, [&](net::Secured guest) {
    line = std::move(guest.socket);
    is_there = true;
  });
  ASSERT_TRUE(far.run_until(is_there));
  net::Events& events = static_cast<PeerSockets&>(hosts.near).events();
  std::atomic<bool> is_over{false};
  auto found = HostFacts::State::dead;
  Bell stop(events, [] { std::this_thread::sleep_for(Hearing::kSilence + 600ms); });
  Bell look(events, [&] {
    found = hosts.state();
    is_over = true;
  });
  // A beat is open: the last bytes that came.
  std::array<std::byte, 4096> bytes;
  ASSERT_TRUE(net::poll_readable(line.get(), far.patience) == net::PollResult::ready);
  (void)::recv(line.get(), bytes.data(), bytes.size(), 0);
  ASSERT_TRUE(net::poll_readable(line.get(), far.patience) == net::PollResult::ready);
  // All three happen at once.
  events.post([] { std::this_thread::sleep_for(100ms); });
  std::this_thread::sleep_for(20ms);
  stop.wakeup.signal();
  reset(std::move(line));
  look.wakeup.signal();
  while (!is_over) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(found, HostFacts::State::reachable);
}

// A call that was reset is made anew by the sweep. The log says only once what is thrown each time.
TEST(FarDoor, ASocketWhoseCallKeepsThrowingHoldsUpNoCall) {
  Hosts hosts;
  const auto begin = Clock::now();
  std::atomic<int> line_count{0};
  set_log_callback([&](LogLevel, std::string_view) { ++line_count; });
  {
    Bell broken(static_cast<PeerSockets&>(hosts.near).events(), [] { throw std::bad_alloc(); });
    broken.wakeup.signal();  // for ever: nobody drains it
    for (int calls = 0; calls < 4; ++calls) {
      net::Fd caller = hosts.next_call();
      EXPECT_TRUE(caller) << "after " << calls << " calls";
      if (!caller) break;
      reset(std::move(caller));
    }
  }
  set_log_callback({});
  EXPECT_GE(line_count, 1);
  EXPECT_LE(line_count, 1 + (Clock::now() - begin) / 1s);  // a thread without a core may be well
}

// ---- notes -------------------------------------------------------------------------------------

std::string untagged(std::uint32_t kind, const std::string& body) {
  std::string bytes;
  net::append_frame(&bytes, {.type = kind, .id = 0, .body = body});
  return bytes;
}

/// That rank 0 is out of reach.
std::string a_vote() {
  VoteFrame frame{.term = 1 << 20, .vote = {}};
  frame.vote.cut_off.insert(0);
  return encode(frame);
}

/// The first of what a caller says; the reply, which may come at once, is not read.
void say_hello(net::Handshake& handshake, const net::Fd& socket) {
  const auto hello = handshake.unsent();
  ASSERT_EQ(::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  handshake.has_sent(hello.size());
}

const std::array kLevels = {net::Level::none, net::Level::opportunistic, net::Level::auth,
                            net::Level::integrity};

TEST(FarNote, IsRead) {
  for (const net::Level level : kLevels) {
    Hosts hosts(level);
    Note note(hosts);
    leave(hosts, note.proof() + note.tagged(kReport, that_it_has_left()));
    EXPECT_TRUE(hosts.near.has_left(WorldRank(1)));
  }
}

// A probe is a note without words, so there is something to record in every world.
TEST(FarNote, WhoHasRecordedOneSaysNothingMore) {
  for (const net::Level level : kLevels) {
    Hosts hosts(level);
    Note recorded(hosts), kept_back(hosts);
    leave(hosts, recorded.proof());
    for (const Note* note : {&recorded, &kept_back}) {
      leave(hosts, note->proof() + untagged(kVote, a_vote()));
      leave(hosts, note->proof() + untagged(kReport, that_it_has_left()));
    }
    EXPECT_FALSE(hosts.near.links().receive()) << "level " << static_cast<int>(level);
    EXPECT_FALSE(hosts.near.has_left(WorldRank(1))) << "level " << static_cast<int>(level);
  }
}

TEST(FarNote, HoldsNoVotes) {
  Hosts hosts(net::Level::auth);
  Note note(hosts);
  leave(hosts, note.proof() + note.tagged(kVote, a_vote()));
  EXPECT_FALSE(hosts.near.links().receive());
}

// The words of a note may not all be here when somebody repeats how it began.
TEST(FarNote, IsNotReplacedByARecordOfIt) {
  Hosts hosts(net::Level::auth);
  Note note(hosts);
  const net::Fd socket = hosts.call_near();
  say(socket, note.proof());
  std::this_thread::sleep_for(50ms);
  leave(hosts, note.proof());
  say(socket, note.tagged(kReport, that_it_has_left()));
  ::shutdown(socket.get(), SHUT_WR);
  EXPECT_TRUE(is_closed(socket));
  EXPECT_TRUE(hosts.near.has_left(WorldRank(1)));
}

// Whoever leaves may have looked just before whether we are there.
TEST(FarNote, IsNotReplacedByAProbe) {
  Hosts hosts(net::Level::auth);
  Note note(hosts), probe(hosts);
  const net::Fd socket = hosts.call_near();
  say(socket, note.proof());
  std::this_thread::sleep_for(50ms);
  leave(hosts, probe.proof());
  say(socket, note.tagged(kReport, that_it_has_left()));
  ::shutdown(socket.get(), SHUT_WR);
  EXPECT_TRUE(is_closed(socket));
  EXPECT_TRUE(hosts.near.has_left(WorldRank(1)));
}

TEST(FarNote, ThatIsKeptOpenHidesNoDeath) {
  Hosts hosts(net::Level::auth);
  Note note(hosts);
  const net::Fd kept_back = hosts.call_near();
  say(kept_back, note.proof());
  const net::Fd replayed = hosts.call_near();
  say(replayed, note.proof());
  EXPECT_LT(hosts.time_until_dead(), 6s);
}

/// Who leaves notes at so many doors; they are longer than what a kernel takes.
struct Leaver {
  explicit Leaver(std::size_t door_count)
      : doors(door_count),
        notes(
            events,
            [this](WorldRank to, Call::OnOutcome on_outcome) {
              return std::make_unique<Call>(
                  events, net::TcpAddress::local(doors[to.index()].get()),
                  Hello{.role = Role::note, .from = WorldRank(9), .to = to}, net::Level::none,
                  net::Key(), 0ms, std::move(on_outcome));
            },
            kWords) {
    for (net::Fd& door : doors) door = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
    std::vector<WorldRank> to;
    for (std::size_t i = 0; i < door_count; ++i) to.emplace_back(static_cast<int>(i));
    notes.leave(to, {{.type = kReport, .id = 0, .body = std::string(kWords, 'x')}});
  }
  /// Whether the notes have been left. Some time passes.
  bool goes_on() {
    events.run(Clock::now() + 1ms);
    return notes.sweep(Clock::now());
  }
  net::Fd next_call(std::size_t door) {
    net::Fd caller;
    for (const auto end = Clock::now() + 10s; !caller && Clock::now() < end;) {
      EXPECT_FALSE(goes_on());
      caller = net::accept_tcp(doors[door].get());
    }
    EXPECT_TRUE(caller);
    return caller;
  }
  void read_all(const net::Fd& caller) {
    std::vector<std::byte> bytes(1 << 20);
    std::size_t sum = 0;
    const auto end = Clock::now() + 10s;
    for (ssize_t count = 1; count != 0 && Clock::now() < end;) {
      count = ::recv(caller.get(), bytes.data(), bytes.size(), 0);
      if (count > 0) sum += static_cast<std::size_t>(count);
      goes_on();
    }
    EXPECT_GT(sum, kWords);
  }
  static constexpr std::size_t kWords = std::size_t{16} << 20;
  net::Events events;
  std::vector<net::Fd> doors;
  DoorNotes notes;
};

TEST(DoorNotes, AreLeftAgainWhereOneEndsBeforeAllOfItHasGone) {
  Leaver leaver(1);
  const net::Fd ended = leaver.next_call(0);
  ::shutdown(ended.get(), SHUT_WR);
  net::Fd caller = leaver.next_call(0);
  leaver.read_all(caller);
  caller = {};
  bool is_over = false;
  for (const auto end = Clock::now() + 10s; !is_over && Clock::now() < end;)
    is_over = leaver.goes_on();
  EXPECT_TRUE(is_over);
}

// While another one has not come, and so this process is there.
TEST(DoorNotes, AreLeftAgainWhereOneWhoseKernelHasAllOfItResets) {
  Leaver leaver(2);
  net::Fd caller = leaver.next_call(0);
  leaver.read_all(caller);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(leaver.goes_on());
  reset(std::move(caller));
  EXPECT_TRUE(leaver.next_call(0));
}

// ---- votes -------------------------------------------------------------------------------------

// Those that the control thread of a relay that was overtaken has not read are older than what the
// thread for other hosts takes meanwhile.
TEST(FarVote, ThatIsKeptForTheNextRelayIsTheNewest) {
  Hosts hosts;
  FarRelay far(hosts);
  const auto vote = [&](std::uint64_t round) {
    VoteFrame frame{.term = 7, .vote = {}};
    frame.vote.promised = {.round = round, .host = 1};
    return far.tagged(encode(frame));
  };
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += far.tagged({});  // no vote: it takes time, and no more
  say(far.socket, words += vote(1));
  std::this_thread::sleep_for(100ms);  // they have come
  std::atomic<bool> closes{false};
  static_cast<PeerSockets&>(hosts.near).events().post([&] {
    while (!closes) std::this_thread::sleep_for(200us);
  });
  say(far.socket, vote(2));
  closes = true;
  hosts.near.links().close();
  run_posted(hosts);
  hosts.near.links().open();
  std::uint64_t last = 0;
  for (const auto end = Clock::now() + 5s; last != 2 && Clock::now() < end;) {
    const auto got = hosts.near.links().receive();
    if (got) last = decode_vote_frame(got->second, 2)->vote.promised.round;
  }
  EXPECT_EQ(last, 2u);
}

/// Rank 0 has changed something that other hosts are told of.
void tell_news(Hosts& hosts) {
  hosts.board.slot(SlotIndex(0)).news.fetch_add(1);
  hosts.near.links().report();
  run_posted(hosts);
}

/// Whether the board soon says that the other host has heard so much of the news of rank 0.
bool is_told(const Hosts& hosts, std::uint64_t news) {
  const auto is_told = [&] { return hosts.board.told_of(SlotIndex(0)) == news; };
  for (const auto end = Clock::now() + 10s; !is_told() && Clock::now() < end;)
    std::this_thread::sleep_for(1ms);
  return is_told();
}

TEST(FarDoor, WhatItHasHeardStandsOnTheBoard) {
  Hosts hosts;
  tell_news(hosts);
  EXPECT_EQ(hosts.board.told_of(SlotIndex(0)), 0u) << "nobody has answered there";
  std::vector<net::Secured> lines;
  bool has_come = false;
  FarRank far(hosts, [&](net::Secured line) {
    lines.push_back(std::move(line));
    has_come = true;
  });
  ASSERT_TRUE(far.run_until(has_come));
  EXPECT_TRUE(is_told(hosts, 1));
  tell_news(hosts);
  EXPECT_TRUE(is_told(hosts, 2));
  // It is stopped, and closes no line.
  hosts.near.links().close();
  run_posted(hosts);
  hosts.near.links().open();
  tell_news(hosts);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(hosts.board.told_of(SlotIndex(0)), 2u) << "that line takes no more";
  lines.clear();
  has_come = false;
  ASSERT_TRUE(far.run_until(has_come)) << "it is called anew";
  EXPECT_TRUE(is_told(hosts, 3));
}

// ---- the door ----------------------------------------------------------------------------------

TEST(NearDoor, WhoHasSaidHelloIsWelcomedBetweenTheSilent) {
  Hosts hosts;
  std::vector<net::Fd> silent;
  const auto crowd = [&] {
    for (std::size_t i = 0; i < kMostCallers; ++i) silent.push_back(hosts.call_near());
  };
  crowd();
  const net::Fd socket = hosts.call_near();
  net::Handshake handshake = hosts.calling(net::Purpose::line);
  say_hello(handshake, socket);
  crowd();
  Deadline deadline = Deadline::after(10s);
  EXPECT_TRUE(net::shake_hands(handshake, socket.get(), deadline));
  EXPECT_EQ(handshake.outcome(), net::Handshake::Outcome::proved);
  AnswerBytes answer{};
  ASSERT_EQ(net::poll_readable(socket.get(), deadline), net::PollResult::ready);
  ASSERT_EQ(::recv(socket.get(), answer.data(), answer.size(), 0),
            static_cast<ssize_t>(answer.size()));
  EXPECT_EQ(decode_answer(answer), Answer::welcome);
}

/// A rank whose descriptors are used up: one without a secret must not do that to it for good.
TEST(NearDoor, WhoSaysNothingMakesRoomWhereThereAreNoDescriptors) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "a sanitizer needs descriptors of its own";
#endif
  net::Fd listener = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  const net::TcpAddress address = net::TcpAddress::local(listener.get());
  net::Events events;
  Shortage shortage;
  Door door(
      events, std::move(listener), net::Level::none, 2, shortage,
      [](const Hello&) { return std::nullopt; }, [](const Hello&) { return Answer::welcome; },
      [](const Hello&, net::Secured) {});
  Deadline deadline = Deadline::after(10s);
  std::vector<net::Fd> callers;
  for (int i = 0; i < 4; ++i) callers.push_back(net::connect_tcp(address, deadline));
  EXPECT_TRUE(door.hear_waiting());
  for (int i = 0; i < 2; ++i) callers.push_back(net::connect_tcp(address, deadline));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(net::Fd(::dup(STDIN_FILENO)).get());
  ::setrlimit(RLIMIT_NOFILE, &tight);
  const bool is_empty = door.hear_waiting();
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(is_empty);
  const Deadline at_once = Deadline::after(0s);
  for (std::size_t i = 0; i < callers.size(); ++i)
    EXPECT_EQ(is_closed(callers[i], at_once), i < 2) << "caller " << i;
}

/// From now on `program` is asked about each call of the system that this thread makes. False: that
/// is not allowed here.
template <std::size_t Size>
bool filter_calls(std::array<sock_filter, Size> program) {
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// This thread can watch no further socket.
bool forbid_watching() {
  return filter_calls(std::array{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  });
}

/// It finds no descriptor for whoever stands at a door.
bool forbid_accepting() {
  return filter_calls(std::array{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_accept4, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  });
}

TEST(NearDoor, AHostWhoseNoteMayStandThereIsNotDead) {
  Hosts hosts;
  if (!run_there(hosts, forbid_accepting)) GTEST_SKIP() << "not allowed here";
  const net::Fd note = hosts.call_near();
  hosts.far_door = {};
  std::this_thread::sleep_for(1s);
  EXPECT_EQ(hosts.state(), HostFacts::State::reachable);
  EXPECT_LT(hosts.time_until_dead(), 10s) << "it is not waited for for ever";
}

TEST(NearDoor, ACallerThatCannotBeWatchedIsNone) {
  Hosts hosts;
  if (!run_there(hosts, forbid_watching)) GTEST_SKIP() << "not allowed here";
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_closed(hosts.call_near())) << i;
    std::this_thread::sleep_for(600ms);  // it looks who waits at its door
  }
}

TEST(NearDoor, ARelayThatCannotBeWatchedIsNone) {
  Hosts hosts;
  const net::Fd socket = hosts.call_near();
  net::Handshake handshake = hosts.calling(net::Purpose::line);
  say_hello(handshake, socket);
  Deadline deadline = Deadline::after(10s);
  ASSERT_EQ(net::poll_readable(socket.get(), deadline), net::PollResult::ready);
  if (!run_there(hosts, forbid_watching)) GTEST_SKIP() << "not allowed here";
  EXPECT_TRUE(net::shake_hands(handshake, socket.get(), deadline));
  EXPECT_TRUE(is_closed(socket));
  hosts.near.ask_wait(WorldRank(1));  // there is nobody to ask
  run_posted(hosts);
}

}  // namespace
}  // namespace tutti::control
