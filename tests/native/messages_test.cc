// send and recv: matching, order, sizes, buffering, cancelling, disagreement, to oneself, threads.
#include "native/messages.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <barrier>
#include <random>

#include "native/arena.h"
#include "native/channel/tcp.h"
#include "native_ranks.h"

namespace tutti::native {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes pattern(std::size_t byte_count, unsigned seed) {
  Bytes data(byte_count);
  for (std::size_t i = 0; i < byte_count; ++i) data[i] = static_cast<std::uint8_t>(i * 7 + seed);
  return data;
}

TEST(Messages, CarryEverySize) {
  on_native_ranks(2, [](NativeRank& me) {
    for (const std::size_t byte_count : {0, 1, 63, 4095, 4096, 4097, 65536, 1'000'003, 5'000'000}) {
      Bytes data = pattern(byte_count, 1);
      if (me.rank == 0) {
        me.send(data, 1);
        me.recv(data, 1);
        EXPECT_EQ(data, pattern(byte_count, 2));
      } else {
        Bytes got(byte_count);
        me.recv(got, 0);
        EXPECT_EQ(got, data);
        me.send(pattern(byte_count, 2), 0);
      }
    }
  });
}

TEST(Messages, AroundARing) {
  on_native_ranks(5, [](NativeRank& me) {
    for (const std::size_t byte_count : {8, 100'000}) {
      const Bytes data = pattern(byte_count, static_cast<unsigned>(me.rank));
      Bytes got(byte_count);
      Work work = me.backend.start(me.send_of(data, (me.rank + 1) % me.n));
      me.recv(got, (me.rank + me.n - 1) % me.n);
      work.wait();
      EXPECT_EQ(got, pattern(byte_count, static_cast<unsigned>((me.rank + me.n - 1) % me.n)));
    }
  });
}

TEST(Messages, ASendReturnsOnlyWhenMatched) {
  std::atomic<bool> posted{false};
  on_native_ranks(2, [&](NativeRank& me) {
    Bytes data(10), other(10);
    if (me.rank == 0) {
      me.send(data, 1);
      EXPECT_TRUE(posted.load());
      me.send(data, 1, 99);
    } else {
      Work early = me.backend.start(me.recv_of(other, 0, 99));  // another tag matches nothing
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      EXPECT_FALSE(early.done());
      posted = true;
      me.recv(data, 0);
      early.wait();
    }
  });
}

TEST(Messages, BufferedSendsReturnBeforeTheReceive) {
  on_native_ranks(2, [](NativeRank& me) {
    if (me.rank == 0) {
      for (unsigned i = 0; i < 60; ++i) {
        Bytes data = pattern(4096, i);
        me.send(data, 1, 5, true);
        std::fill(data.begin(), data.end(), std::uint8_t{0});  // ours again
      }
      me.send(Bytes(1), 1, 6);
    } else {
      Bytes go(1);
      me.recv(go, 0, 6);
      for (unsigned i = 0; i < 60; ++i) {
        Bytes got(4096);
        me.recv(got, 0, 5);
        EXPECT_EQ(got, pattern(4096, i));
      }
    }
    me.close();  // where the channel is small rank 0 still has copies
  });
}

/// A part of the content is out when word of that would go.
TEST(Messages, WhatIsTakenBackMeanwhileDoesNotStopALargeOne) {
  on_native_ranks(2, [](NativeRank& me) {
    Bytes large = pattern(8'000'000, 3), got(large.size());
    if (me.rank == 1) {
      me.recv(got, 0, 1);
      EXPECT_EQ(got, large);
      me.run(me.barrier());
      return;
    }
    Work work = me.backend.start(me.send_of(large, 1, 1));
    const Bytes small(4);
    for (int i = 0; i < 20; ++i) {
      Request request = me.send_of(small, 1, 2);
      request.arrive = Deadline::after(std::chrono::milliseconds(1));
      EXPECT_EQ(thrown_by([&] { me.run(request); }).code(), ErrorCode::kTimeout);
    }
    work.wait();
    me.run(me.barrier());
  });
}

TEST(Messages, OneTagNeverBlocksAnother) {
  on_native_ranks(2, [](NativeRank& me) {
    constexpr int kMany = 200;  // more than may be announced of one tag
    Bytes large = pattern(1'000'000, 3);
    if (me.rank == 0) {
      std::vector<Work> works;
      works.push_back(me.backend.start(me.send_of(large, 1, 1)));
      const Bytes small = pattern(4096, 4);
      for (int i = 0; i < kMany; ++i) works.push_back(me.backend.start(me.send_of(small, 1, 2)));
      me.send(pattern(100, 5), 1, 3);
      for (Work& work : works) work.wait();
    } else {
      Bytes got(100);
      me.recv(got, 0, 3);  // the last first
      EXPECT_EQ(got, pattern(100, 5));
      got.resize(4096);
      for (int i = 0; i < kMany; ++i) {
        me.recv(got, 0, 2);
        EXPECT_EQ(got, pattern(4096, 4));
      }
      Bytes all(large.size());
      me.recv(all, 0, 1);
      EXPECT_EQ(all, large);
    }
  });
}

TEST(Messages, OfOneTagEndInOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  on_native_ranks(2, [&](NativeRank& me) {
    std::mt19937 random(seed);
    constexpr std::size_t kMessages = 150;
    std::vector<Bytes> data;
    for (unsigned i = 0; i < kMessages; ++i) {
      const std::size_t byte_count = random() % 3 == 0 ? random() % 300'000 : random() % 3000;
      data.push_back(me.rank == 0 ? pattern(byte_count, i) : Bytes(byte_count));
    }
    std::vector<Work> works;
    for (std::size_t i = 0; i < kMessages; ++i) {
      works.push_back(
          me.backend.start(me.rank == 0 ? me.send_of(data[i], 1, 7) : me.recv_of(data[i], 0, 7)));
    }
    for (std::size_t i = kMessages; i-- > 0;) {
      const bool done = works[i].done();
      for (std::size_t before = 0; done && before < i; ++before) {
        EXPECT_TRUE(works[before].done()) << before << " after " << i;
      }
    }
    for (Work& work : works) work.wait();
    for (unsigned i = 0; me.rank == 1 && i < kMessages; ++i) {
      EXPECT_EQ(data[i], pattern(data[i].size(), i)) << i;
    }
  });
}

TEST(Messages, BothWaysAtOnceWithoutDeadlock) {
  on_native_ranks(4, [](NativeRank& me) {
    std::vector<Bytes> out, in;
    std::vector<Work> works;
    for (int peer = 0; peer < me.n; ++peer) {
      out.push_back(pattern(700'000, static_cast<unsigned>(me.rank * 16 + peer)));
      in.emplace_back(700'000);
    }
    for (std::size_t peer = 0; peer < out.size(); ++peer) {
      works.push_back(me.backend.start(me.send_of(out[peer], static_cast<int>(peer))));
    }
    for (int peer = me.n - 1; peer >= 0; --peer) {
      me.recv(in[static_cast<std::size_t>(peer)], peer);
    }
    for (Work& work : works) work.wait();
    for (int peer = 0; peer < me.n; ++peer) {
      EXPECT_EQ(in[static_cast<std::size_t>(peer)],
                pattern(700'000, static_cast<unsigned>(peer * 16 + me.rank)));
    }
  });
}

TEST(Messages, DifferentTagsFromDifferentThreads) {
  on_native_ranks(2, [](NativeRank& me) {
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&me, tag] {
        Bytes data = pattern(tag % 2 == 0 ? 100 : 200'000, static_cast<unsigned>(tag));
        const Bytes expected = data;
        for (int i = 0; i < 50; ++i) {
          if (me.rank == 0) {
            me.send(data, 1, tag);
            me.recv(data, 1, tag);
          } else {
            me.recv(data, 0, tag);
            me.send(data, 0, tag);
          }
        }
        EXPECT_EQ(data, expected);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Messages, HundredsOfThreadsWaitAtOnce) {
  constexpr int kThreads = 150;
  constexpr int kRounds = 4;
  on_native_ranks(2, [&](NativeRank& me) {
    const int peer = 1 - me.rank;
    std::vector<std::thread> threads;
    for (int tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        for (int round = 0; round < kRounds; ++round) {
          const Bytes sent = pattern(64, static_cast<unsigned>(tag + round));
          Bytes got(64);
          if (tag % 2 == 0) {
            Work receive = me.backend.start(me.recv_of(got, peer, tag));
            Work send = me.backend.start(me.send_of(sent, peer, tag));
            receive.wait();
            send.wait();
          } else if (me.rank == 0) {
            me.send(sent, peer, tag);
            me.recv(got, peer, tag);
          } else {
            me.recv(got, peer, tag);
            me.send(sent, peer, tag);
          }
          EXPECT_EQ(got, sent);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Messages, NeitherWaitForCollectivesNorTheyForThem) {
  on_native_ranks(2, [](NativeRank& me) {
    std::vector<float> sum(200'000, 1.0f);
    Bytes data = pattern(200'000, 9), got(data.size()), last(1);
    if (me.rank == 0) {
      Work collective =
          me.backend.start(me.next(Op::all_reduce, sum.size(), sum.data(), sum.data()));
      me.send(data, 1);  // before rank 1 enters the collective
      collective.wait();
      me.run(me.barrier());
      me.send(last, 1, 77);
    } else {
      Work late = me.backend.start(me.recv_of(last, 0, 77));
      me.recv(got, 0);
      me.run(me.next(Op::all_reduce, sum.size(), sum.data(), sum.data()));
      me.run(me.barrier());  // while the receive is posted
      late.wait();
      EXPECT_EQ(got, data);
    }
    EXPECT_EQ(sum, std::vector<float>(200'000, 2.0f));
  });
}

TEST(Messages, AReceiveThatTimesOutIsWithdrawnAndTheGroupGoesOn) {
  on_native_ranks(2, [](NativeRank& me) {
    Bytes data(100);
    if (me.rank == 1) {
      Request request = me.recv_of(data, 0);
      request.arrive = Deadline::after(std::chrono::milliseconds(50));
      EXPECT_EQ(thrown_by([&] { me.run(request); }).code(), ErrorCode::kTimeout);
      Work work = me.backend.start(request);
      EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kTimeout);
      EXPECT_EQ(me.membership.abort_word().load(), 0u);
    }
    me.run(me.barrier());
    if (me.rank == 0) {
      me.send(pattern(100, 1), 1);
    } else {
      me.recv(data, 0);
      EXPECT_EQ(data, pattern(100, 1));
    }
  });
}

TEST(Messages, ASendThatTimesOutIsTakenBackAndTheGroupGoesOn) {
  for (const std::size_t byte_count : {0, 100, 100'000}) {
    on_native_ranks(2, [byte_count](NativeRank& me) {
      Bytes data(byte_count);
      if (me.rank == 0) {
        Request request = me.send_of(pattern(byte_count, 1), 1);
        const Bytes first = pattern(byte_count, 1);
        request.input.data = first.data();
        request.arrive = Deadline::after(std::chrono::milliseconds(30));
        EXPECT_EQ(thrown_by([&] { me.run(request); }).code(), ErrorCode::kTimeout);
        Work work = me.backend.start(request);
        EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kTimeout);
        EXPECT_EQ(me.membership.abort_word().load(), 0u);
      }
      me.run(me.barrier());
      if (me.rank == 0) {
        me.send(pattern(byte_count, 2), 1);
      } else {
        me.recv(data, 0);
        EXPECT_EQ(data, pattern(byte_count, 2)) << "not one of those that were taken back";
      }
    });
  }
}

/// Sends with deadlines about as long as it takes to match them: each arrives or is taken back, and
/// both ends agree which. Younger ones of the tag keep their order.
TEST(Messages, TakingBackRacesWithMatching) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kRounds = 1000;
  std::vector<int> sent;
  std::vector<int> received;
  on_native_ranks(2, [&](NativeRank& me) {
    std::mt19937 random(seed + static_cast<unsigned>(me.rank));
    const auto goes_well = [&](const Request& request, bool blocking) {
      try {
        blocking ? me.run(request) : me.backend.start(request).wait();
        return true;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
        return false;
      }
    };
    const auto soon = [&](unsigned most) {
      return Deadline::after(std::chrono::microseconds(random() % most));
    };
    for (int i = 0; me.rank == 0 && i <= kRounds; ++i) {
      const std::vector<int> data(i % 3 == 0 ? 3000 : 5, i);  // content of its own, or eager
      Request request = me.send_of(data, 1, i % 3 == 0 ? 0 : 1);
      if (i < kRounds) request.arrive = soon(1000);
      if (goes_well(request, i % 2 == 0)) sent.push_back(i);
    }
    for (int i = 0; me.rank == 1 && (received.empty() || received.back() < kRounds); ++i) {
      std::vector<int> data(i % 3 == 0 ? 3000 : 5, -1);
      Request request = me.recv_of(data, 0, i % 3 == 0 ? 0 : 1);
      request.arrive = soon(1000);
      Deadline away = soon(i % 20 == 0 ? 12'000 : 500);  // computing
      while (!away.expired(Deadline::Clock::now())) {
      }
      if (goes_well(request, i % 2 == 0)) received.push_back(data.front());
      EXPECT_EQ(data, std::vector<int>(data.size(), data.front()));
    }
    EXPECT_EQ(me.membership.abort_word().load(), 0u);
    me.run(me.barrier());
  });
  EXPECT_GT(sent.size(), 1u);
  EXPECT_LT(sent.size(), static_cast<std::size_t>(kRounds)) << "nothing was taken back";
  std::sort(received.begin(), received.end());
  EXPECT_EQ(received, sent);
}

/// Each call of the program wakes the thread that looks at deadlines.
TEST(Messages, ATimeoutIsToldWhileAnotherThreadKeepsTheRankBusy) {
  std::atomic<bool> told{false};
  on_native_ranks(2, [&](NativeRank& me) {
    std::vector<int> ball(1);
    if (me.rank == 1) {
      while (ball[0] >= 0) {
        me.recv(ball, 0, 1);
        me.send(ball, 0, 2);
      }
      return;
    }
    std::thread player([&] {
      const Deadline::Clock::time_point end = Deadline::Clock::now() + std::chrono::seconds(15);
      do {
        if (told.load() || Deadline::Clock::now() > end) ball[0] = -1;
        me.send(ball, 1, 1);
        std::vector<int> back(1);
        me.recv(back, 1, 2);
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      } while (ball[0] >= 0);
    });
    std::vector<int> data(1);
    Request request = me.recv_of(data, 1, 7);
    const auto began = Deadline::Clock::now();
    request.arrive = Deadline::after(std::chrono::milliseconds(200));
    Work work = me.backend.start(request);
    EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kTimeout);
    EXPECT_LT(Deadline::Clock::now() - began, std::chrono::seconds(5));
    told.store(true);
    player.join();
  });
}

/// Plays the receiver of two messages of a tag at the other end of a connection: when the older one
/// is recalled it gives it back, but only after it has matched the younger one.
void match_the_younger_first(const std::shared_ptr<TcpConnection>& connection,
                             const std::function<void()>& wake) {
  TcpReceiver in(connection);
  TcpSender out(connection);
  std::vector<FrameHeader> announced;
  for (bool is_recalled = false; !is_recalled; in.pop()) {
    const Frame* frame = nullptr;
    while ((frame = in.peek()) == nullptr) std::this_thread::yield();
    is_recalled = frame->header.type == FrameType::recall;
    if (!is_recalled) announced.push_back(frame->header);
  }
  ASSERT_EQ(announced.size(), 2u);
  FrameHeader match;
  match.type = FrameType::match;
  match.id = announced[1].id;
  match.tag = announced[1].tag;
  match.what.count = Matcher::cost_of(announced[1]);
  EXPECT_EQ(out.try_send(match, nullptr), Sent::whole);
  FrameHeader returned = match;
  returned.type = FrameType::returned;
  returned.id = announced[0].id;
  EXPECT_EQ(out.try_send(returned, nullptr), Sent::whole);
  wake();
}

TEST(Messages, AYoungerOneThatWasMatchedEndsWhenTheOlderOneIsGivenBack) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const auto near = std::make_shared<TcpConnection>(net::Secured(net::Fd(ends[0])));
  const auto far = std::make_shared<TcpConnection>(net::Secured(net::Fd(ends[1])));
  const std::shared_ptr<Store> store = make_memory_store();
  const net::Fd board = control::Board::make(2);
  std::barrier both(2);
  const auto live = [&](const group::NativeSpec& spec) {
    if (spec.rank == 1) {
      match_the_younger_first(far, [&] { spec.membership->notify(0); });
      both.arrive_and_wait();
      return;
    }
    Channels channels(2, 0, kMaxTcpPayload, [&](int) {
      PeerLink link;
      link.receiver = std::make_unique<TcpReceiver>(near);
      link.open_sender = [&] { return std::make_unique<TcpSender>(near); };
      link.connection = near;
      return link;
    });
    Messages messages(channels, *spec.membership);
    std::uint64_t data = 7;
    Request request;
    request.op = Op::send;
    request.dtype = DType::u64;
    request.count = 1;
    request.input = {&data, 1, DType::u64};
    request.message.peer = 1;
    request.arrive = request.stall = Deadline::after(std::chrono::seconds(20));
    Transfer older(messages, request, nullptr), younger(messages, request, nullptr);
    messages.submit(older);
    messages.submit(younger);
    EXPECT_TRUE(messages.cancel(older, Error(ErrorCode::kCancelled, "taken back", {})));
    both.arrive_and_wait();
    messages.drive();
    EXPECT_TRUE(younger.ended());
    messages.withdraw(younger, true);
  };
  std::thread other([&] { on_native_member(1, 2, board.get(), store, live); });
  on_native_member(0, 2, board.get(), store, live);
  other.join();
}

/// The match lies in the channel when the group fails, after which nothing is read.
TEST(Messages, NothingThatWasReceivedIsTakenBackOnceTheGroupHasFailed) {
  const std::shared_ptr<Store> store = make_memory_store();
  const net::Fd board = control::Board::make(2);
  std::barrier both(2);
  const auto live = [&](const group::NativeSpec& spec) {
    const std::unique_ptr<Arena> arena = Arena::make(spec);
    Channels channels = shm_channels(arena.get(), Lane::message);
    Messages messages(channels, *spec.membership);
    std::uint64_t data = spec.rank == 0 ? 7 : 0;
    Request request;
    request.op = spec.rank == 0 ? Op::send : Op::recv;
    request.dtype = DType::u64;
    request.count = 1;
    request.input = {&data, 1, DType::u64};
    request.output = {&data, 1, DType::u64};
    request.message.peer = 1 - spec.rank;
    request.arrive = request.stall = Deadline::after(std::chrono::seconds(20));
    if (spec.rank == 1) {
      both.arrive_and_wait();  // it is announced
      messages.run(request);
      EXPECT_EQ(data, 7u);
      both.arrive_and_wait();
      return;
    }
    Transfer send(messages, request, nullptr);
    messages.submit(send);
    both.arrive_and_wait();
    both.arrive_and_wait();
    spec.membership->fail({ErrorCode::kAborted, "somebody aborted the group", {}, {}});
    EXPECT_FALSE(messages.withdraw(send, false)) << "it was received";
    EXPECT_TRUE(messages.withdraw(send, true));
  };
  std::thread other([&] { on_native_member(1, 2, board.get(), store, live); });
  on_native_member(0, 2, board.get(), store, live);
  other.join();
}

TEST(Messages, LookingAtManyIsNotAllThatIsDone) {
  using namespace std::chrono_literals;
  EXPECT_EQ(control::pause_after(0ns), 0ns);
  EXPECT_EQ(control::pause_after(2ms), 20ms);
  EXPECT_EQ(control::pause_after(1h), 1s);
}

TEST(Messages, AnyNumberMayBeUnmatched) {
  // A narrow stream takes a few of them at a time, and each time its ends wait for a core.
  const int kMany = host_of == nullptr ? 20'000 : 2'000;
  on_native_ranks(2, [kMany](NativeRank& me) {
    std::vector<Bytes> data(static_cast<std::size_t>(kMany),
                            Bytes(4, static_cast<std::uint8_t>(me.rank)));
    std::vector<Work> works;
    if (me.rank == 0) {
      for (int i = 0; i < kMany; ++i) {
        Bytes& each = data[static_cast<std::size_t>(i)];
        each = pattern(4, static_cast<unsigned>(i));
        works.push_back(me.backend.start(me.send_of(each, 1, i)));
      }
    } else {
      for (int i = kMany; i-- > 0;) {  // the other way round
        Bytes got(4);
        me.recv(got, 0, i);
        ASSERT_EQ(got, pattern(4, static_cast<unsigned>(i)));
      }
    }
    for (Work& work : works) work.wait();
    // And the receives first.
    works.clear();
    if (me.rank == 1) {
      for (int i = 0; i < kMany; ++i) {
        works.push_back(me.backend.start(me.recv_of(data[static_cast<std::size_t>(i)], 0, i)));
      }
    } else {
      for (int i = kMany; i-- > 0;) me.send(data[static_cast<std::size_t>(i)], 1, i);
    }
    for (Work& work : works) work.wait();
    me.run(me.barrier());
  });
}

TEST(Messages, BeyondTheBytesThatMayWaitBothEndsSaySo) {
  on_native_ranks(2, [](NativeRank& me) {
    me.timeout = std::chrono::seconds(200);
    constexpr std::size_t kEach = Messages::kKeptBytes + Messages::kEagerBytes;
    constexpr std::size_t kFull = Messages::kMaxUnmatchedBytes / kEach;
    Bytes data(Messages::kEagerBytes);
    if (me.rank == 0) {
      for (std::size_t i = 0; i < kFull; ++i) me.send(data, 1, 5 + static_cast<int>(i / 60), true);
      constexpr std::size_t kLeft = Messages::kMaxUnmatchedBytes % kEach / Messages::kKeptBytes;
      for (std::size_t i = 0; i < kLeft; ++i) me.send(Bytes(), 1, 4, true);
      Request over = me.send_of(data, 1, 1, true);
      over.arrive = Deadline::after(std::chrono::milliseconds(30));
      const Error error = thrown_by([&] { me.run(over); });
      EXPECT_NE(std::string(error.what())
                    .find("it was held back: messages of rank 0 to rank 1 take 67108864 bytes, "
                          "which is the most that may wait for their recv"),
                std::string::npos)
          << error.what();
      Work work = me.backend.start(me.send_of(data, 1, 1));
      me.run(me.barrier());
      work.wait();
    } else {
      Request none = me.recv_of(data, 0, 1);
      none.has_own_timeout = true;
      const auto end = Deadline::Clock::now() + std::chrono::seconds(200);
      for (;;) {  // it takes the others in meanwhile
        none.arrive = Deadline::after(std::chrono::milliseconds(100));
        const std::string text = thrown_by([&] { me.run(none); }).what();
        if (text.find("messages of rank 0 with other tags take 67108864 bytes here, which is the "
                      "most that may wait for their recv: receive those first") !=
            std::string::npos) {
          break;
        }
        ASSERT_LT(Deadline::Clock::now(), end) << text;
      }
      me.run(me.barrier());
      me.recv(data, 0, 5);
      me.recv(data, 0, 1);  // now it can come
    }
  });
}

/// The bytes of a large buffered message go once its sender is told of the match, for which there
/// is no room while nobody reads for that rank.
TEST(Messages, WhatCameBeforeItsSenderClosedIsMatchedOnceThereIsRoom) {
  std::atomic<bool> is_posted{false}, is_held{false}, is_free{false};
  on_native_ranks(2, [&](NativeRank& me) {
    const Bytes large = pattern(100'000, 1);
    Bytes got(large.size()), none;
    if (me.rank == 1) {
      me.send(large, 0, 1, true);
      // From now on nobody reads for this rank: a callback keeps the others from it.
      const Work held = me.backend.start(me.recv_of(none, 0, 9)).then([&](const Error*) {
        is_held.store(true);
        is_held.notify_all();
        is_free.wait(false);
      });
      is_posted.store(true);
      is_posted.notify_all();
      is_held.wait(false);
      return me.close();
    }
    is_posted.wait(false);
    me.send(none, 1, 9);
    while (me.membership.read_facts().does(1).state != control::LineState::closing)
      std::this_thread::yield();
    for (int i = 0; i < 20'000; ++i) me.send(none, 1, 2, true);
    std::thread frees([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      is_free.store(true);
      is_free.notify_all();
    });
    EXPECT_NO_THROW(me.recv(got, 1, 1));
    frees.join();
    EXPECT_EQ(got, large);
    me.close();
  });
}

TEST(Messages, DisagreementIsAnErrorAtBothEnds) {
  for (const bool in_dtype : {false, true}) {
    on_native_ranks(2, [in_dtype](NativeRank& me) {
      std::vector<float> floats(8);
      std::vector<std::int32_t> ints(in_dtype ? 8 : 9);
      Request receive = me.recv_of(ints, 0);
      if (!in_dtype) receive.dtype = DType::f32;
      const Error error = thrown_by([&] { me.rank == 0 ? me.send(floats, 1) : me.run(receive); });
      EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
      EXPECT_EQ(std::string(error.what()),
                std::string(me.rank == 0 ? "send (rank 0)" : "recv (rank 1)") +
                    " at native_test.cc:1: rank 0 sent f32 x 8 with tag 0 to rank 1 at "
                    "native_test.cc:1, which receives " +
                    (in_dtype ? "i32 x 8" : "f32 x 9") +
                    " at native_test.cc:1; make both ends agree in dtype and count");
    });
  }
}

TEST(Messages, ToOneself) {
  for (const int n : {1, 2}) {
    on_native_ranks(n, [](NativeRank& me) {
      Bytes small = pattern(10, 1), large = pattern(100'000, 2), got(10), got_large(100'000);
      EXPECT_EQ(thrown_by([&] { me.send(small, me.rank); }).code(), ErrorCode::kInvalidArgument);
      me.send(small, me.rank, 0, true);
      me.recv(got, me.rank);
      EXPECT_EQ(got, small);
      // Buffered and unbuffered ones of a tag keep their order.
      Work first = me.backend.start(me.send_of(large, me.rank));
      me.send(small, me.rank, 0, true);
      EXPECT_FALSE(first.done());
      me.recv(got_large, me.rank);
      me.recv(got, me.rank);
      first.wait();
      EXPECT_EQ(got_large, large);
      EXPECT_EQ(got, small);
      Work receive = me.backend.start(me.recv_of(got, me.rank, 3));
      me.backend.start(me.send_of(pattern(10, 8), me.rank, 3)).wait();
      receive.wait();
      EXPECT_EQ(got, pattern(10, 8));
    });
  }
}

}  // namespace
}  // namespace tutti::native
