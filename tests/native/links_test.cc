// Groups with members on several hosts: what comes over connections, what they tell each other by
// frames alone, who sleeps and who is woken, and how a connection ends.
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "native/messages.h"
#include "native/tcp_links.h"
#include "native_ranks.h"

namespace tutti::native {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;
using Ints = std::vector<int>;

constexpr auto kMessages = static_cast<std::uint8_t>(Lane::message);
constexpr auto kCollectives = static_cast<std::uint8_t>(Lane::collective);

const std::vector<std::vector<int>> kLayouts = {
    {0, 1, 2, 3}, {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}};

void on_hosts(const std::vector<int>& hosts, const std::function<void(NativeRank&)>& body,
              Wires::Kind kind = Wires::Kind::narrow) {
  Wires wires(hosts, kind);
  on_native_ranks(static_cast<int>(hosts.size()), body, &wires);
}

/// A program that computes, as far as the library can see.
void compute(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }

std::chrono::nanoseconds cpu_time(clockid_t of) {
  timespec time{};
  ::clock_gettime(of, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// ---- who reaches whom ---------------------------------------------------------------------------

TEST(Links, EveryPairInEveryLayout) {
  for (const Wires::Kind kind : {Wires::Kind::narrow, Wires::Kind::tcp}) {
    for (const auto& hosts : kLayouts) {
      on_hosts(
          hosts,
          [](NativeRank& me) {
            for (const std::size_t count : {1, 1000, 300'000}) {
              std::vector<Work> works;
              std::vector<Ints> in(4, Ints(count)), out(4);
              for (int peer = 0; peer < me.n; ++peer) {
                of_rank(out, peer).assign(count, me.rank * 10 + peer);
                if (peer == me.rank) continue;
                works.push_back(me.backend.start(me.recv_of(of_rank(in, peer), peer)));
                works.push_back(me.backend.start(me.send_of(of_rank(out, peer), peer)));
              }
              for (Work& work : works) work.wait();
              for (int peer = 0; peer < me.n; ++peer) {
                if (peer == me.rank) continue;
                EXPECT_EQ(of_rank(in, peer), Ints(count, peer * 10 + me.rank));
              }
              Ints sum(count, me.rank + 1);
              me.run(me.next(Op::all_reduce, count, sum.data(), sum.data()));
              EXPECT_EQ(sum, Ints(count, 10));
            }
            me.close();
          },
          kind);
    }
  }
}

TEST(Links, AConnectionIsMadeWhenItIsFirstUsed) {
  Wires wires({0, 1, 2, 3});
  std::barrier all_have_looked(4);
  on_native_ranks(
      4,
      [&](NativeRank& me) {
        Ints data(10, 7);
        if (me.rank == 2) me.send(data, 3);
        if (me.rank == 3) me.recv(data, 2);
        all_have_looked.arrive_and_wait();  // the connection is there
        compute(150ms);  // longer than it takes to look for those that others have made
        EXPECT_EQ(wires.count(), 1);
        all_have_looked.arrive_and_wait();
        me.run(me.barrier());
        me.close();
      },
      &wires);
}

TEST(Links, NobodyIsReachedOverAConnectionOnItsOwnHost) {
  Wires wires({0, 0, 0});
  on_native_ranks(
      3,
      [&](NativeRank& me) {
        Ints sum(1000, 1);
        me.run(me.next(Op::all_reduce, sum.size(), sum.data(), sum.data()));
        EXPECT_EQ(sum, Ints(1000, 3));
        me.close();
      },
      &wires);
  EXPECT_EQ(wires.count(), 0);
}

// ---- taking back --------------------------------------------------------------------------------

TEST(Links, ARankThatComputesGivesBackWhatItHasNotMatched) {
  for (const bool has_met : {false, true}) {
    std::atomic<bool> all_are_back{false};
    on_hosts({0, 1}, [&](NativeRank& me) {
      Ints data(10, 7);
      if (has_met) me.rank == 0 ? me.send(data, 1) : me.recv(data, 0);
      if (me.rank == 0) {
        Request request = me.send_of(data, 1);
        request.arrive = Deadline::after(20ms);
        EXPECT_EQ(thrown_by([&] { me.run(request); }).code(), ErrorCode::kTimeout);
        Work late = me.backend.start(request);
        EXPECT_EQ(thrown_by([&] { late.wait(); }).code(), ErrorCode::kTimeout);
        request.arrive = Deadline::after(20s);
        Work work = me.backend.start(request);
        EXPECT_TRUE(work.cancel());
        EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kCancelled);
        all_are_back = true;  // given by the thread that reads for the program
      } else {
        while (!all_are_back.load() && !me.membership.cause()) compute(1ms);
      }
      me.run(me.barrier());
      data.assign(10, 8);
      if (me.rank == 0) me.send(data, 1);
      Ints got(10);
      if (me.rank == 1) {
        me.recv(got, 0);
        EXPECT_EQ(got, data) << "none of those that were taken back";
      }
      me.close();
    });
  }
}

/// What one thread of each rank does: sends numbers that it takes back at some time, and says which
/// went.
Ints send_and_cancel(NativeRank& me, int count, unsigned seed) {
  std::mt19937 random(seed);
  Ints went;
  for (int i = 0; i < count; ++i) {
    const Ints data(i % 5 == 0 ? 3000 : 3, i);
    Work work = me.backend.start(me.send_of(data, 1 - me.rank, i % 3));
    for (unsigned spins = random() % 400; spins > 0; --spins) pause_core();
    const bool is_back = work.cancel();
    try {
      work.wait();
      EXPECT_FALSE(is_back) << "it was received";
      went.push_back(i);
    } catch (const Error& error) {
      EXPECT_TRUE(is_back);
      EXPECT_EQ(error.code(), ErrorCode::kCancelled) << error.what();
    }
  }
  for (int tag = 0; tag < 3; ++tag) me.send(Ints(3, -1), 1 - me.rank, tag);
  return went;
}

Ints receive_all(NativeRank& me, int tag, unsigned seed) {
  std::mt19937 random(seed);
  Ints got;
  for (;;) {
    Ints data;
    Request request = me.recv_of(data, 1 - me.rank, tag);
    request.message.room_context = &data;
    request.message.make_room = [](void* context, std::size_t count) -> void* {
      Ints& room = *static_cast<Ints*>(context);
      room.assign(count, -2);
      return room.data();
    };
    me.run(request);
    EXPECT_EQ(data, Ints(data.size(), data.front()));
    if (data.front() < 0) return got;
    got.push_back(data.front());
    for (unsigned spins = random() % 200; spins > 0; --spins) pause_core();
  }
}

TEST(Links, EachOfTenThousandIsTakenBackOrReceivedAndBothEndsSayTheSame) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kEach = 5000;  // both ways at once
  std::array<Ints, 2> went, got;
  on_hosts({0, 1}, [&](NativeRank& me) {
    const auto base = seed + static_cast<unsigned>(me.rank) * 16;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&, tag] {
        const Ints part = receive_all(me, tag, base + static_cast<unsigned>(tag));
        EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
        const std::lock_guard lock(mutex);
        Ints& all = of_rank(got, me.rank);
        all.insert(all.end(), part.begin(), part.end());
      });
    }
    of_rank(went, me.rank) = send_and_cancel(me, kEach, base + 8);
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(me.membership.cause());
    me.close();
  });
  for (const int rank : {0, 1}) {
    std::sort(of_rank(got, 1 - rank).begin(), of_rank(got, 1 - rank).end());
    EXPECT_EQ(of_rank(got, 1 - rank), of_rank(went, rank));
    EXPECT_GT(of_rank(went, rank).size(), 0u);
    EXPECT_LT(of_rank(went, rank).size(), static_cast<std::size_t>(kEach));
  }
}

