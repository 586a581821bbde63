// What relays say to each other, as values and bytes, without a socket.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>

#include "control/hosts/door_plate.h"
#include "control/hosts/hearing.h"
#include "control/hosts/hello.h"
#include "control/hosts/report.h"
#include "control/hosts/view.h"
#include "control/hosts/vote_frame.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

constexpr int kWorldSize = 8;

Report full_report() {
  LineFacts line{.state = LineState::closing, .entered = 9, .completed = 8};
  line.queued = 7;
  line.waiting_in = 6;
  line.waiting_for = 2;
  line.goodbye_seq = 5;
  line.goodbye_chain = ~std::uint64_t{0};
  line.progress = 4;
  Shown shown;
  shown.seq = 9;
  shown.chain = 77;
  shown.count = 1000;
  shown.root_or_peer = -1;
  shown.factor = 0.5;
  line.history[9 % kHistory] = shown;
  line.history[9 % kHistory]->site_text = "train.cc:88";
  line.history[9 % kHistory]->purpose_text = "bucket 1 of 2";
  line.failure = FailureFacts{ErrorCode::kAborted, {1, 7}, "why"};
  return {.rank = WorldRank(3),
          .stamp = 12,
          .has_left = true,
          .group = 0xabc,
          .line = line,
          .meetings = {{.group = 5,
                        .asked_of = 6,
                        .members = world_ranks({0, 7}),
                        .looks = 3,
                        .words = "new_group({0, 7}) at train.cc:9"}},
          .asked = std::chrono::nanoseconds(100s).count()};
}

TEST(RemoteValues, AReportComesAsItWent) {
  const Report report = full_report();
  const auto come = decode_report(encode(report, Clock::time_point(50s)), kWorldSize);
  ASSERT_TRUE(come);
  EXPECT_EQ(come->rank, report.rank);
  EXPECT_EQ(come->stamp, report.stamp);
  EXPECT_TRUE(come->has_left);
  EXPECT_EQ(come->group, report.group);
  EXPECT_EQ(come->asked, report.asked);
  ASSERT_TRUE(come->line);
  const LineFacts &line = *come->line, &was = *report.line;
  EXPECT_EQ(line.state, was.state);
  EXPECT_EQ(line.entered, was.entered);
  EXPECT_EQ(line.completed, was.completed);
  EXPECT_EQ(line.queued, was.queued);
  EXPECT_EQ(line.waiting_in, was.waiting_in);
  EXPECT_EQ(line.waiting_for, was.waiting_for);
  EXPECT_EQ(line.goodbye_seq, was.goodbye_seq);
  EXPECT_EQ(line.goodbye_chain, was.goodbye_chain);
  EXPECT_EQ(line.progress, was.progress);
  ASSERT_TRUE(line.history[1]);
  EXPECT_FALSE(line.history[0]);
  EXPECT_EQ(line.history[1]->chain, 77u);
  EXPECT_EQ(line.history[1]->factor, 0.5);
  EXPECT_EQ(line.history[1]->site_text, "train.cc:88");
  EXPECT_EQ(line.history[1]->purpose_text, "bucket 1 of 2");
  EXPECT_EQ(line.history[1]->root_or_peer, -1);
  ASSERT_TRUE(line.failure);
  EXPECT_EQ(line.failure->code, ErrorCode::kAborted);
  EXPECT_EQ(line.failure->culprits, (std::vector<int>{1, 7}));
  EXPECT_EQ(line.failure->text, "why");
  ASSERT_EQ(come->meetings.size(), 1u);
  EXPECT_EQ(come->meetings[0].members, world_ranks({0, 7}));
  EXPECT_EQ(come->meetings[0].words, "new_group({0, 7}) at train.cc:9");
  EXPECT_EQ(come->meetings[0].looks, 3u);
}

