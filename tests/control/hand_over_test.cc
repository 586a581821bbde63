// Making, sealing, mapping and handing over memory, between threads and between processes.
#include "control/memory/hand_over.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "control/memory/memory.h"
#include "net/unix_socket.h"
#include "open_descriptors.h"
#include "ranks.h"
#include "rendezvous/children.h"
#include "store/call_store.h"
#include "store/stores.h"
#include "store/table.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(20s); }

/// A memory that says whose it is, as its owner keeps it: mapped, then sealed against writes.
struct Owned {
  explicit Owned(int rank) : memory(make_memory("tutti-test", 4096)) {
    reserve_memory(memory, 0, 4096);
    mapping = map_shared(memory, 4096, true);
    seal_writes(memory);
    std::memcpy(mapping->data(), &rank, sizeof rank);
  }
  net::Fd memory;
  std::shared_ptr<Mapping> mapping;
};

int owner_in(const Mapping& mapping) {
  int rank = -1;
  std::memcpy(&rank, mapping.data(), sizeof rank);
  return rank;
}

/// As the kernel has mapped it.
bool is_writable(const Mapping& mapping) {
  const auto address = reinterpret_cast<std::uintptr_t>(mapping.data());
  std::ifstream maps("/proc/self/maps");
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::string permissions;
  std::string rest;
  for (char dash = 0; maps >> std::hex >> begin >> dash >> end >> permissions;) {
    if (begin <= address && address < end) return permissions.at(1) == 'w';
    std::getline(maps, rest);
  }
  return false;
}

TEST(Memory, ALimitOfFileSizesIsAnErrorAndNoSignal) {
  rlimit former = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &former), 0);
  const rlimit small = {.rlim_cur = 102400, .rlim_max = former.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    make_memory("tutti-test", 8u << 20);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    message = error.what();
  }
  EXPECT_TRUE(make_memory("tutti-test", 102400));
  ::setrlimit(RLIMIT_FSIZE, &former);
  EXPECT_EQ(
      message,
      "cannot make 8388608 bytes of shared memory: this process may make files of at most "
      "102400 bytes (RLIMIT_FSIZE), and memory counts as one: raise the limit with `ulimit -f "
      "unlimited`");
}

TEST(Memory, CannotBeResizedNorNewlyWrittenOnceSealed) {
  const Owned owned(3);
  EXPECT_NE(::ftruncate(owned.memory.get(), 1), 0);
  EXPECT_NE(::ftruncate(owned.memory.get(), 1 << 20), 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, owned.memory.get(), 0),
            MAP_FAILED);
  EXPECT_NE(::write(owned.memory.get(), "x", 1), 1);
  void* read_only = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, owned.memory.get(), 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_NE(::mprotect(read_only, 4096, PROT_READ | PROT_WRITE), 0);
  ::munmap(read_only, 4096);
  owned.mapping->data()[100] = std::byte{1};  // the owner still writes
}

TEST(Memory, OneMappingPerProcess) {
  const net::Fd memory = make_memory("tutti-test", 8192);
  const net::Fd other = make_memory("tutti-test", 8192);
  auto own = map_shared(memory, 8192, true);
  const net::Fd copy = memory.duplicate();
  EXPECT_EQ(map_shared(copy, 8192, false), own);
  EXPECT_EQ(map_shared(copy, 4096, true), own);
  EXPECT_NE(map_shared(other, 8192, false), own);
  const std::weak_ptr<Mapping> watch = own;
  own.reset();
  EXPECT_TRUE(watch.expired());
  const auto again = map_shared(memory, 8192, false);
  EXPECT_FALSE(is_writable(*again));
  const auto writable = map_shared(memory, 8192, true);  // a reader cannot serve a writer
  EXPECT_NE(writable, again);
  EXPECT_EQ(map_shared(memory, 8192, false), writable);
}