TEST(Links, WhoDoesNotAnswerARecallFailsTheGroupInTime) {
  Wires wires({0, 1});
  wires.withhold(1);
  on_native_ranks(
      2,
      [](NativeRank& me) {
        if (me.rank == 1) {
          while (!me.membership.cause()) compute(5ms);
          return;
        }
        const Ints data(3, 1);
        // Before the connection is there it is just taken back.
        for (std::chrono::nanoseconds time = 50ms; !me.membership.cause() && time < 30s;
             time *= 2) {
          Request request = me.send_of(data, 1);
          request.arrive = Deadline::after(time);
          request.stall = Deadline::after(200ms);
          const Error error = thrown_by([&] { me.run(request); });
          EXPECT_EQ(error.code(), ErrorCode::kTimeout);
          EXPECT_EQ(error.context().culprits, std::vector<int>{1});
        }
        ASSERT_TRUE(me.membership.cause()) << "nobody knows whether it was received";
      },
      &wires);
}

TEST(Links, WhoWaitsForAnAnswerHearsOfTheFailureOfTheGroup) {
  Wires wires({0, 1});
  wires.withhold(1);
  std::atomic<bool> is_announced{false};
  on_native_ranks(
      2,
      [&](NativeRank& me) {
        if (me.rank == 1) {
          while (!is_announced.load()) compute(1ms);
          compute(150ms);
          me.membership.fail({ErrorCode::kAborted, "somebody aborted the group", {1}, {}});
          return;
        }
        const Ints data(3, 1);
        Work work = me.backend.start(me.send_of(data, 1));
        while (!wires.lies_at(kTestGroup, 1, 0, kMessages)) compute(1ms);
        is_announced = true;
        EXPECT_FALSE(work.cancel());
        EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kAborted);
      },
      &wires);
}

