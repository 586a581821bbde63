// The relay of a host calls at a door that breaks what comes, and is called by whom it must not
// believe: the test is the rank behind that door, and whoever has recorded what it said.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "control/board/board.h"
#include "control/board/layout.h"
#include "control/hosts/remote_hosts.h"
#include "control/hosts/report.h"
#include "control/hosts/vote_frame.h"
#include "net/frame.h"
#include "net/frame_mac.h"
#include "net/poller.h"
#include "net/shake_hands.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

const WorldRank kNear{0};

void reset(net::Fd socket) { net::reset_at_close(socket.get()); }

/// Rank 0, alone on its host and its relay; rank 1 on another host is a listener.
struct Hosts {
  explicit Hosts(net::Level level = net::Level::none)
      : security{.level = level, .secret = net::Key(net::digest_of(net::bytes_of("a secret")))},
        near(options()) {
    near.links().open();
  }

  RemoteOptions options() {
    near_door = net::TcpAddress::local(own_door.get());
    std::vector<DoorPlate> plates;
    std::vector<std::string> texts;
    for (const net::Fd* listener : {&own_door, &far_door}) {
      plates.push_back({.address = net::TcpAddress::local(listener->get()),
                        .level = security.level,
                        .public_key = keys.public_key()});
      texts.push_back(
          encode(plates.back(), WorldRank(static_cast<int>(plates.size()) - 1), security));
    }
    far_keys.emplace(security, keys, texts);
    return {.memory = net::Fd(::dup(memory.get())),
            .roster = roster,
            .rank = kNear,
            .listener = std::move(own_door),
            .plates = std::move(plates),
            .keys = DoorKeys(security, keys, texts)};
  }
  HostFacts::State state() { return near.links().facts()[1].state; }
  /// How long until the other host is dead, of which nobody is left from now on.
  Clock::duration time_until_dead() {
    far_door = {};
    const auto begin = Clock::now();
    while (state() != HostFacts::State::dead && Clock::now() < begin + 30s)
      std::this_thread::sleep_for(1ms);
    return Clock::now() - begin;
  }
  /// As rank 1 at the door of rank 0.
  net::Handshake calling(net::Purpose purpose) {
    return net::Handshake::calling({.purpose = purpose, .from = 1, .to = 0}, security.level,
                                   far_keys->with(kNear, keys.public_key()));
  }
  net::Fd call_near() {
    Deadline deadline = Deadline::after(10s);
    return net::connect_tcp(near_door, deadline);
  }
  net::Fd next_call() {
    for (const auto end = Clock::now() + 10s; Clock::now() < end;) {
      net::Fd caller = net::accept_tcp(far_door.get());
      if (caller) return caller;
      std::this_thread::sleep_for(1ms);
    }
    return {};
  }

  net::Fd memory = Board::make(1, 2);
  Board board{memory};
  const Roster roster{{{"host-a", world_ranks({0})}, {"host-b", world_ranks({1})}}, 0};
  net::Fd far_door = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  net::Fd own_door = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  net::TcpAddress near_door;
  const net::Security security;
  const net::KeyPair keys = net::KeyPair::make();  // both ranks' own
  std::optional<DoorKeys> far_keys;
  RemoteHosts near;
};

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

/// How long a rank takes to see that the other host is dead, whose kernel has dropped its last call
/// before that: here since the queue of the door is full.
Clock::duration time_to_see_death_after_a_dropped_call() {
  Hosts hosts;
  net::Fd caller = hosts.next_call();
  EXPECT_TRUE(caller);
  ::listen(hosts.far_door.get(), 0);
  Deadline deadline = Deadline::after(10s);
  const net::Fd in_queue = net::connect_tcp(net::TcpAddress::local(hosts.far_door.get()), deadline);
  reset(std::move(caller));
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

/// The rank behind the far door, as far as the greeting; then every guest is given to `on_guest`.
struct FarRank {
  FarRank(Hosts& hosts, std::function<void(net::Secured)> on_guest)
      : door(
            events, std::move(hosts.far_door), net::Level::none, 2, shortage,
            [&hosts](const Hello& hello) { return hosts.far_keys->with(hello.from, {}); },
            [](const Hello&) { return Answer::welcome; },
            [on_guest = std::move(on_guest)](const Hello&, net::Secured guest) {
              on_guest(std::move(guest));
            }) {}
  bool run_until(const bool& is_done) {
    const auto end = Clock::now() + 10s;
    while (!is_done && Clock::now() < end) events.run(Clock::now() + 20ms);
    return is_done;
  }
  net::Events events;
  std::vector<std::unique_ptr<Connection>> lines;
  Shortage shortage;
  Door door;
  Deadline patience = Deadline::after(10s);
};

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

/// What stands in a frame on a line or in a note: see remote_hosts.cc.
constexpr std::uint32_t kReport = 1, kVote = 2;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A note of rank 1, of which nothing has gone out yet.
struct Note {
  explicit Note(Hosts& hosts)
      : handshake(hosts.calling(net::Purpose::note)), mac(handshake.frame_keys().send) {}
  std::string proof() const { return text_of(handshake.unsent()); }
  std::string tagged(std::uint32_t kind, const std::string& body) {
    std::string bytes;
    net::append_frame(&bytes, {.type = kind, .id = 0, .body = body}, &mac);
    return bytes;
  }
  net::Handshake handshake;
  net::FrameMac mac;
};

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
std::string that_it_has_left() {
  const Report report{.rank = WorldRank(1), .stamp = 1, .has_left = true};
  return encode(report, Clock::now());
}

void say(const net::Fd& socket, const std::string& words) {
  Deadline deadline = Deadline::after(10s);
  net::send_all(socket.get(), net::bytes_of(words), deadline);
}

/// Whether the other end closes, whatever it says before that.
bool is_closed(const net::Fd& socket, Deadline deadline = Deadline::after(10s)) {
  std::array<std::byte, 256> bytes;
  while (net::poll_readable(socket.get(), deadline) == net::PollResult::ready)
    if (::recv(socket.get(), bytes.data(), bytes.size(), 0) <= 0) return true;
  return false;
}

/// Says all of it at the door of rank 0, and returns once that has read it.
void leave(Hosts& hosts, const std::string& words) {
  const net::Fd socket = hosts.call_near();
  say(socket, words);
  ::shutdown(socket.get(), SHUT_WR);
  EXPECT_TRUE(is_closed(socket));
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

TEST(FarNote, ThatIsKeptOpenHidesNoDeath) {
  Hosts hosts(net::Level::auth);
  Note note(hosts);
  const net::Fd kept_back = hosts.call_near();
  say(kept_back, note.proof());
  const net::Fd replayed = hosts.call_near();
  say(replayed, note.proof());
  EXPECT_LT(hosts.time_until_dead(), 6s);
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

/// From now on this thread can watch no further socket. False: that is not allowed here.
bool forbid_watching() {
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// On the thread for other hosts, which has run all that was posted before.
bool run_there(Hosts& hosts, const std::function<bool()>& call) {
  std::atomic<bool> has_run{false}, result{false};
  static_cast<PeerSockets&>(hosts.near).events().post([&] {
    result = call();
    has_run = true;
  });
  while (!has_run) std::this_thread::sleep_for(1ms);
  return result;
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
  EXPECT_TRUE(run_there(hosts, [] { return true; }));
}

}  // namespace
}  // namespace tutti::control
