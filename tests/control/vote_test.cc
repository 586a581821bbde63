// The vote between hosts, step by step, in made-up situations.
#include "control/vote/vote.h"

#include <gtest/gtest.h>

#include <map>

namespace tutti::control {
namespace {

using State = HostFacts::State;
using std::chrono::milliseconds;

const Clock::time_point kStart = Clock::time_point(std::chrono::hours(5));

Entry verdict(GroupId group, int finder = 0) {
  Entry entry;
  entry.verdict.code = ErrorCode::kAborted;
  if (group != 0) entry.verdict.groups = {group};
  entry.verdict.finder = WorldRank(finder);
  return entry;
}

/// One host with its relay, and what it is told of the others.
struct OneHost {
  OneHost(int host_index, int count) : self(host_index), facts(static_cast<std::size_t>(count)) {
    host = first_vote(count);
    host.term = 1;
    for (HostFacts& each : facts) each.connection = 1;
    memory.peers.resize(facts.size());
  }
  VoteStep step(int from = -1, const VoteFrame* frame = nullptr) {
    return step_vote(host, memory, {self, now, facts, want, from, frame, kept});
  }
  VoteStep take(int from, const Vote& vote, std::uint64_t term = 1) {
    VoteFrame frame;
    frame.term = term;
    frame.vote = vote;
    return step(from, &frame);
  }
  HostFacts& of(int other) { return facts[static_cast<std::size_t>(other)]; }
  void has_shown(int other, const Vote& vote) {
    memory.peers[static_cast<std::size_t>(other)].seen = vote;
  }
  void cut(int other, Clock::duration ago) {
    of(other).state = State::cut;
    of(other).heard = now - ago;
  }