// ---- what is under way --------------------------------------------------------------------------

/// A rank of two on hosts of their own, with its messages but nobody who reads them by himself.
struct BareRank {
  explicit BareRank(const group::NativeSpec& spec)
      : membership(*spec.membership),
        rank(spec.rank),
        links(*spec.sockets, membership, spec.world_ranks),
        channels(
            2, rank, kMaxTcpPayload, [this](int peer) { return links.link(peer, Lane::message); },
            &links.alarm(Lane::message)),
        messages(channels, membership) {}

  void run(Op op, int tag, std::chrono::nanoseconds time, bool buffered = false) {
    Ints data(10, tag);
    Request request;
    request.op = op;
    request.dtype = dtype_of<int>;
    request.count = data.size();
    request.group = kTestGroup;
    request.input = request.output = {data.data(), data.size(), dtype_of<int>};
    request.message.peer = 1 - rank;
    request.message.tag = tag;
    request.message.buffered = buffered;
    request.arrive = request.stall = Deadline::after(time);
    messages.run(request);
  }
  bool drives_until(const std::function<bool()>& is_so) {
    const auto end = Clock::now() + 20s;
    while (!is_so() && Clock::now() < end) messages.drive();
    return is_so();
  }
  std::uint64_t progress() const { return membership.read_facts().does(rank).progress; }
  TcpConnection& connection() { return *channels.connection(1 - rank); }
  /// Bytes that have come over the connection and were not read.
  std::size_t unread() {
    int bytes = 0;
    EXPECT_EQ(::ioctl(connection().socket(), FIONREAD, &bytes), 0);
    return static_cast<std::size_t>(bytes);
  }

  control::Membership& membership;
  const int rank;
  TcpLinks links;
  Channels channels;
  Messages messages;
};

void on_bare_ranks(Wires& wires, const std::function<void(BareRank&)>& body) {
  const auto live = [&](const group::NativeSpec& spec) {
    BareRank me(spec);
    body(me);
  };
  const std::shared_ptr<Store> store = make_memory_store();
  std::thread other([&] { on_native_member(1, 2, wires.board_fd(), store, live, &wires); });
  on_native_member(0, 2, wires.board_fd(), store, live, &wires);
  other.join();
}

/// What is still to be sent keeps a rank from being found in a deadlock: Membership::watch_sent.
TEST(Links, ASendThatWasGivenUpBeforeItWentIsOwedNoMore) {
  Wires wires({0, 1});
  wires.withhold(0);
  std::barrier both(2);
  on_bare_ranks(wires, [&](BareRank& me) {
    if (me.rank == 0) {
      EXPECT_EQ(thrown_by([&] { me.run(Op::send, 1, 50ms); }).code(), ErrorCode::kTimeout);
      EXPECT_FALSE(me.links.has_sent()) << "nothing is left of it";
      std::thread other([&] { me.run(Op::send, 2, 20s); });
      while (!me.links.has_sent()) std::this_thread::yield();
      EXPECT_EQ(thrown_by([&] { me.run(Op::send, 1, 50ms); }).code(), ErrorCode::kTimeout);
      EXPECT_TRUE(me.links.has_sent()) << "the other one is to be sent";
      wires.withhold(-1);
      other.join();
    } else {
      me.run(Op::recv, 2, 20s);
    }
    both.arrive_and_wait();
  });
}

