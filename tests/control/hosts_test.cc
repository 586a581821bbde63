// A rank whose group has members on another host, of which it knows what it is told.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/wait.h"
#include "control/board/board.h"
#include "control/board/waits.h"
#include "control/host.h"
#include "control/hosts/other_hosts.h"
#include "thread_ranks.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

/// The other host's rank 1, as far as it has told. It votes no more: this host decides alone.
struct Told final : OtherHosts, RelayLinks {
  MemberFacts facts_of(GroupId, WorldRank) const override { return known; }
  std::optional<LineState> state_of(GroupId, WorldRank) const noexcept override {
    return known.line ? std::optional(known.line->state) : std::nullopt;
  }
  bool shows_failure(GroupId, WorldRank) const noexcept override {
    return known.line && known.line->failure;
  }
  WaitFacts wait_of(WorldRank) const override { return {}; }
  void ask_wait(WorldRank) noexcept override {}
  void ask(GroupId, WorldRank rank) noexcept override {
    ++questions;
    EXPECT_EQ(rank, WorldRank(1));
    if (!answers) return;
    known.asked = Clock::now();
    answers(known);
  }
  bool has_left(WorldRank) const noexcept override { return false; }
  std::vector<GroupId> said_goodbye_to(WorldRank) const override { return {}; }
  std::map<GroupId, FailureFacts> failures_of(WorldRank) const override { return {}; }
  RelayLinks& links() noexcept override { return *this; }
  void open() override {}
  void close() noexcept override {}
  std::vector<HostFacts> facts() const override {
    return {{}, {.state = is_stopped ? HostFacts::State::reachable : HostFacts::State::left}};
  }
  std::optional<std::pair<int, std::string>> receive() override { return std::nullopt; }
  void send(int, std::string) override { ADD_FAILURE() << "to a host that has left"; }
  void await_sent() noexcept override {}
  void report() override {}
  void part_from(const HostSet&) override {}
  void notify(WorldRank rank) noexcept override {
    EXPECT_EQ(rank, WorldRank(1));
    ++notified;
  }

  MemberFacts known = {.line = std::make_optional<LineFacts>(), .asked = {}};
  std::function<void(MemberFacts&)> answers;
  int questions = 0, notified = 0;
  std::atomic<bool> is_stopped{false};  ///< it acknowledges, and says nothing
};

/// Rank 0 of two, each on a host of its own.
struct RankOfHostA {
  explicit RankOfHostA(bool is_other_stopped = false) : memory(Board::make(1, 2)) {
    told.is_stopped = is_other_stopped;
    HostOptions options;
    options.board_fd = memory.get();
    options.world_size = 2;
    options.roster.emplace(
        std::vector<Roster::HostRanks>{{"host-a", world_ranks({0})}, {"host-b", world_ranks({1})}},
        0);
    options.others = &told;
    host = Host::join(options);
    world = host->make_membership({kWorld, "world", all_ranks(2), 0});
    world->meet(nullptr, Where::current(), Deadline::after(10s));
  }
  /// Waits in the first collective, until it fails or `until` has passed.
  void wait_in(const Request& request, std::chrono::nanoseconds until) {
    world->enter(request);
    clock = WaitClock();
    wait_on(request, until);
  }
  /// The same, in one that it is in.
  void wait_on(const Request& request, std::chrono::nanoseconds until) {
    const auto end = Clock::now() + until;
    while (!world->cause() && Clock::now() < end) {
      Clock::time_point next;
      world->ask(request, -1, clock, Clock::now(), &next);
      std::this_thread::sleep_until(std::min(next, end));
    }
  }

  net::Fd memory;
  Told told;
  std::unique_ptr<Host> host;
  std::unique_ptr<Membership> world;
  WaitClock clock;
};

Request short_collective() {
  Request request = collective(Op::all_reduce, 1);
  request.arrive = Deadline::after(50ms);
  request.stall = Deadline::after(50ms);
  return request;
}

TEST(Hosts, OneOnAnotherHostIsLateOnlyIfItSaysSo) {
  RankOfHostA a;
  const Request request = short_collective();
  const auto end = Clock::now() + 10s;
  a.wait_in(request, 0ms);
  while (a.told.questions == 0 && Clock::now() < end) a.wait_on(request, 10ms);
  EXPECT_GE(a.told.questions, 1);
  a.wait_on(request, 300ms);
  EXPECT_FALSE(a.world->cause()) << "it has not answered";

  RankOfHostA b;
  b.told.answers = [](MemberFacts&) {};
  b.wait_in(short_collective(), 10s);
  ASSERT_TRUE(b.world->cause());
  EXPECT_EQ(b.world->cause()->code, ErrorCode::kTimeout);
  EXPECT_EQ(b.world->cause()->culprits, std::vector<int>{1});
  EXPECT_EQ(b.world->error(nullptr).context().host, "host-b");
  EXPECT_NE(b.world->cause()->text.find("rank 1 (on host-b)"), std::string::npos)
      << b.world->cause()->text;
}

