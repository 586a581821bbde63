// Relays of hosts, ticked by hand: who is the relay, what it enters, what its ranks wish.
#include "control/relay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/board/own_line.h"
#include "control/garbage.h"
#include "control/hosts/vote_frame.h"
#include "control/hosts/vote_place.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

constexpr Clock::time_point kStart{1000s};

/// The links of one relay: what it sends comes to the other host at once.
struct Links final : OtherHosts, RelayLinks {
  MemberFacts facts_of(GroupId, WorldRank) const override { return {}; }
  std::optional<LineState> state_of(GroupId, WorldRank) const noexcept override { return {}; }
  bool shows_failure(GroupId, WorldRank) const noexcept override { return false; }
  WaitFacts wait_of(WorldRank) const override { return {}; }
  void ask_wait(WorldRank) noexcept override {}
  bool has_left(WorldRank rank) const noexcept override { return left.contains(rank); }
  std::vector<GroupId> said_goodbye_to(WorldRank rank) const override {
    return goodbyes.contains(rank) ? goodbyes.at(rank) : std::vector<GroupId>();
  }
  std::map<GroupId, FailureFacts> failures_of(WorldRank rank) const override {
    return failures.contains(rank) ? failures.at(rank) : std::map<GroupId, FailureFacts>();
  }
  void ask(GroupId, WorldRank) noexcept override {}
  void notify(WorldRank) noexcept override {}
  RelayLinks& links() noexcept override { return *this; }

  void open() override { is_open = true; }
  void close() noexcept override { is_open = false; }
  std::vector<HostFacts> facts() const override { return known; }
  std::optional<std::pair<int, std::string>> receive() override {
    if (inbox.empty()) return std::nullopt;
    auto first = std::move(inbox.front());
    inbox.pop_front();
    return first;
  }
  void report() override {}
  void part_from(const HostSet& hosts) override { parted = hosts; }
  void send(int, std::string frame) override {
    if (peer != nullptr) peer->inbox.emplace_back(host, std::move(frame));
  }
  void await_sent() noexcept override { on_awaited(); }

  int host = 0;
  Links* peer = nullptr;
  bool is_open = false;
  std::function<void()> on_awaited = [] {};
  HostSet parted;
  std::set<WorldRank> left;
  std::map<WorldRank, std::vector<GroupId>> goodbyes;
  std::map<WorldRank, std::map<GroupId, FailureFacts>> failures;
  std::vector<HostFacts> known{2};
  std::deque<std::pair<int, std::string>> inbox;
};

Roster two_hosts(int own) {
  return Roster({{"host-a", world_ranks({0, 1})}, {"host-b", world_ranks({2, 3})}}, own);
}

/// A rank of a host, which may be its relay.
struct Rank {
  Rank(const net::Fd& memory, const Board& board, const Roster& roster, int slot)
      : owner(board, SlotIndex(slot), net::Fd(::dup(memory.get()))),
        relay(
            board, roster, owner, links, [this](WorldRank rank) { return lost.contains(rank); },
            [this] { apply(); }),
        log(board, owner) {
    links.host = roster.own_host();
    owner.reserve_relay_area();
    owner.slot().state.store(RankState::running);
  }
  void tick(std::chrono::nanoseconds at) {
    auto next = Clock::time_point::max();
    relay.tick(kStart + at, &next);
  }
  void apply() {
    Verdict verdict;
    for (;;) {
      const BoardLog::State state = log.read(next_entry, &verdict);
      if (state == BoardLog::State::open) return;
      if (state == BoardLog::State::entered && verdict.is_loss())
        lost.insert(verdict.culprits.begin(), verdict.culprits.end());
      next_entry = state == BoardLog::State::missed ? log.after_missed(next_entry) : next_entry + 1;
    }
  }
  std::optional<Verdict> entry(std::uint64_t number) const {
    Verdict verdict;
    if (log.read(number, &verdict) != BoardLog::State::entered) return std::nullopt;
    return verdict;
  }

  Links links;
  SlotOwner owner;
  std::set<WorldRank> lost;
  Relay relay;
  BoardLog log;
  std::uint64_t next_entry = 1;
};

/// A host with two ranks.
struct OneHost {
  explicit OneHost(int own) : OneHost(two_hosts(own)) {}
  explicit OneHost(Roster given) : roster(std::move(given)) {}
  /// Its first rank was the relay, and has left without entering what was chosen.
  void has_had_a_relay(std::uint64_t number, const Verdict& last,
                       const std::vector<WorldRank>& lost_before) {
    VotePlace place(board, first.owner, 2);
    HostVote vote = *place.take_over(1);
    vote.vote.number = number;
    vote.entries.push_back({last, {}});
    vote.lost_before = lost_before;
    ASSERT_TRUE(place.write(vote));
    first.owner.slot().state.store(RankState::left);
  }
  net::Fd memory = Board::make(2, 4);
  Board board{memory};
  Roster roster;
  Rank first{memory, board, roster, 0}, second{memory, board, roster, 1};
};