/// So does what the kernel of the other end has acknowledged: something on the way may have done so
/// in its place. The question of whether all was read comes once, and so does its answer.
TEST(Links, WhatWasSentIsUnderWayUntilThePeerSaysThatItHasReadIt) {
  constexpr std::size_t kMessage = 2 * kWireHeaderBytes, kQuestion = kWireHeaderBytes;
  Wires wires({0, 1}, Wires::Kind::tcp);
  std::barrier both(2);
  on_bare_ranks(wires, [&](BareRank& me) {
    while (me.connection().socket_to_send() < 0) std::this_thread::yield();
    for (int round = 1; round <= 2; ++round) {
      both.arrive_and_wait();
      if (me.rank == 0) {
        me.run(Op::send, round, 20s, true);
        while (net::has_unacknowledged(me.connection().socket())) std::this_thread::yield();
        for (int i = 0; i < 10; ++i) me.messages.drive();
      }
      both.arrive_and_wait();
      if (me.rank == 1) {
        EXPECT_EQ(me.unread(), kMessage) << "nobody has looked whether it was read";
      }
      both.arrive_and_wait();
      const std::uint64_t progress = me.progress();
      if (me.rank == 0) {
        EXPECT_TRUE(me.links.has_sent());
        for (int i = 0; i < 10; ++i) {
          me.messages.drive();
          EXPECT_TRUE(me.links.has_sent());
        }
        while (net::has_unacknowledged(me.connection().socket())) std::this_thread::yield();
        EXPECT_EQ(me.progress(), progress) << "a question is no progress";
      }
      both.arrive_and_wait();
      if (me.rank == 1) {
        EXPECT_EQ(me.unread(), kMessage + kQuestion);
        EXPECT_TRUE(me.drives_until([&] { return me.unread() == 0; }));
        EXPECT_FALSE(me.links.has_sent()) << "nobody need read an answer";
      }
      both.arrive_and_wait();
      if (me.rank == 0) {
        EXPECT_TRUE(me.drives_until([&] { return !me.links.has_sent(); }));
        EXPECT_EQ(me.progress(), progress) << "nor is the answer";
      }
      both.arrive_and_wait();
      me.messages.drive();
      both.arrive_and_wait();
      EXPECT_EQ(me.unread(), 0u) << "the answer has no answer";
    }
    both.arrive_and_wait();
    if (me.rank == 1) {
      for (const int tag : {1, 2}) me.run(Op::recv, tag, 20s);
    }
    both.arrive_and_wait();
  });
}

TEST(Links, APeerThatHasReadMoreThanWasSentIsBlamed) {
  for (const std::uint64_t count : {std::uint64_t{2}, ~std::uint64_t{0}}) {
    Wires wires({0, 1});
    on_native_ranks(
        2,
        [&](NativeRank& me) {
          Ints data(10);
          me.rank == 1 ? me.send(data, 0) : me.recv(data, 1);
          me.run(me.barrier());
          if (me.rank == 0) {
            FrameHeader header;
            header.type = FrameType::read;
            header.what.count = count;
            const WireHeader bytes = encode(header);
            const int socket = wires.end_of(kTestGroup, 0, 1, kMessages);
            EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), 0), 64);
          }
          const Error error = thrown_by([&] { me.recv(data, 1 - me.rank); });
          EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
          EXPECT_EQ(error.context().culprits, std::vector<int>{0});
        },
        &wires);
  }
}

// ---- buffered sends -----------------------------------------------------------------------------

TEST(Links, HundredsOfBufferedMessagesBothWays) {
  on_hosts({0, 1}, [](NativeRank& me) {
    constexpr int kMany = 400;
    const auto byte_count = [](int i) { return static_cast<std::size_t>(i % 7 == 0 ? 60'000 : i); };
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < kMany; ++i)
        me.send(std::vector<std::int8_t>(byte_count(i), static_cast<std::int8_t>(i)), 1 - me.rank,
                i % 4, true);
      for (int i = 0; i < kMany; ++i) {
        std::vector<std::int8_t> got(byte_count(i));
        me.recv(got, 1 - me.rank, i % 4);
        EXPECT_EQ(got, std::vector<std::int8_t>(byte_count(i), static_cast<std::int8_t>(i)));
      }
    }
    me.close();
  });
}

/// More than may be unmatched at a time: the rest goes when the peer has said what it has taken.
TEST(Links, MoreBytesThanMayWaitGoOnceTheyAreTaken) {
  on_hosts({0, 1}, [](NativeRank& me) {
    constexpr int kMany = 24;
    constexpr std::size_t kCount = 1 << 20;
    std::thread receiver([&] {
      for (int i = 0; i < kMany; ++i) {
        Ints got(kCount);
        me.recv(got, 1 - me.rank, 1);
        EXPECT_EQ(got.back(), i);
      }
    });
    for (int i = 0; i < kMany; ++i) me.send(Ints(kCount, i), 1 - me.rank, 1, true);
    receiver.join();
    // And small ones, which have ended when they are announced.
    constexpr int kSmall = 40'000;
    std::thread small_receiver([&] {
      Ints got(1000);
      for (int i = 0; i < kSmall; ++i) me.recv(got, 1 - me.rank, 2);
      EXPECT_EQ(got.back(), kSmall - 1);
    });
    for (int i = 0; i < kSmall; ++i) me.send(Ints(1000, i), 1 - me.rank, 2, true);
    small_receiver.join();
    me.close();
  });
}

