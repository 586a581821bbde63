// Ranks that run while another process writes on their board what it should not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "control/garbage.h"
#include "control/thread_ranks.h"
#include "op_patience.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

/// What the library has said since.
class Lines {
 public:
  Lines() {
    set_log_callback([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      all_ += std::string(line) + "\n";
    });
  }
  ~Lines() { set_log_callback({}); }
  std::string all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::string all_;
};

// ---- words spoiled at random -------------------------------------------------------------------

/// What every call is given.
constexpr auto kGiven = 100ms;
/// What it may take: as long as progress seems to be made, nothing is late; and the machine may be
/// busy.
constexpr auto kMayTake = 60s;

/// As culprits, or in words where a failure cannot be read: "rank 0 (pid 4711) has failed".
void expect_names_ranks(const Error& error) {
  const bool is_in_words = std::string_view(error.what()).find(" (pid ") != std::string_view::npos;
  EXPECT_TRUE(!error.context().culprits.empty() || is_in_words) << error.what();
}

/// A program whose ranks meet in collectives, and make and close groups, until one of them fails.
class Program {
 public:
  void run(Host& host, Membership& world) {
    std::uint64_t last = 0;
    try {
      while (!is_over.load()) {
        timed([&] { meet_all(world, ++last); });
        timed([&] { make_and_close(host, world, last); });
      }
    } catch (const Error&) {
      ++failed;
    }
    try {
      timed(
          [&] { world.close(last, collective(Op::barrier, last).chain, Deadline::after(kGiven)); });
    } catch (const Error&) {
      ++failed;
    }
  }

  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> calls{0}, failed{0};

 private:
  void timed(const std::function<void()>& call) {
    ++calls;
    const auto began = Clock::now();
    const auto check = [&] { EXPECT_LT(Clock::now() - began, kMayTake); };
    try {
      call();
    } catch (const Error& error) {
      check();
      expect_names_ranks(error);
      throw;
    }
    check();
  }

  void meet_all(Membership& world, std::uint64_t seq) {
    Request request = collective(Op::barrier, seq);
    request.arrive = request.stall = Deadline::after(kGiven);
    world.enter(request);
    come_[static_cast<std::size_t>(world.rank())].store(seq);
    world.notify_all();
    OpPatience patience(world, request, -1);
    const WaitResult result = wait(
        world.waiter(), patience, [&] { return come_[0].load() >= seq && come_[1].load() >= seq; });
    if (result != WaitResult::ready) world.throw_cause(request);
    world.leave(request);
  }

  void make_and_close(Host& host, const Membership& world, std::uint64_t number) {
    const auto group = host.make_membership({.id = kWorld + number,
                                             .name = "group",
                                             .world_ranks = all_ranks(2),
                                             .rank = world.rank(),
                                             .asked_of = kWorld,
                                             .call = "new_group({0, 1})"});
    group->meet(&world, Where::current(), Deadline::after(kGiven));
    group->close(0, 0, Deadline::after(kGiven), Where::current());
  }

  std::array<std::atomic<std::uint64_t>, 2> come_{};
};

/// Until the program has failed, or for a while.
void spoil_board(const Board& board, std::uint64_t seed, Program& program) {
  Garbage garbage(seed);
  std::vector<Stretch> stretches = {words_of(board.header())};
  for (const SlotIndex slot : board.slots()) stretches.push_back(words_of(board.slot(slot)));
  const auto end = Clock::now() + 60ms;
  while (Clock::now() < end && program.failed.load() < 2) {
    std::this_thread::sleep_for(std::chrono::microseconds(garbage.below(2000)));
    garbage.spoil(stretches);
  }
  program.is_over.store(true);
}

/// An error and going on are both fine; a crash and a call without an end are not.
TEST(LiveGarbage, EndsNoRankAndNoCallLate) {
  const Lines lines;
  std::uint64_t calls = 0, failed = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Program program;
    std::latch both_are_there(2);
    on_thread_ranks(
        2,
        [&](Host& host, Membership& world) {
          both_are_there.arrive_and_wait();
          std::thread spoiler;
          if (world.rank() == 0)
            spoiler = std::thread([&] { spoil_board(host.board(), seed, program); });
          program.run(host, world);
          if (spoiler.joinable()) spoiler.join();
        },
        20ms);
    calls += program.calls.load();
    failed += program.failed.load();
  }
  EXPECT_GT(failed, 0u);
  EXPECT_GT(calls, failed) << "nothing ran meanwhile";
}