Verdict failure_of(GroupId group, const std::string& text) {
  return {.code = ErrorCode::kTimeout, .groups = {group}, .culprits = {WorldRank(3)}, .text = text};
}

TEST(Relay, IsTheLowestRankThatIsWell) {
  OneHost host(0);
  host.second.tick(0ms);
  EXPECT_FALSE(host.second.links.is_open) << "rank 0 runs";
  host.first.tick(1ms);
  EXPECT_TRUE(host.first.links.is_open);
  host.first.owner.slot().state.store(RankState::left);
  host.first.relay.leave();
  EXPECT_FALSE(host.first.links.is_open);
  host.second.tick(2ms);
  EXPECT_TRUE(host.second.links.is_open);
}

TEST(Relay, IsOvertakenOnceItWasSilent) {
  OneHost host(0);
  host.first.tick(0ms);
  for (auto at = 0ms; at < 1000ms; at += 20ms) {
    host.second.tick(at);
    host.first.tick(at);
  }
  ASSERT_FALSE(host.second.links.is_open) << "it was not silent";
  host.second.tick(1000ms);
  host.second.tick(1000ms + kVoteOvertake - 1ms);
  EXPECT_FALSE(host.second.links.is_open);
  host.second.tick(1000ms + kVoteOvertake);
  EXPECT_TRUE(host.second.links.is_open);
  // The first one goes on, and finds that it is the relay no more, though it has nothing to write.
  host.first.tick(1300ms);
  EXPECT_FALSE(host.first.links.is_open);
  host.second.owner.show_wish(failure_of(7, "late"));
  host.first.links.known[1].state = HostFacts::State::left;
  host.first.tick(1320ms);
  EXPECT_FALSE(host.first.entry(1));
}

TEST(Relay, EntersWhatAnEarlierOneHasNotGotTo) {
  OneHost host(0);
  host.has_had_a_relay(1, failure_of(7, "chosen"), {});
  host.second.tick(0ms);
  ASSERT_TRUE(host.second.entry(1));
  EXPECT_EQ(host.second.entry(1)->text, "chosen");
}

TEST(Relay, TellsRanksThatHaveSleptWhoIsLost) {
  OneHost host(0);
  host.has_had_a_relay(3, failure_of(7, "the last one"), world_ranks({3}));
  host.second.tick(0ms);
  ASSERT_TRUE(host.second.entry(1));
  EXPECT_EQ(host.second.entry(1)->culprits, world_ranks({3}));
  EXPECT_FALSE(host.second.entry(2));
  ASSERT_TRUE(host.second.entry(3));
  EXPECT_EQ(host.second.entry(3)->text, "the last one");
}

TEST(Relay, ALoneHostEntersWhatItsRanksWishLossesFirst) {
  OneHost host(0);
  host.first.links.known[1].state = HostFacts::State::left;
  host.second.owner.show_wish(failure_of(7, "late"));
  host.first.owner.show_wish(Verdict{.culprits = world_ranks({1})});
  host.first.tick(0ms);
  ASSERT_TRUE(host.first.entry(2));
  EXPECT_EQ(host.first.entry(1)->culprits, world_ranks({1}));
  EXPECT_EQ(host.first.entry(2)->text, "late");
  host.first.tick(20ms);
  EXPECT_FALSE(host.first.entry(3)) << "the wish still stands, and is settled";
}

TEST(Relay, ADeadHostIsLostButForThoseWhoHadLeft) {
  OneHost host(0);
  host.first.links.known[1].state = HostFacts::State::dead;
  host.first.links.left = {WorldRank(2)};
  host.first.tick(0ms);
  ASSERT_TRUE(host.first.entry(1));
  EXPECT_EQ(host.first.entry(1)->culprits, world_ranks({3}));
  EXPECT_EQ(host.first.entry(1)->text, "") << "there is no doubt of it";
}