TEST(Links, WhatWasBufferedBeforeItsSenderClosedComesAndNothingAfterIt) {
  on_hosts({0, 1}, [](NativeRank& me) {
    if (me.rank == 0) {
      for (int i = 0; i < 200; ++i) me.send(Ints(1000, i), 1, 0, true);
      EXPECT_THROW(me.close(), Error) << "the other one has failed";
      return;
    }
    compute(100ms);
    Ints got(1000);
    for (int i = 0; i < 200; ++i) {
      me.recv(got, 0);
      EXPECT_EQ(got, Ints(1000, i));
    }
    const Error error = thrown_by([&] { me.recv(got, 0); });
    EXPECT_EQ(error.code(), ErrorCode::kClosed) << error.what();
  });
}

/// Whether `call` of one rank is told soon that `other`, which does nothing but close, has gone.
/// Tried again: that one may close late.
bool is_told_soon(int other, const std::function<void(NativeRank&)>& call) {
  bool is_soon = false;
  for (int tries = 0; tries < 3 && !is_soon; ++tries) {
    on_hosts({0, 1}, [&](NativeRank& me) {
      if (me.rank == other) {
        EXPECT_THROW(me.close(), Error);
        return;
      }
      const auto began = Clock::now();
      EXPECT_EQ(thrown_by([&] { call(me); }).code(), ErrorCode::kClosed);
      is_soon = Clock::now() - began < 3s;
    });
  }
  return is_soon;
}

TEST(Links, WhoHasNeverSentAndClosesIsNotAwaited) {
  EXPECT_TRUE(is_told_soon(0, [](NativeRank& me) {
    Ints got(10);
    me.recv(got, 0);
  }));
}

TEST(Links, ASendToOneThatHasClosedIsNotAwaited) {
  EXPECT_TRUE(is_told_soon(1, [](NativeRank& me) {
    const Ints data(10, 1);
    me.send(data, 1);
  }));
}

TEST(Links, FromAnyRankWhereverItIs) {
  for (const auto& hosts : kLayouts) {
    on_hosts(hosts, [](NativeRank& me) {
      constexpr int kEach = 50;
      for (const std::size_t count : {4, 4000}) {
        std::array<int, 4> come = {};
        for (int i = 0; me.rank != 0 && i < kEach; ++i) me.send(Ints(count, me.rank), 0);
        for (int i = 0; me.rank == 0 && i < 3 * kEach; ++i) {
          Ints got(count);
          MessageInfo info;
          Request request = me.recv_of(got, kAnyRank);
          request.message.matched = &info;
          me.run(request);
          EXPECT_EQ(got, Ints(count, info.rank));
          ++of_rank(come, info.rank);
        }
        const int each = me.rank == 0 ? kEach : 0;
        EXPECT_EQ(come, (std::array<int, 4>{0, each, each, each}));
        me.run(me.barrier());
      }
      me.close();
    });
  }
}

// ---- sleeping -----------------------------------------------------------------------------------