/// Of a rank that waits for ranks 0 and 7, or for any of two.
Report wait_report(std::uint64_t stamp = 1) {
  Shown what;
  what.seq = 3;
  what.chain = 4;
  WaitFacts wait{.has_several_threads = true, .version = 5, .looks = 6};
  wait.since = Clock::time_point(40s);
  wait.parts = {{.group = 7, .what = what, .awaited = world_ranks({0, 7}), .words = "barrier #3"},
                {.group = 8,
                 .makes_group = true,
                 .one_suffices = true,
                 .what = what,
                 .awaited = world_ranks({1, 2}),
                 .words = {}}};
  return {.rank = WorldRank(2), .stamp = stamp, .wait = wait};
}

TEST(RemoteValues, AWaitComesAsItWent) {
  const Report report = wait_report();
  const auto come = decode_report(encode(report, Clock::time_point(50s)), kWorldSize);
  ASSERT_TRUE(come && come->wait);
  const WaitFacts &wait = *come->wait, &was = *report.wait;
  EXPECT_TRUE(wait.is_running);
  EXPECT_TRUE(wait.has_several_threads);
  EXPECT_EQ(wait.version, was.version);
  EXPECT_EQ(wait.looks, was.looks);
  EXPECT_EQ(wait.since, was.since);
  EXPECT_EQ(come->wait_age, 10s);
  EXPECT_EQ(wait.parts, was.parts);
  EXPECT_EQ(wait.parts[0].words, "barrier #3");
  EXPECT_FALSE(come->line);
}

TEST(RemoteValues, AWaitOfNobodyOrOutOfOrderIsNone) {
  const auto is_good = [](const std::function<void(Report&)>& change) {
    Report report = wait_report();
    change(report);
    return decode_report(encode(report, Clock::time_point(50s)), kWorldSize).has_value();
  };
  EXPECT_TRUE(is_good([](Report&) {}));
  EXPECT_FALSE(is_good([](Report& report) { report.wait->parts[0].awaited.clear(); }));
  EXPECT_FALSE(is_good([](Report& report) { report.wait->parts.clear(); }));
  EXPECT_FALSE(is_good([](Report& report) { report.group = 5; }));
  EXPECT_FALSE(is_good([](Report& report) {
    report.wait->parts[0].awaited = world_ranks({7, 0});
  }));
  EXPECT_TRUE(is_good([](Report& report) {
    report.wait->parts.clear();
    report.wait->version = 0;
  }));
}

TEST(RemoteValues, AReportThatIsCutOrWrongIsNone) {
  const std::string wait = encode(wait_report(), Clock::time_point(50s));
  for (std::size_t end = 0; end < wait.size(); ++end)
    EXPECT_FALSE(decode_report(wait.substr(0, end), kWorldSize)) << end;
  const std::string bytes = encode(full_report(), Clock::time_point(50s));
  for (std::size_t end = 0; end < bytes.size(); ++end)
    EXPECT_FALSE(decode_report(bytes.substr(0, end), kWorldSize)) << end;
  EXPECT_FALSE(decode_report(bytes + '\0', kWorldSize));
  EXPECT_FALSE(decode_report(bytes, 7)) << "no rank 7 there";
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string wrong = bytes;
    for (unsigned j = 0; j <= random() % 4; ++j)
      wrong[random() % wrong.size()] = static_cast<char>(random());
    const auto come = decode_report(wrong, kWorldSize);
    if (!come) continue;
    EXPECT_LT(come->rank.value, kWorldSize) << "seed " << seed;
    if (!come->line) continue;
    EXPECT_LE(come->line->state, LineState::unmade);
    EXPECT_LT(come->line->waiting_for, kWorldSize);
  }
}

TEST(RemoteValues, AQuestionComesAsItWent) {
  const Question question{.rank = WorldRank(7), .group = 5, .asked = 9};
  const std::string bytes = encode(question);
  const auto come = decode_question(bytes, kWorldSize);
  ASSERT_TRUE(come);
  EXPECT_EQ(come->rank, question.rank);
  EXPECT_EQ(come->group, question.group);
  EXPECT_EQ(come->asked, question.asked);
  EXPECT_FALSE(decode_question(bytes, 7));
  EXPECT_FALSE(decode_question(bytes.substr(1), kWorldSize));
}