/// Rank 1 waits in vain and closes, after `spoil`: both end by their deadlines.
void wait_in_vain(const std::function<void(const Board&)>& spoil) {
  const auto in_time = [](const std::function<void()>& call) {
    const auto began = Clock::now();
    try {
      call();
    } catch (const Error& error) {  // as good as any other end
      expect_names_ranks(error);
    }
    EXPECT_LT(Clock::now() - began, kMayTake);
  };
  std::latch both_are_there(2), over(2);
  on_thread_ranks(2, [&](Host& host, Membership& world) {
    both_are_there.arrive_and_wait();
    if (world.rank() == 1) {
      Request request = collective(Op::barrier, 1);
      request.arrive = request.stall = Deadline::after(5ms);
      world.enter(request);
      spoil(host.board());
      in_time([&] {
        OpPatience patience(world, request, -1);
        wait(world.waiter(), patience, [] { return false; });
      });
    }
    over.arrive_and_wait();
    in_time([&] { world.close(0, 0, Deadline::after(5ms), Where::current()); });
  });
}

TEST(LiveGarbage, InAnyWordOfALineHoldsUpNobody) {
  const Lines lines;
  const std::size_t words = offsetof(Line, ranks) / 8 + 1;
  for (const SlotIndex slot : Slots(2)) {
    for (std::size_t at = 0; at < words; ++at) {
      for (const std::uint64_t value :
           {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
        SCOPED_TRACE(fmt::format("slot {}, word {}, {:x}", slot.value, at, value));
        wait_in_vain([&](const Board& board) {
          Line* const line = board.find_line(slot, kWorld);
          stretch(line, line + 1).words[at].store(value);
        });
      }
    }
  }
}

TEST(LiveGarbage, InTheWholeHeaderHoldsUpNobody) {
  const Lines lines;
  for (const std::uint64_t value :
       {~std::uint64_t{0}, std::uint64_t{0x7fffffff7fffffff}, std::uint64_t{0x3f8000003f800000},
        std::uint64_t{0x0101010101010101}}) {
    SCOPED_TRACE(fmt::format("{:x}", value));
    wait_in_vain([&](const Board& board) {
      const Stretch header = words_of(board.header());
      for (std::size_t at = 0; at < header.count; ++at) header.words[at].store(value);
    });
  }
}

// ---- goodbyes of unknown groups ----------------------------------------------------------------

/// Meets the others in a group of all, and leaves it.
void use_a_group(Host& host, const Membership& world, GroupId id) {
  const int n = world.group_size();
  const auto group = host.make_membership({.id = id,
                                           .name = "group",
                                           .world_ranks = all_ranks(n),
                                           .rank = world.rank(),
                                           .asked_of = kWorld});
  group->meet(&world, Where::current(), Deadline::after(10s));
  group->close(0, 0, Deadline::after(10s));
  EXPECT_FALSE(group->cause());
}

TEST(LiveGarbage, AGoodbyeOfAGroupThatNobodyElseHasMadeConcernsNobody) {
  const Lines lines;
  std::latch said(3);
  on_thread_ranks(3, [&](Host& host, Membership& world) {
    use_a_group(host, world, 1);
    std::unique_ptr<Membership> unknown;
    if (world.rank() == 2) {
      unknown =
          host.make_membership({.id = 0xbad, .name = "x", .world_ranks = all_ranks(3), .rank = 2});
      unknown->close(5, 55, Deadline::after(10s));
    }
    said.arrive_and_wait();
    use_a_group(host, world, 2);
    unknown.reset();
    use_a_group(host, world, 3);
    EXPECT_FALSE(world.cause());
    world.close(0, 0, Deadline::after(10s));
  });
  EXPECT_EQ(lines.all(), "");
}

TEST(LiveGarbage, LinesOfUnknownGroupsThatHaveEndedConcernNobody) {
  const Lines lines;
  std::latch written(2);
  on_thread_ranks(2, [&](Host& host, Membership& world) {
    if (world.rank() == 0) {
      GroupId group = ~GroupId{0};
      for (const SlotIndex slot : host.board().slots()) {
        LineState state = LineState::closing;
        for (int index = 10; index < 10 + 5; ++index) {
          Line& line = host.board().line(slot, index);
          line.goodbye_seq.store(9);
          line.goodbye_chain.store(99);
          line.state.store(state);
          line.group.store(group--);
          state = static_cast<LineState>(static_cast<std::uint32_t>(state) + 1);
        }
      }
    }
    written.arrive_and_wait();
    for (GroupId id = 1; id <= 2 * kLinesPerSlot; ++id) use_a_group(host, world, id);
    EXPECT_FALSE(world.cause());
    world.close(0, 0, Deadline::after(10s));
  });
  EXPECT_EQ(lines.all(), "");
}

}  // namespace
}  // namespace tutti::control