TEST(Relay, WhoseHostIsDeadMayHaveEndedAfterItsGoodbyes) {
  OneHost host(0);
  Links& links = host.first.links;
  links.known[1].state = HostFacts::State::dead;
  links.goodbyes[WorldRank(2)] = {1, 7};
  links.goodbyes[WorldRank(3)] = {1};
  host.first.tick(0ms);
  host.first.tick(5000ms);
  EXPECT_FALSE(host.first.entry(1)) << "nobody here awaits them";

  OneHost awaiting(0);
  Links& theirs = awaiting.first.links;
  theirs.known[1].state = HostFacts::State::dead;
  theirs.goodbyes[WorldRank(2)] = {1, 7};
  theirs.goodbyes[WorldRank(3)] = {1};
  auto line = awaiting.second.owner.open_line(7, 0, {});
  ASSERT_TRUE(line);
  line->set_state(LineState::closing);
  awaiting.first.tick(0ms);
  awaiting.first.tick(kVoteOvertake - 1ms);
  EXPECT_FALSE(awaiting.first.entry(1)) << "rank 1 may hear it yet";
  awaiting.first.tick(kVoteOvertake);
  ASSERT_TRUE(awaiting.first.entry(1));
  EXPECT_EQ(awaiting.first.entry(1)->culprits, world_ranks({2})) << "rank 1 does not hear it";
}

/// It was stopped while they entered them.
TEST(Relay, WhatAllOthersHadFailedWithIsEnteredOnceTheyHaveLeft) {
  OneHost host(0);
  Links& links = host.first.links;
  links.failures[WorldRank(2)] = {{7, {ErrorCode::kTimeout, {0, 3}, ""}},
                                  {8, {ErrorCode::kPeerLost, {3}, ""}},
                                  {9, {ErrorCode::kAborted, {2}, ""}},
                                  {10, {ErrorCode::kAborted, {2}, ""}},
                                  {11, {ErrorCode::kAborted, {2}, ""}}};
  links.failures[WorldRank(3)] = {{7, {ErrorCode::kTimeout, {0, 3}, "late"}}};
  for (const GroupId group : {7, 8}) ASSERT_TRUE(host.second.owner.open_line(group, 0, {}));
  auto closing = host.second.owner.open_line(9, 0, {});
  auto closed = host.second.owner.open_line(11, 0, {});
  ASSERT_TRUE(closing && closed);
  closing->set_state(LineState::closing);
  closed->set_state(LineState::closed);
  host.first.tick(0ms);
  EXPECT_FALSE(host.first.entry(1)) << "the other host may still say it";
  links.known[1].state = HostFacts::State::left;
  host.first.tick(20ms);
  ASSERT_TRUE(host.first.entry(2));
  EXPECT_EQ(*host.first.entry(1), (Verdict{.code = ErrorCode::kTimeout,
                                           .groups = {7},
                                           .culprits = world_ranks({0, 3}),
                                           .text = "late",
                                           .finder = WorldRank(3)}));
  EXPECT_EQ(host.first.entry(2)->groups, std::vector<GroupId>{9});
  EXPECT_EQ(host.first.entry(2)->text, "rank 2 (on host-b) had failed (kAborted) before it left");
  host.first.tick(40ms);
  EXPECT_FALSE(host.first.entry(3))
      << "who is lost is entered as a loss, nobody has group 10, and 11 is closed";
}

TEST(Relay, NothingOfItsRanksIsToldToAHostThatHasParted) {
  OneHost host(0);
  host.first.links.known[1].state = HostFacts::State::cut;
  for (auto at = 0ms; at < 5000ms && !host.first.entry(1); at += 20ms) {
    EXPECT_TRUE(host.first.links.parted.empty());
    host.first.tick(at);
  }
  ASSERT_TRUE(host.first.entry(1));
  EXPECT_EQ(host.first.entry(1)->culprits, world_ranks({2, 3}));
  EXPECT_EQ(host.first.entry(1)->text,
            "host-a and host-b do not reach each other (nothing was acknowledged for 2 s): the "
            "network or a host is down, and processes on the other side may live and go on by "
            "themselves");
  EXPECT_TRUE(host.first.links.parted.contains(1));
  host.first.relay.leave();
  host.first.owner.slot().state.store(RankState::left);
  host.second.tick(6000ms);
  EXPECT_TRUE(host.second.links.parted.contains(1)) << "the next relay as well";
}

TEST(Relay, HostsOfOneNameAreToldApart) {
  OneHost host(Roster({{"vm", world_ranks({0, 1})}, {"vm", world_ranks({2, 3})}}, 0));
  host.first.links.known[1].state = HostFacts::State::cut;
  for (auto at = 0ms; at < 5000ms && !host.first.entry(1); at += 20ms) host.first.tick(at);
  ASSERT_TRUE(host.first.entry(1));
  EXPECT_TRUE(host.first.entry(1)->text.starts_with(
      "vm (of rank 0) and vm (of rank 2) do not reach each other"))
      << host.first.entry(1)->text;
}