TEST(Memory, WhatIsTooSmallOrCouldShrinkIsNotMapped) {
  const net::Fd memory = make_memory("tutti-test", 4096);
  EXPECT_EQ(thrown_by([&] { map_shared(memory, 8192, false); }).code(),
            ErrorCode::kInvalidArgument);
  const net::Fd loose(::memfd_create("tutti-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), 4096), 0);
  const Error error = thrown_by([&] { map_shared(loose, 4096, false); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "not sealed");
}

TEST(Memory, MappedAndDroppedByManyThreadsAtOnce) {
  const net::Fd memory = make_memory("tutti-test", 4096);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const auto mapping = map_shared(memory, 4096, t % 2 == 0);
        EXPECT_NE(mapping->data(), nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Runs `body(rank)` on threads.
template <class Body>
void on_threads(int count, Body body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HandOver, AloneGetsItsOwn) {
  const auto store = make_memory_store();
  const Owned owned(0);
  const auto memories = hand_over(*store, "g", 0, 1, owned.memory.get(), soon());
  ASSERT_EQ(memories.size(), 1u);
  EXPECT_EQ(map_shared(memories[0], 4096, false), owned.mapping);
  EXPECT_EQ(store->num_keys(), 0);
}

TEST(HandOver, ThreadsShareTheOwnersMappings) {
  constexpr int kRanks = 8;
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Owned>> owned;
  for (int r = 0; r < kRanks; ++r) owned.push_back(std::make_unique<Owned>(r));
  on_threads(kRanks, [&](int rank) {
    const auto& own = owned[static_cast<std::size_t>(rank)];
    const auto memories = hand_over(*store, "g", rank, kRanks, own->memory.get(), soon());
    for (std::size_t r = 0; r < memories.size(); ++r) {
      EXPECT_EQ(map_shared(memories[r], 4096, false), owned[r]->mapping);
    }
  });
  EXPECT_EQ(store->num_keys(), 0);  // nothing is left in the store
}

TEST(HandOver, OnlySomeGive) {
  const auto store = make_memory_store();
  const Owned board(7);
  on_threads(3, [&](int rank) {
    const int own = rank == 0 ? board.memory.get() : -1;
    const auto memories = hand_over(*store, "board", rank, 3, own, soon());
    EXPECT_TRUE(memories[0]);
    EXPECT_FALSE(memories[1]);
    EXPECT_FALSE(memories[2]);
    EXPECT_EQ(owner_in(*map_shared(memories[0], 4096, false)), 7);
  });
}

TEST(HandOver, MoreRanksThanFitInOneMessage) {
  constexpr int kRanks = 100;
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Owned>> owned;
  for (int r = 0; r < kRanks; ++r) owned.push_back(std::make_unique<Owned>(r));
  on_threads(kRanks, [&](int rank) {
    const auto& own = owned[static_cast<std::size_t>(rank)];
    int next = 0;
    hand_over(*store, "g", rank, kRanks, own->memory.get(), soon(), [&](int owner, net::Fd memory) {
      EXPECT_EQ(owner, next++);
      EXPECT_EQ(owner_in(*map_shared(memory, 4096, false)), owner);
    });
    EXPECT_EQ(next, kRanks);
  });
}

TEST(HandOver, ProcessesReadEachOther) {
  constexpr int kRanks = 4;
  // The server's thread must not be there when we fork: it lives in a process of its own.
  const std::string address = net::random_address("tutti-test");
  net::Fd listener(net::listen(address).release());  // not private: for the child
  test::Child server([&] {
    store::Server serving({.listener = std::move(listener)});
    for (;;) ::pause();
    return std::string();
  });
  std::vector<test::Child> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([=] {
      const auto store = store::connect_store(address, {}, soon()).store;
      const int before = open_descriptors();
      for (int group = 0; group < 20; ++group) {
        const Owned own(rank + 10 * group);
        const auto memories = hand_over(*store, "group/" + std::to_string(group), rank, kRanks,
                                        own.memory.get(), soon());
        for (int r = 0; r < kRanks; ++r) {
          const auto mapping = map_shared(memories[static_cast<std::size_t>(r)], 4096, false);
          if (owner_in(*mapping) != r + 10 * group) return std::string("wrong memory");
          if (is_writable(*mapping) != (r == rank)) return std::string("wrong protection");
        }
      }
      if (open_descriptors() != before) return std::string("descriptors leaked");
      store->barrier("end", kRanks, 20s);
      return std::string("all read");
    });
  }
  for (test::Child& rank : ranks) EXPECT_EQ(rank.result(), "all read");
}

TEST(HandOver, StrangersAndGarbageDoNotDisturb) {
  const auto store = make_memory_store();
  const Owned zero(0);
  const Owned one(1);
  std::vector<net::Fd> strangers;
  std::thread host([&] {
    const auto memories = hand_over(*store, "g", 0, 2, zero.memory.get(), soon());
    EXPECT_EQ(owner_in(*map_shared(memories[1], 4096, false)), 1);
  });
  const std::string address = store->get("g/hand-over", 20s);
  for (const std::string& words :
       {std::string("garbage!garbage!garbage!"), std::string("half"), std::string(16, '\0'),
        std::string("THo1\2\0\0\0\0\0\0\0\0\0\0\0", 16),     // claims to be rank 0
        std::string("THo1\2\0\0\0\5\0\0\0\0\0\0\0", 16),     // rank 5 of 2
        std::string("THo1\3\0\0\0\1\0\0\0\0\0\0\0", 16),     // of another size
        std::string("THo1\2\0\0\0\1\0\0\0\1\0\0\0", 16)}) {  // says it gives, and does not
    Deadline deadline = soon();
    strangers.push_back(net::connect(address, deadline));
    net::send_all(strangers.back().get(), std::as_bytes(std::span(words)), deadline);
  }
  Deadline deadline = soon();
  strangers.push_back(net::connect(address, deadline));
  const std::array<int, 2> too_many{STDIN_FILENO, STDERR_FILENO};
  net::send_all(strangers.back().get(), std::as_bytes(std::span("x", 1)), deadline, too_many);
  const auto memories = hand_over(*store, "g", 1, 2, one.memory.get(), soon());
  EXPECT_EQ(owner_in(*map_shared(memories[0], 4096, false)), 0);
  host.join();
}

/// A store that does something when an address has been put into it.
class WatchedStore final : public store::CallStore {
 public:
  explicit WatchedStore(std::function<void(const std::string& value)> on_set)
      : on_set_(std::move(on_set)) {}

 private:
  store::Answer perform(const store::Call& call, Timeout) override {
    store::Answer answer = table_.apply(call).value();
    if (call.command == store::Command::set) on_set_(call.values[0]);
    return answer;
  }
  std::function<void(const std::string& value)> on_set_;
  store::Table table_;
};

TEST(HandOver, AHelloThatLiesUnreadBeforeALongQueueIsServed) {
  std::vector<net::Fd> queue;
  WatchedStore store([&](const std::string& address) {
    const std::string hello("THo1\2\0\0\0\1\0\0\0\0\0\0\0", 16);
    for (int i = 0; i < 600; ++i) {
      Deadline deadline = soon();
      queue.push_back(net::connect(address, deadline));
      if (i == 0) net::send_all(queue[0].get(), std::as_bytes(std::span(hello)), deadline);
    }
  });
  const Owned zero(0);
  const auto memories = hand_over(store, "g", 0, 2, zero.memory.get(), soon());
  EXPECT_FALSE(memories[1]);  // it came, and gave none
}

TEST(HandOver, ATimeoutNamesWhoDidNotCome) {
  const auto store = make_memory_store();
  const Owned own(0);
  std::thread other([&] {
    const Error error = thrown_by([&] { hand_over(*store, "g", 2, 4, own.memory.get(), soon()); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
  });
  const Error error =
      thrown_by([&] { hand_over(*store, "g", 0, 4, own.memory.get(), Deadline::after(5s)); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "ranks 1, 3 of 4");
  other.join();
  EXPECT_EQ(thrown_by([&] {
              hand_over(*store, "other", 1, 2, own.memory.get(), Deadline::after(100ms));
            }).code(),
            ErrorCode::kTimeout);
}

TEST(HandOver, AnotherUserIsToldSo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string address = net::random_address("tutti-test");
  const net::Fd listener = net::listen(address);
  test::Child guest([&]() -> std::string {
    if (::setuid(65534) != 0) return "setuid";
    const auto store = make_memory_store();
    store->set("x/hand-over", address);
    hand_over(*store, "x", 1, 2, -1, soon());
    return "handed over";
  });
  EXPECT_NE(guest.result().find("kUnauthenticated: rank 1 runs as user 65534, rank 0 (pid "),
            std::string::npos)
      << guest.result();
}

TEST(HandOver, AnAbortEndsIt) {
  const auto store = make_memory_store();
  const Owned own(0);
  std::atomic<std::uint64_t> abort_word{0};
  std::thread aborter([&] {
    store->get("g/hand-over", 20s);
    abort_word = 1;
  });
  const Error error = thrown_by(
      [&] { hand_over(*store, "g", 0, 2, own.memory.get(), soon(), {.abort_word = &abort_word}); });
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  aborter.join();
  // The others, too, while rank 0 has not come.
  const Error other = thrown_by([&] {
    hand_over(*store, "never", 1, 2, own.memory.get(), soon(), {.abort_word = &abort_word});
  });
  EXPECT_EQ(other.code(), ErrorCode::kAborted);
}

/// Rank 0 as it is when it was stopped before it answered.
struct Stopped {
  Stopped() { store->set("g/hand-over", address); }
  /// As rank 1.
  void hand_over_to(const net::Interrupt& interrupt) const {
    hand_over(*store, "g", 1, 2, -1, soon(), interrupt);
  }
  const std::string address = net::random_address("tutti-test");
  const net::Fd listener = net::listen(address);
  const std::shared_ptr<Store> store = make_memory_store();
};

TEST(HandOver, AnAbortEndsTheWaitForRank0) {
  const Stopped host;
  std::atomic<std::uint64_t> abort_word{0};
  Deadline::Clock::time_point began;
  std::thread aborter([&] {
    Deadline deadline = soon();
    EXPECT_EQ(net::poll_readable(host.listener.get(), deadline), net::PollResult::ready);
    const net::Accepted guest = net::accept(host.listener.get());
    EXPECT_EQ(net::poll_readable(guest.socket.get(), deadline), net::PollResult::ready);
    began = Deadline::Clock::now();
    abort_word = 1;
    while (abort_word != 2) std::this_thread::sleep_for(1ms);
  });
  const Error error = thrown_by([&] { host.hand_over_to({.abort_word = &abort_word}); });
  EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
  EXPECT_LT(Deadline::Clock::now() - began, 10s);
  abort_word = 2;
  aborter.join();
}

TEST(HandOver, WhoWaitsForRank0LooksWhetherItIsStillThere) {
  const Stopped host;
  int looks = 0;
  const std::function<void()> look = [&] {
    // Long after the guest has connected.
    if (++looks == 5) throw Error(ErrorCode::kPeerLost, "rank 2 has died");
  };
  const Error error = thrown_by([&] { host.hand_over_to({.look = &look}); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  expect_text(error, "rank 2 has died");
}

TEST(HandOver, WhatIsUnderWayIsWaitedForAfterAnAbort) {
  const auto store = make_memory_store();
  const std::string address = net::random_address("tutti-test");
  const net::Fd listener = net::listen(address);
  store->set("g/hand-over", address);
  std::atomic<std::uint64_t> abort_word{0};
  net::Accepted guest;
  int looks = 0;
  const std::function<void()> look = [&] {
    if (abort_word != 1 || ++looks != 3) return;  // the guest has seen it, and waits on
    Deadline deadline = soon();
    const std::string batch("TBo1\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    net::send_all(guest.socket.get(), std::as_bytes(std::span(batch)), deadline);
  };
  std::thread host([&] {
    Deadline deadline = soon();
    EXPECT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
    guest = net::accept(listener.get());
    EXPECT_EQ(net::poll_readable(guest.socket.get(), deadline), net::PollResult::ready);
    abort_word = 1;  // by a rank that has its memories
    while (abort_word != 2) std::this_thread::sleep_for(1ms);
  });
  EXPECT_EQ(
      hand_over(*store, "g", 1, 2, -1, soon(), {.abort_word = &abort_word, .look = &look}).size(),
      2u);
  abort_word = 2;
  host.join();
}

}  // namespace
}  // namespace tutti::control