TEST(Links, WhoWaitsLongSleeps) {
  on_hosts({0, 1, 2}, [](NativeRank& me) {
    Ints data(5000, 1), got(15'000);
    me.run(me.barrier());
    if (me.rank == 1) {
      compute(600ms);
      me.send(data, 0);
    }
    if (me.rank == 0) {
      const auto before = cpu_time(CLOCK_THREAD_CPUTIME_ID);
      me.recv(data, 1);
      EXPECT_LT(cpu_time(CLOCK_THREAD_CPUTIME_ID) - before, 200ms);
    }
    me.run(me.barrier());
    // What has come meanwhile, and is for a later round, wakes nobody again and again.
    if (me.rank == 1) compute(600ms);
    const auto before = cpu_time(CLOCK_THREAD_CPUTIME_ID);
    const auto all_before = cpu_time(CLOCK_PROCESS_CPUTIME_ID);
    me.run(me.next(Op::all_gather, data.size(), data.data(), got.data()));
    if (me.rank != 1) {
      EXPECT_LT(cpu_time(CLOCK_THREAD_CPUTIME_ID) - before, 200ms);
      EXPECT_LT(cpu_time(CLOCK_PROCESS_CPUTIME_ID) - all_before, 400ms);
    }
    me.close();
  });
}

TEST(Links, WhoIsIdleCostsNothing) {
  on_hosts({0, 1}, [](NativeRank& me) {
    Ints data(10);
    me.rank == 0 ? me.send(data, 1) : me.recv(data, 0);
    compute(100ms);
    const auto before = cpu_time(CLOCK_PROCESS_CPUTIME_ID);
    const auto began = Clock::now();
    compute(500ms);
    EXPECT_LT(cpu_time(CLOCK_PROCESS_CPUTIME_ID) - before, (Clock::now() - began) / 5);
    me.close();
  });
}

TEST(Links, WhatWasReadOutRingsOnceWhenMoreComes) {
  Wires wires({0, 1});
  const std::shared_ptr<Store> store = make_memory_store();
  std::barrier both(2);
  const auto live = [&](const group::NativeSpec& spec) {
    TcpLinks links(*spec.sockets, *spec.membership, spec.world_ranks);
    const PeerLink link = links.link(1 - spec.rank, Lane::collective);
    Alarm& alarm = links.alarm(Lane::collective);
    EXPECT_FALSE(alarm.arm()) << "there is no connection";
    while (!link.connection->is_open()) EXPECT_EQ(link.receiver->peek(), nullptr);
    both.arrive_and_wait();
    if (spec.rank == 0) {
      FrameHeader header;
      header.type = FrameType::segment;
      both.arrive_and_wait();
      EXPECT_EQ(link.open_sender()->try_send(header, nullptr), Sent::whole);
      both.arrive_and_wait();
      return;
    }
    EXPECT_EQ(link.receiver->peek(), nullptr);
    EXPECT_TRUE(alarm.arm());
    EXPECT_FALSE(alarm.arm()) << "it is armed";
    Doorbell& bell = *spec.membership->waiter().bell;
    bell.sleepers.fetch_add(1);  // who is about to sleep
    const std::uint32_t seen = bell.rings.load();
    both.arrive_and_wait();
    for (const auto end = Clock::now() + 20s; bell.rings.load() == seen && Clock::now() < end;)
      std::this_thread::yield();
    EXPECT_EQ(bell.rings.load(), seen + 1);
    EXPECT_FALSE(alarm.arm()) << "what lies there unread is for a later round";
    EXPECT_NE(link.receiver->peek(), nullptr);
    link.receiver->pop();
    EXPECT_EQ(link.receiver->peek(), nullptr);
    EXPECT_TRUE(alarm.arm());
    bell.sleepers.fetch_sub(1);
    both.arrive_and_wait();
  };
  std::thread other([&] { on_native_member(1, 2, wires.board_fd(), store, live, &wires); });
  on_native_member(0, 2, wires.board_fd(), store, live, &wires);
  other.join();
}

/// A late alarm waits for all that is left of a frame, up to what is worth one; and whoever has
/// read some of it meanwhile, the rest rings. The kernel may ring sooner: its window may be small.
TEST(Links, ALateAlarmRingsWhenAllThatIsLeftHasCome) {
  constexpr std::size_t kPart = std::size_t{60} << 10;
  Wires wires({0, 1}, Wires::Kind::tcp);
  const std::shared_ptr<Store> store = make_memory_store();
  std::barrier both(2);
  const auto live = [&](const group::NativeSpec& spec) {
    TcpLinks links(*spec.sockets, *spec.membership, spec.world_ranks);
    const PeerLink link = links.link(1 - spec.rank, Lane::collective);
    while (!link.connection->is_open()) EXPECT_EQ(link.receiver->peek(), nullptr);
    both.arrive_and_wait();
    const int socket = link.connection->socket();
    if (spec.rank == 0) {
      FrameHeader header;
      header.type = FrameType::segment;
      header.payload_bytes = 3 * kPart;
      std::vector<std::byte> bytes(kWireHeaderBytes + header.payload_bytes);
      std::ranges::copy(encode(header), bytes.begin());
      std::size_t sent = 0;
      for (const std::size_t end : {kWireHeaderBytes, kWireHeaderBytes + kPart, bytes.size()}) {
        while (sent < end)
          sent += static_cast<std::size_t>(
              ::send(socket, bytes.data() + sent, end - sent, MSG_NOSIGNAL));
        both.arrive_and_wait();  // it has been looked at
      }
      return;
    }
    const auto rings_at = [&] {
      int byte_count = 0;
      socklen_t size = sizeof byte_count;
      EXPECT_EQ(::getsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &byte_count, &size), 0);
      return static_cast<std::size_t>(byte_count);
    };
    Doorbell& bell = *spec.membership->waiter().bell;
    bell.sleepers.fetch_add(1);  // who is about to sleep
    std::vector<std::byte> whole(3 * kPart);
    std::size_t taken = 0;
    while (link.receiver->peek() == nullptr) {  // the header
    }
    taken += link.receiver->take_into(whole.data());
    EXPECT_TRUE(links.arm_late(Lane::collective));
    EXPECT_EQ(rings_at(), 3 * kPart);
    links.alarm(Lane::collective).arm();
    EXPECT_EQ(rings_at(), 1U) << "a thread that has nothing else to do";
    links.arm_late(Lane::collective);
    EXPECT_EQ(rings_at(), 1U) << "it has yet to be rung";
    const std::uint32_t unrung = bell.rings.load();
    both.arrive_and_wait();
    const auto end = Clock::now() + 20s;
    while (bell.rings.load() == unrung && Clock::now() < end)
      std::this_thread::yield();  // what is read rings no bell
    EXPECT_NE(bell.rings.load(), unrung);
    while (taken < kPart && Clock::now() < end) taken += link.receiver->take_into(whole.data());
    taken += link.receiver->take_into(whole.data());
    EXPECT_TRUE(links.arm_late(Lane::collective));
    EXPECT_EQ(rings_at(), 2 * kPart);
    both.arrive_and_wait();
    while (taken < whole.size() && Clock::now() < end) {
      const std::uint32_t seen = bell.rings.load();
      do {
        taken += link.receiver->take_into(whole.data());
      } while (links.arm_late(Lane::collective));
      while (taken < whole.size() && bell.rings.load() == seen && Clock::now() < end)
        std::this_thread::yield();
    }
    EXPECT_EQ(taken, whole.size());
    link.receiver->pop();
    EXPECT_EQ(link.receiver->peek(), nullptr);
    EXPECT_EQ(rings_at(), 1U);
    bell.sleepers.fetch_sub(1);
    both.arrive_and_wait();
  };
  std::thread other([&] { on_native_member(1, 2, wires.board_fd(), store, live, &wires); });
  on_native_member(0, 2, wires.board_fd(), store, live, &wires);
  other.join();
}