TEST(RemoteValues, AHelloComesAsItWent) {
  const Hello hello{
      .role = Role::data, .from = WorldRank(7), .to = WorldRank(2), .group = 9, .lane = 1};
  const net::Claim claim = claim_of(hello);
  const auto come = hello_of(claim, kWorldSize);
  ASSERT_TRUE(come);
  EXPECT_EQ(come->role, Role::data);
  EXPECT_EQ(come->from, hello.from);
  EXPECT_EQ(come->to, hello.to);
  EXPECT_EQ(come->group, 9u);
  EXPECT_EQ(come->lane, 1);
  EXPECT_FALSE(hello_of(claim, 7));
  net::Claim wrong = claim;
  wrong.purpose = net::Purpose::store;
  EXPECT_FALSE(hello_of(wrong, kWorldSize));
  for (const int none : {-1, kWorldSize}) {
    wrong = claim;
    wrong.from = none;
    EXPECT_FALSE(hello_of(wrong, kWorldSize));
    wrong = claim;
    wrong.to = none;
    EXPECT_FALSE(hello_of(wrong, kWorldSize));
  }
  wrong = claim;
  wrong.lane = 256;
  EXPECT_FALSE(hello_of(wrong, kWorldSize));
  for (const Answer answer : {Answer::welcome, Answer::crossing, Answer::refused})
    EXPECT_EQ(decode_answer(encode(answer)), answer);
  // One byte that was changed on its way makes no other answer.
  for (const Answer answer : {Answer::welcome, Answer::crossing, Answer::refused}) {
    for (std::size_t at = 0; at < kAnswerBytes; ++at) {
      for (int value = 0; value < 256; ++value) {
        AnswerBytes changed = encode(answer);
        if (std::exchange(changed[at], static_cast<std::byte>(value)) == changed[at]) continue;
        EXPECT_FALSE(decode_answer(changed)) << at << " " << value;
      }
    }
  }
}

TEST(RemoteValues, APlateComesAsItWentAndProvesTheSecretOfItsRank) {
  const net::Security security{.level = net::Level::auth,
                               .secret = net::derive({}, {}, "a secret")};
  const DoorPlate plate{.address = *net::TcpAddress::parse("192.0.2.1:4711"),
                        .level = net::Level::auth,
                        .public_key = net::KeyPair::make().public_key()};
  const std::string text = encode(plate, WorldRank(3), security);
  const auto come = decode_plate(text, WorldRank(3), security);
  ASSERT_TRUE(come);
  EXPECT_EQ(come->address.text(), "192.0.2.1:4711");
  EXPECT_EQ(come->level, net::Level::auth);
  EXPECT_EQ(come->public_key, plate.public_key);
  EXPECT_TRUE(come->proves_secret);
  EXPECT_FALSE(decode_plate(text, WorldRank(4), security)->proves_secret) << "of another rank";
  EXPECT_FALSE(decode_plate(text, WorldRank(3), {.level = net::Level::auth})->proves_secret);
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(decode_plate(text.substr(0, i), WorldRank(3), security)) << i;
    std::string changed = text;
    changed[i] = changed[i] == '1' ? '2' : '1';
    const auto other = decode_plate(changed, WorldRank(3), security);
    EXPECT_FALSE(other && other->proves_secret) << i;
  }
}