  int self;
  std::vector<HostFacts> facts;
  HostVote host;
  VoteMemory memory;
  std::optional<Entry> want;
  Clock::time_point now = kStart;
  std::size_t kept = kKeptEntries;
};

Vote promised(Ballot ballot) {
  Vote vote;
  vote.promised = ballot;
  return vote;
}
Vote accepted(Ballot ballot, const Entry& value) {
  Vote vote = promised(ballot);
  vote.accepted = ballot;
  vote.value = value;
  return vote;
}
const VoteFrame* sent_to(const VoteStep& step, int host) {
  for (const auto& [to, frame] : step.frames)
    if (to == host) return &frame;
  return nullptr;
}

TEST(HostSet, HoldsAnyNumber) {
  HostSet set{3, 64, 700};
  EXPECT_EQ(set.members(), (std::vector<int>{3, 64, 700}));
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.lowest(), 3);
  EXPECT_EQ(HostSet{}.lowest(), -1);
  EXPECT_FALSE(set.contains(701));
  EXPECT_FALSE(set.contains(100'000));
  EXPECT_TRUE((HostSet{64}).is_within(set));
  EXPECT_FALSE(set.is_within({3, 64}));
  EXPECT_EQ((set - HostSet{64, 700}), HostSet{3});
  EXPECT_EQ((HostSet{3} | HostSet{64, 700}), set);
  EXPECT_TRUE((set - set).empty());
  EXPECT_EQ(HostSet::first(1000).size(), 1000);
}

// ---- who proposes ------------------------------------------------------------------------------

TEST(Vote, TheLowestProposesWithoutAsking) {
  for (const int count : {2, 3, 8, 200}) {
    OneHost it(0, count);
    it.want = verdict(7);
    const VoteStep step = it.step();
    EXPECT_EQ(it.host.vote.accepted, (Ballot{0, 0}));
    EXPECT_EQ(it.host.vote.value, verdict(7));
    ASSERT_EQ(step.frames.size(), static_cast<std::size_t>(count - 1));
    EXPECT_EQ(step.frames[0].second.vote, it.host.vote);
    EXPECT_FALSE(step.entered);
  }
}

TEST(Vote, AWorldOfOneHostEntersAtOnce) {
  OneHost it(0, 1);
  it.want = verdict(7);
  EXPECT_TRUE(it.step().entered);
  ASSERT_NE(entry_of(it.host, 1), nullptr);
  EXPECT_TRUE(entry_of(it.host, 1)->verdict.fails(7));
}

TEST(Vote, AnotherOneTellsTheLowestAndAsksWhenThatIsSilent) {
  for (const int self : {1, 2, 5}) {
    OneHost it(self, 6);
    it.step();
    it.want = verdict(7, self);
    const VoteStep step = it.step();
    ASSERT_EQ(step.frames.size(), 1u);
    ASSERT_NE(sent_to(step, 0), nullptr);
    EXPECT_EQ(sent_to(step, 0)->want, it.want);
    EXPECT_TRUE(it.host.vote.promised.is_none());
    EXPECT_EQ(step.next, kStart + kVoteOvertake + self * kVoteStagger);
    it.now = step.next;
    it.step();
    EXPECT_EQ(it.host.vote.promised, (Ballot{1, self}));
    EXPECT_TRUE(it.host.vote.accepted.is_none()) << "it asks first";
  }
}

TEST(Vote, ThatOneIsDeadOrCutAndTheNextAsksAtOnce) {
  for (const State state : {State::dead, State::left, State::cut}) {
    OneHost it(1, 4);
    it.of(0).state = state;
    it.want = verdict(7, 1);
    it.step();
    EXPECT_EQ(it.host.vote.promised, (Ballot{1, 1}));
    EXPECT_TRUE(it.host.vote.accepted.is_none());
  }
}

TEST(Vote, TheLowestProposesWhatAnotherOneWants) {
  OneHost it(0, 3);
  VoteFrame frame;
  frame.want = verdict(9, 2);
  it.step(2, &frame);
  EXPECT_EQ(it.host.vote.accepted, (Ballot{0, 0}));
  EXPECT_EQ(it.host.vote.value, verdict(9, 2));
}

TEST(Vote, WhoHasAcceptedWhatIsNotChosenFinishesIt) {
  OneHost it(2, 3);
  it.take(0, accepted({0, 0}, verdict(5)));
  EXPECT_EQ(it.host.vote.accepted, (Ballot{0, 0}));
  it.now += std::chrono::seconds(1);
  it.step();
  EXPECT_EQ(it.host.vote.promised, (Ballot{1, 2}));
  it.take(1, promised({1, 2}));
  EXPECT_EQ(it.host.vote.number, 0u);
  EXPECT_EQ(it.host.vote.accepted, (Ballot{1, 2}));
  EXPECT_EQ(it.host.vote.value, verdict(5));
}

TEST(Vote, ANewRelayRepeatsTheVoteOfItsHost) {
  OneHost it(0, 3);
  it.want = verdict(7);
  it.step();
  it.memory = {};
  ++it.host.term;
  it.want = verdict(8);
  const VoteStep step = it.step();
  ASSERT_NE(sent_to(step, 2), nullptr);
  EXPECT_EQ(sent_to(step, 2)->term, 2u);
  EXPECT_EQ(sent_to(step, 2)->vote.value, verdict(7));
}

TEST(Vote, OnlyTheRelayOfTheTermWrites) {
  HostVote there = first_vote(2), next = there;
  there.term = next.term = 3;
  EXPECT_TRUE(may_replace(there, next));
  there.term = 4;
  EXPECT_FALSE(may_replace(there, next));
}

// ---- promising and accepting -------------------------------------------------------------------

TEST(Vote, NothingIsPromisedOrAcceptedBelowAPromise) {
  struct Row {
    Ballot before;
    Vote shown;  // by host 1
    Ballot promised, accepted;
  };
  const Entry value = verdict(3, 1);
  const Ballot none;
  const std::vector<Row> rows = {
      {none, promised({1, 1}), {1, 1}, none},
      {{1, 0}, promised({1, 1}), {1, 1}, none},
      {{1, 2}, promised({1, 1}), {1, 2}, none},
      {{2, 0}, promised({1, 1}), {2, 0}, none},
      {none, promised({1, 2}), none, none},  // not its own question
      {none, accepted({0, 1}, value), {0, 1}, {0, 1}},
      {{1, 1}, accepted({1, 1}, value), {1, 1}, {1, 1}},
      {{1, 0}, accepted({1, 1}, value), {1, 1}, {1, 1}},
      {{1, 2}, accepted({1, 1}, value), {1, 2}, none},
      {none, accepted({1, 2}, value), none, none},  // nor its own proposal
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    OneHost it(3, 4);
    it.host.vote.promised = rows[i].before;
    it.take(1, rows[i].shown);
    EXPECT_EQ(it.host.vote.promised, rows[i].promised);
    EXPECT_EQ(it.host.vote.accepted, rows[i].accepted);
    EXPECT_EQ(it.host.vote.value, rows[i].accepted.is_none() ? Entry{} : value);
  }
}

TEST(Vote, TheHighestAcceptedBallotIsProposed) {
  for (const int highest : {1, 2, 3}) {
    OneHost it(4, 5);
    it.host.vote.promised = {9, 4};
    it.want = verdict(99, 4);
    for (const int other : {1, 2, 3}) {
      Vote vote = accepted({other == highest ? 8u : 2u, other},
                           verdict(50u + static_cast<unsigned>(other)));
      vote.promised = {9, 4};
      it.has_shown(other, vote);
    }
    it.step();
    EXPECT_EQ(it.host.vote.accepted, (Ballot{9, 4}));
    EXPECT_TRUE(it.host.vote.value.verdict.fails(50 + static_cast<unsigned>(highest)));
  }
}

TEST(Vote, WhoIsOvertakenAsksAgainLater) {
  OneHost it(0, 3);
  it.want = verdict(7);
  it.step();
  it.take(1, promised({1, 1}));
  EXPECT_EQ(it.host.vote.promised, (Ballot{1, 1}));
  EXPECT_EQ(it.host.vote.accepted, (Ballot{0, 0}));
  it.now += 2 * kVoteOvertake - milliseconds(1);
  it.step();
  EXPECT_EQ(it.host.vote.promised, (Ballot{1, 1}));
  it.now += milliseconds(1);
  it.step();
  EXPECT_EQ(it.host.vote.promised, (Ballot{2, 0}));
}

// A host in the middle may reach enough, and they would only overtake it by turns.
TEST(Vote, NobodyAsksWhomNoQuorumCouldAnswerAndAllAreToldWhatItWants) {
  struct Row {
    int count, self;
    HostSet dead, cut_off;
    std::map<int, HostSet> shown;  // whom those that it reaches have cut off
    bool asks;
  };
  const std::vector<Row> rows = {
      // Host 0 hears host 4, too: those four are a majority with it, and only with it.
      {7, 1, {3, 5, 6}, {4}, {{0, {3, 5, 6}}, {2, {3, 4, 5, 6}}}, false},
      {7, 2, {3, 5, 6}, {4}, {{0, {3, 5, 6}}, {1, {3, 4, 5, 6}}}, false},
      {7, 4, {3, 5, 6}, {1, 2}, {{0, {3, 5, 6}}}, false},
      {7, 0, {3, 5, 6}, {}, {{1, {3, 4, 5, 6}}, {2, {3, 4, 5, 6}}, {4, {1, 2, 3, 5, 6}}}, true},
      // Now it does not.
      {7, 1, {3, 5, 6}, {4}, {{0, {3, 4, 5, 6}}, {2, {3, 4, 5, 6}}}, true},
      {7, 1, {3, 5, 6}, {4}, {{0, {3, 4, 5, 6}}}, false},  // host 2 has shown nothing
      // A star.
      {4, 0, {}, {1, 2}, {{3, {}}}, false},
      {4, 3, {}, {}, {{0, {1, 2}}, {1, {0, 2}}, {2, {0, 1}}}, true},
      // A majority need not have cut off anybody, and who is gone is told with the question.
      {4, 1, {}, {3}, {{0, {}}, {2, {}}}, true},
      {5, 4, {0, 1, 2}, {}, {{3, {}}}, true},
      {2, 1, {}, {0}, {}, true},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const Row& row = rows[i];
    OneHost it(row.self, row.count);
    for (const int dead : row.dead.members()) it.of(dead).state = State::dead;
    it.host.vote.cut_off = row.cut_off;
    for (const auto& [other, cut_off] : row.shown) {
      Vote vote;
      vote.cut_off = cut_off;
      it.has_shown(other, vote);
    }
    it.step();
    it.want = verdict(7, row.self);
    const VoteStep tells = it.step();
    it.now += std::chrono::seconds(10);
    const VoteStep asks = it.step();
    EXPECT_EQ(it.host.vote.promised.host == row.self || it.host.vote.number > 0, row.asks);
    if (row.asks) continue;
    EXPECT_EQ(asks.next, Clock::time_point::max()) << "it is woken by a frame";
    for (const auto& [other, cut_off] : row.shown) {
      ASSERT_NE(sent_to(tells, other), nullptr) << other;
      EXPECT_EQ(sent_to(tells, other)->want, it.want);
    }
  }
}

TEST(Vote, WhoCouldNotAskForLongWaitsForItsTurn) {
  OneHost it(1, 4);
  it.host.vote.cut_off = {2, 3};
  it.want = verdict(7, 1);
  it.step();
  it.now += std::chrono::seconds(10);
  Vote vote;
  vote.cut_off = {2, 3};
  const VoteStep step = it.take(0, vote);
  EXPECT_TRUE(it.host.vote.promised.is_none()) << "host 0 has just become able to ask, too";
  EXPECT_EQ(step.next, it.now + kVoteOvertake + kVoteStagger);
}

// The doubling keeps rivals apart. After a parting or a death others are left.
TEST(Vote, TurnsBeginAnewAmongThoseThatAreLeft) {
  const auto overtaken = [](int self, int count, int rival) {
    OneHost it(self, count);
    it.want = verdict(7, self);
    it.step();
    it.now += std::chrono::seconds(1);
    it.step();
    EXPECT_EQ(it.host.vote.promised, (Ballot{1, self}));
    it.take(rival, promised({2, rival}));
    EXPECT_EQ(it.host.vote.promised, (Ballot{2, rival}));
    return it;
  };
  OneHost alone = overtaken(1, 3, 2);
  for (const int other : {0, 2}) alone.cut(other, kPart);
  EXPECT_TRUE(alone.step().entered) << "nobody is left to overtake it";

  OneHost third = overtaken(2, 5, 1);
  const Clock::duration once = kVoteOvertake + 2 * kVoteStagger;
  EXPECT_EQ(third.step().next, third.now + 2 * once);
  third.of(4).state = State::dead;
  third.step();
  EXPECT_EQ(third.step().next, third.now + once);
  third.now += milliseconds(100);
  third.of(3).state = State::dead;
  third.step();
  EXPECT_EQ(third.step().next, third.now + once) << "each after those before it";
}

TEST(Vote, WhoShowsTheSameBallotAgainGetsNoMoreTimeForIt) {
  OneHost it(1, 5);
  it.want = verdict(7, 1);
  it.take(2, promised({3, 2}));
  const Clock::time_point due = kStart + kVoteOvertake + kVoteStagger;
  for (const int cut_off : {3, 4}) {
    it.now += milliseconds(100);
    Vote vote = promised({3, 2});
    vote.cut_off = {cut_off};
    EXPECT_EQ(it.take(2, vote).next, due);
  }
  EXPECT_EQ(it.take(2, accepted({3, 2}, verdict(8))).next, it.now + kVoteOvertake + kVoteStagger)
      << "that is progress";
}

// ---- quorums -----------------------------------------------------------------------------------

TEST(Vote, AQuorumIsMoreThanHalfOrAllWhomNobodyInItHasCutOff) {
  struct Row {
    int count;
    HostSet voted;                   // beside host 0
    std::map<int, HostSet> cut_off;  // by whom
    bool chosen;
  };
  const std::vector<Row> rows = {
      {1, {}, {}, true},
      {2, {}, {}, false},
      {2, {1}, {}, true},
      {2, {}, {{0, {1}}}, true},
      {3, {}, {}, false},
      {3, {1}, {}, true},
      {3, {}, {{0, {1, 2}}}, true},
      {3, {}, {{0, {1}}}, false},
      {4, {1}, {}, false},
      {4, {1, 2}, {}, true},
      {4, {1}, {{0, {2, 3}}, {1, {2, 3}}}, true},
      {4, {1}, {{0, {2, 3}}}, false},
      {4, {1}, {{0, {2, 3}}, {1, {2}}}, false},
      {4, {1}, {{0, {2}}, {1, {2}}}, false},
      {4, {1, 2}, {{0, {2}}}, true},  // it voted before it was cut off
      {4, {2}, {{0, {2, 3}}, {2, {3}}}, false},
      {5, {1}, {{0, {2, 3, 4}}, {1, {2, 3, 4}}}, true},
      {5, {1, 4}, {}, true},
      {5, {4}, {{0, {1, 2, 3}}, {4, {1, 2}}}, false},
      {8, {1, 2, 3}, {}, false},
      {8, {1, 2, 3, 4}, {}, true},
      {200, HostSet::first(100), {}, false},
      {200, HostSet::first(101), {}, true},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const Row& row = rows[i];
    const auto cut_off_by = [&](int host) {
      const auto found = row.cut_off.find(host);
      return found == row.cut_off.end() ? HostSet{} : found->second;
    };
    OneHost it(0, row.count);
    it.host.vote = accepted({1, 0}, verdict(4));
    it.host.vote.cut_off = cut_off_by(0);
    for (const int other : row.voted.members()) {
      if (other == 0) continue;
      Vote vote = accepted({1, 0}, verdict(4));
      vote.cut_off = cut_off_by(other);
      it.has_shown(other, vote);
    }
    EXPECT_EQ(it.step().entered, row.chosen);
  }
}

TEST(Vote, WhoHasPromisedMoreMeanwhileCountsForAMajorityOnly) {
  OneHost it(0, 4);
  it.host.vote = accepted({1, 0}, verdict(4));
  it.host.vote.cut_off = {2, 3};
  Vote vote = accepted({1, 0}, verdict(4));
  vote.cut_off = {2, 3};
  vote.promised = {2, 3};
  it.has_shown(1, vote);
  EXPECT_FALSE(it.step().entered);
}

TEST(Vote, AVoteForAnotherEntryDoesNotCount) {
  OneHost it(0, 3);
  it.host.vote = accepted({1, 0}, verdict(4));
  Vote vote = accepted({1, 0}, verdict(4));
  vote.number = 1;
  it.has_shown(1, vote);
  EXPECT_FALSE(it.step().entered);
}

// Five hosts. Host 0 has chosen with 1 and 2; what it says to 3 is still on its way when all three
// die. Host 4 has read all that came from them, and 3 has not. If the word of host 4 were enough,
// {3, 4} would be all that are not known to be dead, and choose something else.
TEST(Vote, TheDeadMayStillBeHeardByAnother) {
  OneHost three(3, 5), four(4, 5);
  VoteFrame late;
  late.term = 1;
  late.vote.number = 1;
  late.entries = {verdict(1)};
  four.want = verdict(2, 4);
  for (const int dead : {0, 1, 2}) four.of(dead).state = State::dead;
  four.step();
  four.now = four.step().next;  // host 3 is the one to propose, and wants nothing
  const VoteStep asks = four.step();
  ASSERT_EQ(four.host.vote.promised, (Ballot{1, 4}));
  ASSERT_NE(sent_to(asks, 3), nullptr);
  // Without host 3's word there is no quorum.
  four.has_shown(3, promised({1, 4}));
  four.step();
  EXPECT_TRUE(four.host.vote.accepted.is_none());
  // Host 3 takes the dead for dead, too, as it answers; then what they said comes too late.
  const VoteStep answer = three.step(4, sent_to(asks, 3));
  EXPECT_EQ(three.host.vote.cut_off, (HostSet{0, 1, 2}));
  three.step(0, &late);
  EXPECT_EQ(three.host.vote.number, 0u);
  ASSERT_NE(sent_to(answer, 4), nullptr);
  four.step(3, sent_to(answer, 4));
  EXPECT_EQ(four.host.vote.accepted, (Ballot{1, 4}));
}

// ---- whom it hears -----------------------------------------------------------------------------

TEST(Vote, AnOldTermIsNotHeard) {
  OneHost it(2, 3);
  it.take(0, promised({1, 0}), 5);
  it.take(0, promised({2, 0}), 4);
  EXPECT_EQ(it.host.vote.promised, (Ballot{1, 0}));
  it.take(0, promised({2, 0}), 6);
  EXPECT_EQ(it.host.vote.promised, (Ballot{2, 0}));
}

TEST(Vote, WhoIsCutOffIsNotHeardAndWhoHasCutThisOneOffIsCutOff) {
  OneHost it(1, 3);
  Vote vote = promised({1, 0});
  vote.cut_off = {1};
  const VoteStep step = it.take(0, vote);
  EXPECT_EQ(it.host.vote.cut_off, HostSet{0});
  EXPECT_TRUE(it.host.vote.promised.is_none());
  ASSERT_NE(sent_to(step, 0), nullptr) << "it is told so";
  EXPECT_EQ(step.next, it.now) << "what is wanted has changed";
  it.take(0, promised({2, 0}));
  EXPECT_TRUE(it.host.vote.promised.is_none());
}

TEST(Vote, DeathsAreHearsay) {
  OneHost it(1, 4);
  Vote vote;
  vote.cut_off = {2, 3};
  vote.gone = {3};
  it.take(0, vote);
  EXPECT_EQ(it.host.vote.gone, HostSet{3});
  EXPECT_EQ(it.host.vote.cut_off, HostSet{3});
  vote.gone = {1, 3};
  it.take(0, vote);
  EXPECT_FALSE(it.host.vote.gone.contains(1)) << "it knows better";
}

TEST(Vote, WhoHasLeftOrDiedIsOutWithTheNextEntry) {
  OneHost it(0, 3);
  it.of(1).state = State::left;
  it.of(2).state = State::dead;
  it.want = verdict(6);
  EXPECT_TRUE(it.step().entered);
  EXPECT_EQ(it.host.hosts, HostSet{0});
  EXPECT_EQ(it.host.entries.back().verdict, verdict(6).verdict);
}

// ---- parting -----------------------------------------------------------------------------------

TEST(Vote, WhoReachesNoQuorumForLongParts) {
  struct Row {
    int count;
    std::map<int, int> cut;  // ms since it was heard
    HostSet dead;
    HostSet parts;
    int in_ms;  // -1: never
  };
  const std::vector<Row> rows = {
      {2, {{1, 2000}}, {}, {1}, 500},
      {2, {{1, 2500}}, {}, {1}, 0},
      {2, {{1, 9000}}, {}, {1}, 0},
      {3, {{1, 5000}}, {}, {}, -1},
      {3, {{1, 5000}, {2, 2100}}, {}, {1, 2}, 400},
      {3, {{1, 5000}, {2, 3000}}, {}, {1, 2}, 0},
      {3, {{1, 5000}}, {2}, {1}, 0},
      {3, {{1, 2100}}, {2}, {1}, 400},
      {3, {}, {1, 2}, {}, -1},
      {4, {{1, 5000}}, {}, {}, -1},
      {4, {{1, 5000}, {2, 2000}}, {}, {1, 2}, 500},
      {4, {{1, 5000}}, {3}, {1}, 0},
      {5, {{1, 5000}, {2, 4000}}, {}, {}, -1},
      {5, {{1, 5000}, {2, 4000}, {3, 2200}}, {}, {1, 2, 3}, 300},
      {5, {{1, 2300}, {2, 4000}}, {4}, {1, 2}, 200},
      {8, {{1, 5000}, {2, 4000}, {3, 3500}}, {}, {}, -1},
      {8, {{1, 5000}, {2, 4000}, {3, 3500}, {4, 2501}}, {}, {1, 2, 3, 4}, 0},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const Row& row = rows[i];
    OneHost it(0, row.count);
    for (const auto& [other, ago] : row.cut) it.cut(other, milliseconds(ago));
    for (const int dead : row.dead.members()) it.of(dead).state = State::dead;
    if (row.in_ms > 0) {
      const VoteStep step = it.step();
      EXPECT_EQ(it.host.vote.cut_off, row.dead);
      EXPECT_EQ(it.step().next, it.now + milliseconds(row.in_ms));
    }
    it.now += milliseconds(row.in_ms < 0 ? 100'000 : row.in_ms);
    it.step();
    EXPECT_EQ(it.host.vote.cut_off, row.parts | row.dead);
    EXPECT_EQ(it.host.vote.gone, row.dead);
    for (HostFacts& each : it.facts) each.state = State::reachable;
    it.step();
    EXPECT_EQ(it.host.vote.cut_off, row.parts | row.dead) << "for good";
  }
}

TEST(Vote, OfTwoThatHavePartedTheLowerOneStays) {
  OneHost it(2, 6);
  for (const int other : {0, 4, 5}) it.cut(other, std::chrono::seconds(4));
  Vote of_one, of_three;
  of_one.cut_off = {0, 3, 4, 5};
  of_three.cut_off = {0, 1, 5};
  it.has_shown(1, of_one);
  it.has_shown(3, of_three);
  it.step();
  EXPECT_EQ(it.host.vote.cut_off, (HostSet{0, 3, 4, 5}));
}

// ---- what is told ------------------------------------------------------------------------------

TEST(Vote, WhoIsBehindIsGivenWhatItLacks) {
  OneHost it(0, 1), other(1, 2);
  it.facts.push_back({State::reachable, {}, 1});
  it.host.hosts = HostSet::first(2);
  it.host.vote.cut_off = {1};
  it.kept = 3;
  for (unsigned group = 1; group <= 5; ++group) {
    it.want = verdict(group);
    if (group == 1)
      it.want = Entry{{ErrorCode::kPeerLost, {}, world_ranks({4, 5}), "", WorldRank(0)}, {}};
    EXPECT_TRUE(it.step().entered);
  }
  EXPECT_EQ(entry_of(it.host, 2), nullptr);
  EXPECT_EQ(it.host.lost_before, world_ranks({4, 5}));
  for (const std::uint64_t behind : {0u, 2u, 3u, 4u}) {
    SCOPED_TRACE(behind);
    OneHost teller = it;
    teller.memory = {};
    teller.want.reset();
    teller.host.vote.cut_off = {};
    Vote vote;
    vote.number = behind;
    const VoteStep step = teller.take(1, vote);
    ASSERT_NE(sent_to(step, 1), nullptr);
    const VoteFrame& frame = *sent_to(step, 1);
    EXPECT_EQ(frame.entries.size(), std::min<std::size_t>(3, 5 - behind));
    OneHost listener(1, 2);
    listener.host.vote.number = behind;
    for (std::uint64_t i = 0; i < behind; ++i) listener.host.entries.push_back(verdict(77));
    const VoteStep heard = listener.step(0, &frame);
    EXPECT_EQ(listener.host.vote.number, 5u);
    EXPECT_EQ(heard.missed, behind == 0);
    EXPECT_TRUE(entry_of(listener.host, 5)->verdict.fails(5));
    EXPECT_EQ(listener.host.lost_before,
              behind == 0 ? it.host.lost_before : std::vector<WorldRank>{});
    EXPECT_TRUE(teller.step().frames.empty()) << "once";
    ++teller.of(1).connection;
    EXPECT_EQ(teller.step().frames.size(), 1u) << "again on a new connection";
  }
}

/// Else it would carry to one side what the other has chosen.
TEST(Vote, WhoIsLeftOutTakesNoLaterEntryEvenOfOneFrame) {
  OneHost it(1, 3);
  VoteFrame frame;
  frame.term = 1;
  frame.hosts = {0, 2};
  frame.vote.number = 2;
  const Entry leaves_it_out{{ErrorCode::kPeerLost, {}, world_ranks({1}), "", WorldRank(0)}, {1}};
  frame.entries = {leaves_it_out, verdict(7)};
  EXPECT_TRUE(it.step(0, &frame).entered);
  EXPECT_EQ(it.host.vote.number, 1u);
  EXPECT_FALSE(it.host.hosts.contains(1));
}

TEST(Vote, WhoHasSleptThroughTheEntryThatLeavesItOutCutsOffAll) {
  OneHost it(1, 3);
  VoteFrame frame;
  frame.term = 1;
  frame.hosts = {0, 2};
  frame.vote.number = 5;
  frame.entries = {verdict(7)};
  frame.lost_before = world_ranks({1});
  EXPECT_TRUE(it.step(0, &frame).missed);
  EXPECT_EQ(it.host.vote.cut_off, (HostSet{0, 2}));
  EXPECT_TRUE(it.host.entries.empty());
}

TEST(Vote, AHostThatIsHeldUpSaysSo) {
  OneHost it(0, 2);
  it.want = verdict(7);
  EXPECT_FALSE(it.step().held_up);
  it.now += kHeldUp - milliseconds(1);
  EXPECT_FALSE(it.step().held_up);
  it.now += milliseconds(1);
  EXPECT_TRUE(it.step().held_up);
  it.want.reset();
  EXPECT_FALSE(it.step().held_up);
}

}  // namespace
}  // namespace tutti::control