/// Ranks that send, receive and meet after they have computed for about as long as they wait before
/// they sleep.
TEST(Links, AnyOrderOfArrivingAndFallingAsleep) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  on_hosts({0, 1}, [&](NativeRank& me) {
    std::mt19937 random(seed + static_cast<unsigned>(me.rank));
    Ints data(1);
    for (int i = 0; i < 1500; ++i) {
      const auto until = Clock::now() + std::chrono::microseconds(random() % 400);
      while (Clock::now() < until) pause_core();
      if (i % 3 == 0) {
        me.run(me.barrier());
      } else if ((i + me.rank) % 2 == 0) {
        me.send(Ints(1, i), 1 - me.rank, 0, i % 5 == 0);
      } else {
        me.recv(data, 1 - me.rank);
        EXPECT_EQ(data.front(), i);
      }
    }
    me.close();
  });
}

// ---- how a connection ends ----------------------------------------------------------------------

TEST(Links, AConnectionThatEndsFailsTheGroup) {
  for (const std::uint8_t lane : {kMessages, kCollectives}) {
    Wires wires({0, 1, 2});
    on_native_ranks(
        3,
        [&](NativeRank& me) {
          Ints data(10);
          if (me.rank == 0) me.send(data, 1);
          if (me.rank == 1) me.recv(data, 0);
          const auto began = Clock::now();
          me.run(me.next(Op::all_to_all, 1, Ints(3).data(), Ints(3).data()));
          if (me.rank == 0) {
            EXPECT_EQ(::shutdown(wires.end_of(kTestGroup, 0, 1, lane), SHUT_RDWR), 0);
          }
          const Error error = thrown_by([&] {
            Ints all(3);
            if (me.rank < 2 && lane == kCollectives)
              return me.run(me.next(Op::all_to_all, 1, Ints(3).data(), all.data()));
            while (!me.membership.cause() && Clock::now() < began + 60s) compute(5ms);
            throw me.membership.error(nullptr);
          });
          EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
          EXPECT_NE(std::string(error.what()).find("the connection to rank "), std::string::npos);
          EXPECT_NE(std::string(error.what()).find(" has ended"), std::string::npos);
          ASSERT_EQ(error.context().culprits.size(), 1u);
          EXPECT_LT(error.context().culprits.front(), 2);
          EXPECT_GT(Clock::now() - began, 1s) << "another cause may be under way";
        },
        &wires);
  }
}

TEST(Links, APeerWhoseDoorIsClosedIsLost) {
  Wires wires({0, 1});
  wires.end_all();
  on_native_ranks(
      2,
      [&](NativeRank& me) {
        me.run(me.next(Op::all_to_all, 1, Ints(2).data(), Ints(2).data()));
        if (me.rank == 0) ::shutdown(wires.end_of(kTestGroup, 0, 1, kCollectives), SHUT_RDWR);
        const Error error =
            thrown_by([&] { me.run(me.next(Op::all_to_all, 1, Ints(2).data(), Ints(2).data())); });
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
        EXPECT_NE(std::string(error.what()).find("nobody is at its door"), std::string::npos);
        EXPECT_EQ(error.context().culprits.size(), 1u);
      },
      &wires);
}