TEST(Relay, TwoHostsEnterTheSame) {
  OneHost a(0), b(1);
  a.first.links.peer = &b.first.links;
  b.first.links.peer = &a.first.links;
  int awaited = 0;
  for (OneHost* host : {&a, &b}) {
    for (HostFacts& facts : host->first.links.known) facts.connection = 1;
    host->first.links.on_awaited = [&awaited, host] {
      ++awaited;
      EXPECT_FALSE(host->first.entry(1)) << "who is told may end before the other host knows";
    };
  }
  a.second.owner.show_wish(failure_of(7, "found by a"));
  b.second.owner.show_wish(failure_of(7, "found by b"));
  for (auto at = 0ms; at < 100ms && !(a.first.entry(1) && b.first.entry(1)); at += 1ms) {
    b.first.tick(at);
    a.first.tick(at);
  }
  ASSERT_TRUE(a.first.entry(1));
  EXPECT_EQ(a.first.entry(1), b.first.entry(1));
  EXPECT_FALSE(a.first.entry(2));
  EXPECT_GE(awaited, 1);
}

TEST(Relay, WhileItIsHeldUpItTellsItsOwnRanksOfDeaths) {
  OneHost host(0);
  host.first.links.known[1].connection = 1;  // and silent
  host.second.owner.show_wish(Verdict{.culprits = world_ranks({0})});
  const RankWords& shown = host.first.owner.slot().held_up;
  host.first.tick(0ms);
  host.first.tick(kHeldUp - 1ms);
  EXPECT_TRUE(read_set(shown, 4).empty());
  host.first.tick(kHeldUp);
  EXPECT_EQ(read_set(shown, 4), world_ranks({0}));
  host.second.owner.show_wish(std::nullopt);
  host.first.tick(kHeldUp + 20ms);
  EXPECT_TRUE(read_set(shown, 4).empty());
}

TEST(Relay, AFrameThatIsNoneIsDropped) {
  OneHost host(0);
  host.first.tick(0ms);
  host.first.links.inbox.emplace_back(1, "garbage");
  host.first.tick(20ms);
  EXPECT_TRUE(host.first.links.is_open);
}

/// It would enter so many for ever.
TEST(Relay, ANumberThatNoHostCanHaveComeToIsGarbage) {
  for (const std::uint64_t number : {kMostBehind + 1, std::uint64_t{1} << 61}) {
    OneHost host(0);
    host.first.tick(0ms);
    VoteFrame frame{.term = 1, .vote = first_vote(2).vote, .hosts = first_vote(2).hosts};
    frame.vote.number = number;
    frame.entries.push_back({failure_of(7, "far ahead"), {}});
    host.first.links.inbox.emplace_back(1, encode(frame));
    host.first.tick(20ms);
    EXPECT_FALSE(host.first.entry(1));
  }
}

TEST(Relay, NoneTakesOverAVoteWhoseNumberIsGarbage) {
  OneHost host(0);
  host.has_had_a_relay(std::uint64_t{1} << 61, failure_of(7, "far ahead"), {});
  host.second.tick(0ms);
  EXPECT_FALSE(host.second.links.is_open);
  EXPECT_FALSE(host.second.entry(1));
}

/// Two relays of two hosts that have entered something, and something is to be entered.
TEST(Relay, GarbageOnTheBoardIsReadAndNothingWorse) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Garbage garbage(seed);
    OneHost a(0), b(1);
    a.first.links.peer = a.second.links.peer = &b.first.links;
    b.first.links.peer = b.second.links.peer = &a.first.links;
    b.second.links.host = 1;
    for (OneHost* host : {&a, &b})
      for (HostFacts& facts : host->first.links.known) facts.connection = 1;
    std::vector<Stretch> stretches = {words_of(a.board.header())};
    for (const SlotIndex slot : a.board.slots()) {
      RelayArea& area = a.board.relay_area(slot);
      // What is used of it.
      for (auto& vote : area.votes) stretches.push_back(stretch(&vote, &vote.words[64]));
      stretches.push_back(stretch(&area.chosen, &area + 1));
      stretches.push_back(words_of(a.board.slot(slot)));
    }
    for (auto at = 0ms; at < 2000ms; at += 20ms) {
      const auto group = static_cast<GroupId>(at / 100ms) + 1;
      (group % 2 == 0 ? a.second : b.second).owner.show_wish(failure_of(group, "late"));
      if (at > 200ms) garbage.spoil(stretches);
      for (OneHost* host : {&a, &b}) {
        host->first.tick(at);
        host->second.tick(at);
      }
    }
  }
}

}  // namespace
}  // namespace tutti::control
