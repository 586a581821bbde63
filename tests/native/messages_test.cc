// send and recv: matching, order, sizes, buffering, cancelling, disagreement, to oneself, threads.
#include <gtest/gtest.h>

#include <random>

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

TEST(Messages, DisagreementIsAnErrorAtBothEnds) {
  for (const bool in_dtype : {false, true}) {
    on_native_ranks(2, [in_dtype](NativeRank& me) {
      std::vector<float> floats(8);
      std::vector<std::int32_t> ints(in_dtype ? 8 : 9);
      Request receive = me.recv_of(ints, 0);
      if (!in_dtype) receive.dtype = DType::f32;
      const Error error = thrown_by([&] { me.rank == 0 ? me.send(floats, 1) : me.run(receive); });
      EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch) << error.what();
      EXPECT_NE(std::string(error.what()).find("f32 x 8"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(in_dtype ? "i32 x 8" : "f32 x 9"), std::string::npos)
          << error.what();
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