TEST(DoorKeys, AreTheSameAtBothEndsAndOfTheseRanksAlone) {
  const auto key_of = [](net::Level level, const char* secret) {
    const net::Security security{.level = level, .secret = net::derive({}, {}, secret)};
    std::vector<net::KeyPair> pairs;
    std::vector<std::string> plates;
    for (int rank = 0; rank < 3; ++rank) {
      pairs.push_back(net::KeyPair::make());
      plates.push_back("plate " + std::to_string(rank));
    }
    std::vector<DoorKeys> keys;
    for (const net::KeyPair& pair : pairs) keys.emplace_back(security, pair, plates);
    const auto bytes = [&](int of, int with) {
      const auto key = keys[static_cast<std::size_t>(of)].with(
          WorldRank(with), pairs[static_cast<std::size_t>(with)].public_key());
      return std::vector<std::byte>(key.bytes().begin(), key.bytes().end());
    };
    EXPECT_EQ(bytes(0, 1), bytes(1, 0));
    EXPECT_EQ(bytes(0, 1) == bytes(0, 2), level == net::Level::none);
    return bytes(0, 1);
  };
  EXPECT_EQ(key_of(net::Level::none, ""), key_of(net::Level::none, ""));
  EXPECT_NE(key_of(net::Level::opportunistic, ""), key_of(net::Level::opportunistic, ""));
  EXPECT_NE(key_of(net::Level::none, "a"), key_of(net::Level::none, "b"));
}

Report at(std::uint64_t stamp, LineState state, std::int64_t asked = 0) {
  return {.rank = WorldRank(1),
          .stamp = stamp,
          .group = 5,
          .line = LineFacts{.state = state},
          .asked = asked};
}

TEST(View, TheReportThatWasReadLaterCounts) {
  View view;
  EXPECT_FALSE(view.state_of(5, WorldRank(1)));
  view.take(at(20, LineState::open));
  view.take(at(10, LineState::meeting));
  EXPECT_EQ(view.state_of(5, WorldRank(1)), LineState::open);
  view.take({.rank = WorldRank(1), .stamp = 15, .group = 5});
  EXPECT_EQ(view.state_of(5, WorldRank(1)), LineState::open);
  view.take({.rank = WorldRank(1), .stamp = 30, .group = 5});
  EXPECT_FALSE(view.state_of(5, WorldRank(1))) << "it is gone";
}

TEST(View, AnAnswerSaysWhenItWasAskedFor) {
  View view;
  const auto asked = [&] {
    return view.facts_of(5, WorldRank(1)).asked.time_since_epoch().count();
  };
  EXPECT_TRUE(view.add_question({.rank = WorldRank(1), .group = 5, .asked = 5'000'000}));
  EXPECT_FALSE(view.add_question({.rank = WorldRank(1), .group = 5, .asked = 5'500'000}));
  EXPECT_EQ(view.open_questions(world_ranks({0, 1})).size(), 1u);
  EXPECT_TRUE(view.open_questions(world_ranks({0, 2})).empty());
  view.take(at(10, LineState::open));
  EXPECT_EQ(asked(), 0) << "that came unasked";
  EXPECT_EQ(view.open_questions(world_ranks({1})).size(), 1u);
  view.take(at(5, LineState::open, 5'000'000));
  EXPECT_EQ(asked(), 5'000'000) << "what is known was read after the answer";
  EXPECT_TRUE(view.open_questions(world_ranks({1})).empty());
}

TEST(View, AWaitIsNotLongerThanItsAnswerSaysAndStaysTheSame) {
  View view;
  EXPECT_EQ(view.wait_of(WorldRank(2)).version, 0u);
  const auto take = [&](std::uint64_t stamp, std::uint64_t looks, Clock::duration age) {
    Report report = wait_report(stamp);
    report.wait->looks = looks;
    report.wait_age = age;
    view.take(std::move(report));
    return view.wait_of(WorldRank(2));
  };
  const auto before = Clock::now();
  const WaitFacts first = take(10, 6, 30s);
  EXPECT_GE(first.since, before - 30s);
  EXPECT_EQ(take(9, 5, 30s).looks, 6u) << "an answer that was overtaken";
  const WaitFacts second = take(11, 7, 30s);
  EXPECT_EQ(second.looks, 7u);
  EXPECT_EQ(second.since, first.since) << "one that was longer under way";
  EXPECT_EQ(take(12, 8, 31s).since, first.since);
}