/// What it has said is old; that all have called what this rank has completed is not.
TEST(Hosts, WhoIsLateHasCalledWhatThisRankHasCompleted) {
  RankOfHostA a;
  a.told.answers = [](MemberFacts&) {};
  for (const std::uint64_t seq : {1, 2}) {
    const Request request = collective(seq == 1 ? Op::all_reduce : Op::broadcast, seq);
    a.world->enter(request);
    a.world->leave(request);
  }
  Request request = short_collective();
  request.seq = 3;
  a.wait_in(request, 10s);
  ASSERT_TRUE(a.world->cause());
  EXPECT_NE(a.world->cause()->text.find(
                "it has called all_reduce #1(f32 x 1000, sum), which this rank has "
                "completed"),
            std::string::npos)
      << a.world->cause()->text;
}

TEST(Hosts, WhatOneOnAnotherHostHasCalledIsCompared) {
  RankOfHostA a;
  const Request request = short_collective();
  a.told.answers = [&](MemberFacts& facts) {
    facts.line->entered = 1;
    facts.line->history[1] = Shown{shown_of(request, 0)};
    facts.line->history[1]->chain += 1;
  };
  a.wait_in(request, 10s);
  ASSERT_TRUE(a.world->cause());
  EXPECT_EQ(a.world->cause()->code, ErrorCode::kCollectiveMismatch);
}

TEST(Hosts, AWaitHasLookedOnceAnswersAreNewAndAllThatWasSentIsRead) {
  RankOfHostA a;
  std::atomic<bool> has_sent{false};
  std::atomic<int> asked{0};
  a.world->watch_sent([&] {
    ++asked;
    return has_sent.load();
  });
  a.world->note_caller();
  const auto since = Clock::now();
  const auto looks_after = [&](std::chrono::milliseconds time) {
    WaitPart part{.group = kWorld, .awaited = world_ranks({1}), .as_of = since + time};
    a.world->show_wait(since, {part}, since + time);
    return read_wait(Board(a.memory), SlotIndex(0)).looks;
  };
  const std::uint64_t first = looks_after(0ms);
  for (const auto time : {10ms, 240ms}) EXPECT_EQ(looks_after(time), first) << "it is short";
  EXPECT_EQ(asked.load(), 0) << "a short wait sends nothing";
  EXPECT_EQ(looks_after(260ms), first + 1) << "it has lasted a quarter of deadlock_after";
  EXPECT_EQ(looks_after(259ms), first + 1) << "the answer was asked for before the last look";
  has_sent.store(true);
  EXPECT_EQ(looks_after(270ms), first + 1) << "something is under way";
  has_sent.store(false);
  EXPECT_EQ(looks_after(270ms), first + 2);
  EXPECT_EQ(asked.load(), 4);
  a.world->watch_sent({});
  EXPECT_EQ(looks_after(280ms), first + 3);
  a.world->take_back_wait();
}

TEST(Hosts, WhatAnotherHostHasFailedWithIsForTheLogToSay) {
  RankOfHostA a;
  a.told.known.line->failure = FailureFacts{ErrorCode::kAborted, {1}, "rank 1 aborted the group"};
  a.wait_in(short_collective(), 20ms);
  EXPECT_FALSE(a.world->cause()) << "the entry comes to this host as well";
}

TEST(Hosts, AFailureThatAStoppedHostHoldsUpCountsHereAfterASecond) {
  RankOfHostA a(true);
  const auto began = Clock::now();
  a.world->fail({ErrorCode::kAborted, "rank 0 aborted the group", {0}, {}});
  while (!a.world->cause() && Clock::now() < began + 20s) std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(a.world->cause());
  EXPECT_GE(Clock::now() - began, 950ms) << "the other host might have answered";
  EXPECT_EQ(a.world->cause()->code, ErrorCode::kAborted);
  EXPECT_EQ(a.world->cause()->text, "rank 0 aborted the group");
  EXPECT_NE(Board(a.memory).wish_of(SlotIndex(0)), 0u) << "the log has yet to say it";
}

TEST(Hosts, AnotherHostIsToldAndAwaitedAtTheEnd) {
  RankOfHostA a;
  const int before = a.told.notified;
  EXPECT_GT(before, 0) << "of the meeting";
  EXPECT_THROW(a.world->close(0, 0, Deadline::after(50ms), Where::current()), Error);
  EXPECT_GT(a.told.notified, before);
  RankOfHostA b;
  b.told.known.line->state = LineState::closing;
  b.world->close(0, 0, Deadline::after(10s), Where::current());
}

}  // namespace
}  // namespace tutti::control
