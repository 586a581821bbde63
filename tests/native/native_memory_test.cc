// What native takes: pages of the arena only when they are used, and no allocation in a blocking
// call after the first.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>

#include "control/board/limits.h"
#include "native/arena.h"
#include "native_ranks.h"
#include "sanitized.h"

#ifndef TUTTI_SANITIZED
namespace {
thread_local std::size_t allocations = 0;    // but for those of messages that are kept
thread_local std::size_t until_refused = 0;  // that many are granted, and one is not; 0: all
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t byte_count, std::align_val_t alignment) {
  if (until_refused > 0 && --until_refused == 0) throw std::bad_alloc();
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (byte_count + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
// Counts what this thread allocates. Not inlined: g++ would see malloc meet delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t byte_count) {
  ++allocations;
  return operator new (byte_count, std::align_val_t{alignof(std::max_align_t)});
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace tutti::native {
namespace {

TEST(ArenaLayout, RegionsFitAndDoNotOverlap) {
  for (int n = 2; n <= control::kMaxLocalRanks; ++n) {
    const ArenaLayout layout(n);
    EXPECT_EQ(layout.head_bytes % 4096, 0u);
    EXPECT_GE(layout.channel_bytes, 4096u) << n;
    EXPECT_GE(layout.counters_offset(0, Lane::collective), kEngineHeadBytes);
    EXPECT_LE(layout.counters_offset(n - 1, Lane::message) + sizeof(ChannelCounters),
              layout.head_bytes);
    EXPECT_GE(layout.channel_offset(0, Lane::collective), layout.head_bytes);
    EXPECT_LE(layout.channel_offset(n - 1, Lane::message) + layout.channel_bytes,
              kArenaBytes - kEngineRingBytes);
    EXPECT_EQ(layout.channel_offset(0, Lane::message) - layout.channel_offset(0, Lane::collective),
              layout.channel_bytes);
  }
}

void on_arenas(int n, const std::function<void(Arena&)>& body) {
  const std::shared_ptr<Store> store = make_memory_store();
  const net::Fd board = control::Board::make(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      on_native_member(rank, n, board.get(), store, [&](const group::NativeSpec& spec) {
        const std::unique_ptr<Arena> arena = Arena::make(spec);
        body(*arena);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Arena, ReservesWhatIsUsed) {
  on_arenas(2, [](Arena& arena) {
    EXPECT_EQ(arena.reserved_bytes(), arena.layout().head_bytes);
    arena.channel_ring(1 - arena.rank(), Lane::message);
    arena.channel_ring(1 - arena.rank(), Lane::message);
    EXPECT_EQ(arena.reserved_bytes(), arena.layout().head_bytes + arena.layout().channel_bytes);
    arena.engine_ring();
    arena.channel_ring(1 - arena.rank(), Lane::collective);
    EXPECT_EQ(arena.reserved_bytes(),
              arena.layout().head_bytes + 2 * arena.layout().channel_bytes + kEngineRingBytes);
    EXPECT_LE(arena.reserved_bytes(), std::size_t{8} << 20);
  });
}

TEST(Arena, ThreadsShareOneMapping) {
  std::atomic<const std::byte*> of_rank_0{nullptr};
  std::barrier both(2);  // nobody's arena ends before all have looked
  on_arenas(2, [&](Arena& arena) {
    const std::byte* seen = arena.peer(0).engine_head().data();
    const std::byte* other = nullptr;
    const bool first = of_rank_0.compare_exchange_strong(other, seen);
    EXPECT_TRUE(first || other == seen);
    both.arrive_and_wait();
  });
}

#ifndef TUTTI_SANITIZED
TEST(NativeMemory, BlockingCallsAllocateNothing) {
  on_native_ranks(3, [](NativeRank& me) {
    std::vector<float> data(300'000), output(300'000);
    const int next = (me.rank + 1) % me.n, previous = (me.rank + me.n - 1) % me.n;
    const auto all_calls = [&] {
      for (const std::size_t count : {1, 1000, 100'000}) {
        me.run(me.next(Op::broadcast, count, data.data(), data.data(), 1));
        me.run(me.next(Op::all_reduce, count, data.data(), output.data()));
        me.run(me.next(Op::reduce, count, data.data(), output.data(), 2));
        me.run(me.next(Op::gather, count, data.data(), output.data(), 0));
        me.run(me.next(Op::all_gather, count, data.data(), output.data()));
        me.run(me.next(Op::scatter, count, data.data(), output.data(), 0));
        me.run(me.next(Op::reduce_scatter, count, data.data(), output.data()));
        me.run(me.next(Op::all_to_all, count, data.data(), output.data()));
        me.run(me.next(Op::all_to_all, count, data.data(), data.data()));
        me.run(me.barrier());
      }
      for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
        const bool odd_one = me.rank == 2;  // three in a ring: somebody must receive first
        Request send = me.send_of(std::vector<float>{}, next);
        send.input = {data.data(), count, DType::f32};
        Request recv = me.recv_of(output, previous);
        recv.output.count = count;
        send.count = recv.count = count;
        me.run(odd_one ? recv : send);
        me.run(odd_one ? send : recv);
      }
    };
    all_calls();
    EXPECT_GT(allocations, 0u);
    // A wait of 5 ms looks at the board and may allocate: on a busy machine each rank needs a round
    // without one.
    float is_done = 0, done = 0;
    for (int round = 0; round < 400 && done < static_cast<float>(me.n); ++round) {
      const std::size_t before = allocations;
      all_calls();
      if (allocations == before) is_done = 1;
      me.run(me.next(Op::all_reduce, 1, &is_done, &done));
    }
    EXPECT_EQ(is_done, 1) << "all of 400 rounds have allocated";
  });
}

/// Messages of many tags to rank 1, which receives them the other way round. Of this rank's
/// allocations number `refuse` is not granted; 0: all are.
void exchange_tags(NativeRank& me, std::size_t refuse) {
  constexpr int kTags = 40;
  std::vector<char> small(100), large(20'000);
  until_refused = refuse;
  for (int tag = 0; tag < kTags && me.rank == 0; ++tag)
    me.send(tag % 4 == 0 ? large : small, 1, tag, true);
  for (int tag = kTags; tag-- > 0 && me.rank == 1;) me.recv(tag % 4 == 0 ? large : small, 0, tag);
  me.run(me.barrier());
}

/// Whichever allocation of a call it is: nobody waits for ever, and all are told the same.
TEST(NativeMemory, WhereItIsRefusedAllAreTold) {
  constexpr std::size_t kRounds = 60;
  for (const int unlucky : {0, 1}) {
    std::atomic<std::size_t> failures{0};
    for (std::size_t round = 1; round <= kRounds; ++round) {
      on_native_ranks(2, [&](NativeRank& me) {
        me.run(me.barrier());
        try {
          exchange_tags(me, me.rank == unlucky ? round : 0);
        } catch (const Error& error) {
          failures += 1;
          EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
          EXPECT_EQ(error.context().culprits, std::vector<int>{unlucky}) << error.what();
          const bool is_named = std::string(error.what()).find("memory") != std::string::npos;
          EXPECT_TRUE(is_named) << error.what();
        }
        until_refused = 0;
      });
    }
    EXPECT_GT(failures, kRounds / 2) << "rank " << unlucky;
  }
}
#endif

}  // namespace
}  // namespace tutti::native