TEST(View, WhoHasLeftStaysSo) {
  View view;
  view.take({.rank = WorldRank(1), .stamp = 5, .has_left = true});
  view.take(at(10, LineState::gone));
  EXPECT_TRUE(view.has_left(WorldRank(1)));
  EXPECT_TRUE(view.facts_of(5, WorldRank(1)).has_left_world);
  EXPECT_FALSE(view.has_left(WorldRank(2)));
}

TEST(View, NothingMoreIsAskedOfWhoHasLeft) {
  View view;
  view.take(at(10, LineState::gone));
  EXPECT_EQ(view.facts_of(5, WorldRank(1)).asked, Clock::time_point{});
  view.take({.rank = WorldRank(1), .stamp = 20, .has_left = true});
  EXPECT_EQ(view.facts_of(5, WorldRank(1)).asked, Clock::time_point::max());
  EXPECT_EQ(view.facts_of(6, WorldRank(1)).asked, Clock::time_point::max()) << "it never made it";
}

VoteFrame frame_of(std::uint64_t number, std::vector<int> entries, std::uint64_t term = 1) {
  VoteFrame frame;
  frame.term = term;
  frame.vote.number = number;
  for (const int entry : entries)
    frame.entries.push_back({.verdict = {.groups = {static_cast<GroupId>(entry)}}, .out = {}});
  return frame;
}

std::vector<int> entries_of(const VoteFrame& frame) {
  std::vector<int> entries;
  for (const Entry& entry : frame.entries)
    entries.push_back(static_cast<int>(entry.verdict.groups.at(0)));
  return entries;
}

TEST(Hearing, WhoAcknowledgesNothingThatWasAskedIsSilent) {
  const Clock::time_point start{1h};
  Hearing hearing(start);
  EXPECT_FALSE(hearing.is_silent(start + 1h)) << "this process may have been stopped";
  hearing.ask(start + 1s);
  hearing.ask(start + 2s);
  EXPECT_EQ(hearing.silent_from(), start + 3s) << "from the first on that is open";
  EXPECT_FALSE(hearing.is_silent(start + 3s - 1ms));
  EXPECT_TRUE(hearing.is_silent(start + 3s));
  EXPECT_FALSE(hearing.is_doubtful(start + 2s - 1ms));
  EXPECT_TRUE(hearing.is_doubtful(start + 2s));

  hearing.heard(start + 999ms);
  EXPECT_EQ(hearing.last(), start + 999ms);
  EXPECT_TRUE(hearing.is_silent(start + 3s)) << "that was before";
  hearing.heard(start + 1s);
  EXPECT_FALSE(hearing.is_silent(start + 1h));
  hearing.heard(start);
  EXPECT_EQ(hearing.last(), start + 1s);
}

TEST(VoteFrame, TwoInOneTellWhatBothHaveTold) {
  const VoteFrame both = merged(frame_of(3, {2, 3}), frame_of(5, {4, 5}));
  EXPECT_EQ(both.vote.number, 5u);
  EXPECT_EQ(entries_of(both), (std::vector<int>{2, 3, 4, 5}));
  EXPECT_EQ(entries_of(merged(frame_of(3, {2, 3}), frame_of(3, {}))), (std::vector<int>{2, 3}));
  EXPECT_EQ(entries_of(merged(frame_of(3, {2, 3}), frame_of(4, {1, 2, 3, 4}))),
            (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(entries_of(merged(frame_of(3, {2, 3}), frame_of(6, {6}))), std::vector<int>{6})
      << "there is a gap";
  EXPECT_EQ(merged(frame_of(3, {3}, 2), frame_of(9, {9}, 1)).vote.number, 3u) << "an older term";
}

}  // namespace
}  // namespace tutti::control