/// What both ranks are told where no connection is given, with an error of this code.
/// Rank 0 needs it to send, or rank 1 has been waiting and asks whether something comes. `is_ours`:
/// the one that calls lacks something; else the other one is to blame.
void expect_refused(ErrorCode code, bool is_ours) {
  Wires wires({0, 1});
  wires.refuse(code);
  on_native_ranks(
      2,
      [&](NativeRank& me) {
        const Ints data(10, 1);
        Ints got(10);
        const Error error = thrown_by([&] { me.rank == 0 ? me.send(data, 1) : me.recv(got, 0); });
        EXPECT_EQ(error.code(), code) << error.what();
        const std::string text = error.what();
        EXPECT_NE(text.find(" cannot be made: no route to host"), std::string::npos) << text;
        const int called = text.find("the connection to rank 1 ") != std::string::npos ? 1 : 0;
        EXPECT_EQ(error.context().culprits, std::vector<int>{is_ours ? 1 - called : called})
            << text;
      },
      &wires);
}

TEST(Links, AConnectionThatCannotBeMadeFailsTheGroup) { expect_refused(ErrorCode::kSystem, true); }

/// The other end may have one by then, and takes its end for ours.
TEST(Links, WhoIsNotBelievedIsTheCulprit) { expect_refused(ErrorCode::kUnauthenticated, false); }

TEST(Links, WhatIsNoFrameIsBlamedOnItsSender) {
  Wires wires({0, 1});
  on_native_ranks(
      2,
      [&](NativeRank& me) {
        Ints data(10);
        me.rank == 0 ? me.send(data, 1) : me.recv(data, 0);
        me.run(me.barrier());
        if (me.rank == 0) {
          const std::string garbage(64, 'x');
          const int socket = wires.end_of(kTestGroup, 0, 1, kMessages);
          EXPECT_EQ(::send(socket, garbage.data(), garbage.size(), 0), 64);
        }
        const Error error = thrown_by([&] { me.recv(data, 1 - me.rank); });
        EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
        EXPECT_NE(std::string(error.what()).find("what came over a connection from rank 0"),
                  std::string::npos)
            << error.what();
        EXPECT_EQ(error.context().culprits, std::vector<int>{0});
      },
      &wires);
}

/// More than is shown whole: not even to a receive that waits for so much.
TEST(Links, WhatIsAnnouncedWithMoreThanMayComeIsBlamedOnItsSender) {
  for (const std::uint32_t payload_bytes : {4100u, 8192u, 1u << 20}) {
    Wires wires({0, 1});
    on_native_ranks(
        2,
        [&](NativeRank& me) {
          Ints data(10), large(payload_bytes / sizeof(int));
          me.rank == 0 ? me.send(data, 1) : me.recv(data, 0);
          me.run(me.barrier());
          if (me.rank == 0) {
            FrameHeader header;
            header.type = FrameType::announce;
            header.payload_bytes = payload_bytes;
            header.id = 2;
            header.what.count = large.size();
            header.what.op = static_cast<std::uint8_t>(Op::send);
            header.what.dtype = static_cast<std::uint8_t>(dtype_of<int>);
            const WireHeader bytes = encode(header);
            const int socket = wires.end_of(kTestGroup, 0, 1, kMessages);
            EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), 0), 64);
          }
          const Error error = thrown_by([&] { me.recv(large, 1 - me.rank); });
          EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
          EXPECT_EQ(error.context().culprits, std::vector<int>{0});
        },
        &wires);
  }
}

TEST(Links, WhoHasLeftInOrderMayEndItsConnections) {
  std::atomic<bool> first_has_gone{false};
  Wires wires({0, 1});
  std::vector<std::thread> threads;
  const std::shared_ptr<Store> store = make_memory_store();
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      on_native_member(
          rank, 2, wires.board_fd(), store,
          [&](const group::NativeSpec& spec) {
            auto backend = make_native(spec);
            NativeRank me(*backend, *spec.membership);
            Ints data(10);
            me.rank == 0 ? me.send(data, 1) : me.recv(data, 0);
            me.run(me.barrier());
            me.close();
            if (rank == 1) {
              while (!first_has_gone.load()) compute(1ms);
              compute(TcpLinks::kExplained + 500ms);
            }
            EXPECT_FALSE(spec.membership->cause());
            backend.reset();
            first_has_gone = true;
          },
          &wires);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti::native
