#include "control/board/board.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "control/board/describe.h"
#include "control/board/layout.h"
#include "control/board/members.h"
#include "control/board/own_line.h"
#include "control/board/owner.h"
#include "control/board/waits.h"
#include "control/board/words.h"
#include "tutti/error.h"

namespace tutti::control {
namespace {

Shown all_reduce_at(std::uint64_t seq) {
  Shown value;
  value.seq = seq;
  value.chain = seq * 3;
  value.count = seq * 5;
  value.op = static_cast<std::uint8_t>(Op::all_reduce);
  value.dtype = static_cast<std::uint8_t>(DType::f32);
  value.factor = static_cast<double>(seq);
  return value;
}

TEST(Board, RanksOfOneProcessShareAMapping) {
  const net::Fd memory = Board::make(3);
  const Board one(memory);
  const net::Fd copy = memory.duplicate();
  const Board two(copy);
  EXPECT_EQ(one.data(), two.data());
  EXPECT_EQ(two.slot_count(), 3);
}

TEST(Board, RefusesWhatIsNoBoard) {
  EXPECT_THROW(Board::make(0), Error);
  EXPECT_THROW(Board::make(kMaxLocalRanks + 1), Error);
  EXPECT_THROW(Board::make(4, 3), Error) << "more on this host than in the world";
  EXPECT_THROW(Board::make(1, kMaxWorldRanks + 1), Error);
  const net::Fd memory = make_memory("not-a-board", 3 * kSlotBytes);
  EXPECT_THROW(Board board(memory), Error);
}

TEST(Board, TextsOfOthersSteerNoTerminal) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  auto& site = board.slot(SlotIndex(0)).sites[1];
  site.write(
      "a\x1b[31m\nb\x7f\xc2\x9b"
      "c \xc3\xa9.cc:7");
  EXPECT_EQ(site.read(), "a?[31m?b?\xc2?c \xc3\xa9.cc:7");
}

/// The words of a line that is opened for `group`.
Line* opened(const Board& board, SlotOwner& owner, GroupId group, GroupId asked_of) {
  EXPECT_TRUE(owner.open_line(group, asked_of, {}));
  return board.find_line(owner.index(), group);
}

TEST(Board, WhoEndsAfterItsLastGoodbyeHasLeft) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  Slot& slot = board.slot(SlotIndex(0));
  SlotOwner owner(board, SlotIndex(0));
  EXPECT_FALSE(has_left(board, SlotIndex(0))) << "absent";
  slot.state.store(RankState::running);
  slot.mark.owner_died.store(1);
  EXPECT_FALSE(has_left(board, SlotIndex(0))) << "died before it had made a group";
  Line* first = opened(board, owner, 1, 0);
  Line* second = opened(board, owner, 2, 1);
  first->state.store(LineState::closed);
  EXPECT_FALSE(has_left(board, SlotIndex(0))) << "died while it made its second group";
  second->state.store(LineState::open);
  EXPECT_FALSE(has_left(board, SlotIndex(0)));
  second->state.store(LineState::gone);
  EXPECT_TRUE(has_left(board, SlotIndex(0)));
  slot.mark.owner_died.store(0);
  EXPECT_FALSE(has_left(board, SlotIndex(0))) << "it lives, and may make another group";
  slot.state.store(RankState::left);
  EXPECT_TRUE(has_left(board, SlotIndex(0)));
}

std::int64_t reserved_bytes(const net::Fd& memory) {
  struct stat status {};
  EXPECT_EQ(fstat(memory.get(), &status), 0);
  return std::int64_t{status.st_blocks} * 512;
}

TEST(Board, FurtherLinesAreReservedWhenTheyAreNeeded) {
  const net::Fd memory = Board::make(8);
  const Board board(memory);
  SlotOwner owner(board, SlotIndex(7), memory.duplicate());
  for (GroupId group = 1; group <= kLinesPerSlot; ++group)
    ASSERT_TRUE(owner.open_line(group, 0, {}));
  EXPECT_LE(reserved_bytes(memory), 1 << 20) << "8 ranks with 4 groups each, and more";
  EXPECT_FALSE(owner.open_line(1000, 0, {}));
  while (owner.add_lines()) {
  }
  EXPECT_EQ(board.line_count(SlotIndex(7)), kMaxLines);
  EXPECT_EQ(board.line_count(SlotIndex(6)), kLinesPerSlot);
  for (GroupId group = kLinesPerSlot + 1; group <= kMaxLines; ++group)
    ASSERT_TRUE(owner.open_line(group, 0, {}));
  EXPECT_FALSE(owner.open_line(2000, 0, {}));
  Line* const last = board.find_line(SlotIndex(7), kMaxLines);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(static_cast<const void*>(last + 1), &board.relay_area(SlotIndex(0)));
  EXPECT_EQ(static_cast<const void*>(&board.relay_area(SlotIndex(7)) + 1),
            board.data() + board.byte_count());
  owner.publish_failure(OwnLine(*last), ErrorCode::kAborted, {});
  EXPECT_EQ(failed_lines(board, SlotIndex(7)), std::vector<const Line*>{last});
  outlive_failures(board, SlotIndex(7));
  EXPECT_TRUE(failed_lines(board, SlotIndex(7)).empty());
  board.slot(SlotIndex(6)).more_lines.store(~0u);
  EXPECT_EQ(board.line_count(SlotIndex(6)), kMaxLines) << "garbage";
}

TEST(Board, AnEntryIsNeverTorn) {
  static SharedShown entry;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t seq = 1; !stop.load(); ++seq) entry.write(all_reduce_at(seq));
  });
  int whole = 0;
  for (int i = 0; i < 200'000 || whole == 0; ++i) {
    const auto read = entry.read();
    if (!read) continue;
    ++whole;
    ASSERT_EQ(read->chain, read->seq * 3);
    ASSERT_EQ(read->count, read->seq * 5);
    ASSERT_EQ(read->factor, static_cast<double>(read->seq));
  }
  stop.store(true);
  writer.join();
  EXPECT_GT(whole, 0);
}

TEST(Board, CallSitesAreCopiedOnceAndMayRunOut) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(0));
  const Where where{"/home/user/train.cc", 88};
  const std::uint8_t index = owner->site(where);
  EXPECT_NE(index, 0);
  EXPECT_EQ(owner->site(where), index);
  EXPECT_EQ(board.slot(SlotIndex(0)).sites[index].read(), "train.cc:88");
  const std::uint8_t of_long_name =
      owner->site({"src/distributed_gradient_accumulation_trainer.cc", 1234});
  EXPECT_EQ(read_site(board.slot(SlotIndex(0)), of_long_name),
            "...ibuted_gradient_accumulation_trainer.cc:1234");
  // Not from within a letter.
  const std::uint8_t of_greek_name = owner->site({"src/α_κατανεμημένες_εκπαιδευτής_δικτύων.cc", 1});
  EXPECT_EQ(read_site(board.slot(SlotIndex(0)), of_greek_name), "..._εκπαιδευτής_δικτύων.cc:1");
  for (int line = 0; line < 1000; ++line) EXPECT_LT(owner->site({"other.cc", line}), kSites);
  EXPECT_EQ(owner->site({"one_too_many.cc", 1}), 0);
  EXPECT_EQ(owner->site(where), index);
}

TEST(Board, AMarkOutlivesItsHolder) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  Mark& mark = board.slot(SlotIndex(0)).mark;
  EXPECT_EQ(mark.look(), Mark::State::free);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = mark.take() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(mark.look(), Mark::State::held);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(mark.look(), Mark::State::owner_died);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(mark.look(), Mark::State::owner_died) << "every later look must see it too";
  EXPECT_FALSE(mark.take());
  EXPECT_EQ(describe_wait_status(status), "killed by SIGKILL");
  EXPECT_EQ(describe_wait_status(3 << 8), "exit code 3");
  close(ready[0]);
  close(ready[1]);
}

TEST(Board, SetsAndFailuresRoundTrip) {
  const net::Fd memory = Board::make(1, kMaxWorldRanks);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(0));
  const std::vector<WorldRank> lost = world_ranks({0, 63, 64, 200, 255, 256, 4095});
  owner->publish_lost(lost);
  EXPECT_EQ(read_set(board.slot(SlotIndex(0)).lost, board.world_size()), lost);

  Line* line = opened(board, *owner, 77, 0);
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(board.find_line(SlotIndex(0), 77), line);
  EXPECT_EQ(board.find_line(SlotIndex(0), 78), nullptr);
  owner->publish_failure(OwnLine(*line), ErrorCode::kAborted, lost);
  EXPECT_EQ(line->failure.load(), failure_word(ErrorCode::kAborted, 1));
  EXPECT_EQ(read_set(line->ranks, board.world_size()), lost);
}

TEST(Board, MembersAmongRanksOfTheWorldAreInOrder) {
  const net::Fd memory = Board::make(4);
  const Board board(memory);
  const Roster roster = Roster::of_one_host(4, "alone");
  const BoardMembers members(board, roster, 7, world_ranks({3, 1, 0}), 0);
  EXPECT_EQ(members.members_of(world_ranks({0, 2, 3})), (std::vector{0, 2}));
  EXPECT_TRUE(members.members_of(world_ranks({2})).empty());
}

TEST(Board, ATextIsShownOnOneLineAndSaysWhatIsCutOff) {
  EXPECT_EQ(as_shown("it has\nno\033 room", 16), "it has no? room");
  EXPECT_EQ(as_shown("it has\nno\033 rooms", 16), "it has no? r...");
  EXPECT_EQ(as_shown("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 7), "\xc3\xa9...")
      << "no half of a letter";
}

TEST(Board, TheFirstFailureOfASlotSaysWhoIsToBlame) {
  const net::Fd memory = Board::make(5);
  const Board board(memory);
  constexpr SlotIndex kSlot(2);
  SlotOwner owner(board, kSlot);
  Line* const world = opened(board, owner, 1, 0);
  Line* const outer = opened(board, owner, 2, 1);
  Line* const inner = opened(board, owner, 3, 1);
  EXPECT_TRUE(blamed_by(board, kSlot).empty());
  // It was told in `inner`, and what it unwound through later it aborted itself.
  owner.publish_failure(OwnLine(*inner), ErrorCode::kAborted, world_ranks({4}));
  owner.publish_failure(OwnLine(*outer), ErrorCode::kAborted, world_ranks({2}));
  owner.publish_failure(OwnLine(*world), ErrorCode::kPeerLost, world_ranks({0}));
  EXPECT_EQ(failed_lines(board, kSlot), (std::vector<const Line*>{inner, outer, world}));
  EXPECT_EQ(blamed_by(board, kSlot), std::set<WorldRank>{WorldRank(4)});
  // Every code blames, but for disagreements.
  inner->failure.store(failure_word(ErrorCode::kSystem, 1));
  EXPECT_EQ(blamed_by(board, kSlot), std::set<WorldRank>{WorldRank(4)});
  for (const ErrorCode code : {ErrorCode::kCollectiveMismatch, ErrorCode::kDeadlock}) {
    inner->failure.store(failure_word(code, 1));
    EXPECT_TRUE(blamed_by(board, kSlot).empty());
  }
  inner->failure.fetch_or(kOutlived);
  EXPECT_EQ(blamed_by(board, kSlot), std::set<WorldRank>{WorldRank(2)});
}

TEST(Board, WhatRanksOfAGroupDisagreedAboutSaysWhoseRanksItNames) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  SlotOwner owner(board, SlotIndex(0));
  SlotOwner finder(board, SlotIndex(1));
  Line* const world = opened(board, owner, 1, 0);
  Line* const group = opened(board, owner, 2, 1);
  group->site.store(owner.site({"src/train.cc", 12}));
  owner.publish_purpose(2, "new_group({2, 3})");
  finder.write_proposal({.code = ErrorCode::kCollectiveMismatch, .groups = {2}, .text = "1 sent"});
  finder.keep_proposal();
  EXPECT_EQ(disagreement_of(board, SlotIndex(0)), std::nullopt);
  owner.publish_failure(OwnLine(*group), ErrorCode::kCollectiveMismatch, {});
  EXPECT_EQ(disagreement_of(board, SlotIndex(0)),
            "1 sent (ranks of the group made by new_group({2, 3}) at train.cc:12)");
  group->failure.store(failure_word(ErrorCode::kDeadlock));
  EXPECT_EQ(disagreement_of(board, SlotIndex(0)), std::nullopt) << "that is another failure's";
  finder.write_proposal({.code = ErrorCode::kDeadlock, .groups = {2}, .text = "in a circle"});
  finder.keep_proposal();
  EXPECT_EQ(disagreement_of(board, SlotIndex(0)), "in a circle") << "ranks of the world";
  group->failure.store(failure_word(ErrorCode::kAborted));
  EXPECT_EQ(disagreement_of(board, SlotIndex(0)), std::nullopt);
  finder.write_proposal({.code = ErrorCode::kCollectiveMismatch, .groups = {1}, .text = "2 sent"});
  finder.keep_proposal();
  owner.publish_failure(OwnLine(*world), ErrorCode::kCollectiveMismatch, {});
  EXPECT_EQ(disagreement_of(board, SlotIndex(0)), "2 sent");
}

TEST(Board, AFailureWordHoldsCodeAndOrder) {
  const std::uint32_t last = failure_word(ErrorCode::kCancelled, kLastFailure);
  EXPECT_EQ(failure_order(last), kLastFailure);
  EXPECT_EQ(failure_code(last), ErrorCode::kCancelled);
  EXPECT_EQ(last & kOutlived, 0u);
  EXPECT_EQ(failure_order(last | kOutlived), kLastFailure);
  EXPECT_EQ(failure_code(last | kOutlived), ErrorCode::kCancelled);
  EXPECT_EQ(failure_order(failure_word(ErrorCode::kAborted, 7)), 7u);
  for (const std::uint32_t garbage : {~0u, 0xff00u, 0xffu, kOutlived})
    EXPECT_EQ(failure_code(garbage), ErrorCode::kInternal);
}

TEST(Board, TheLatestPurposesAreShownBesideTheirOperations) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(0));
  Shown value = all_reduce_at(41);
  value.chain = 1000;
  value.site = owner->site({"src/train.cc", 88});
  EXPECT_EQ(known_call(board.slot(SlotIndex(0)), value).purpose_text, "");
  owner->publish_purpose(1000, "bucket 1 of 2");
  EXPECT_EQ(describe(board.slot(SlotIndex(0)), value),
            describe(value) + " for bucket 1 of 2 at train.cc:88");
  owner->publish_purpose(1001, std::string(1000, 'x'));
  EXPECT_EQ(read_purpose(board.slot(SlotIndex(0)), 1001), std::string(kPurposeBytes - 1, 'x'));
  for (int more = 2; more < kPurposes; ++more) owner->publish_purpose(1000 + more, "more");
  EXPECT_EQ(read_purpose(board.slot(SlotIndex(0)), 1000), "bucket 1 of 2");
  owner->publish_purpose(7, "one more");
  EXPECT_EQ(read_purpose(board.slot(SlotIndex(0)), 1000), "");

  value.op = static_cast<std::uint8_t>(Op::send);  // its chain is the tag
  value.chain = 7;
  EXPECT_EQ(known_call(board.slot(SlotIndex(0)), value).purpose_text, "");
}

TEST(Board, WhatAProgramWaitsForRoundTrips) {
  const net::Fd memory = Board::make(3);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(1));
  EXPECT_EQ(read_wait(board, SlotIndex(1)).version, 0u);
  Shown message = all_reduce_at(0);
  message.op = static_cast<std::uint8_t>(Op::recv);
  message.root_or_peer = kAnyRank;
  message.chain = 3;
  const Clock::time_point since = Clock::now();
  const std::vector<WaitPart> parts = {
      {.group = 7, .one_suffices = true, .what = message, .awaited = world_ranks({0, 2})},
      {.group = 8, .what = all_reduce_at(41), .awaited = world_ranks({2})},
      {.group = 9, .makes_group = true, .awaited = world_ranks({0})}};
  board.slot(SlotIndex(1)).state.store(RankState::running);
  owner->show_wait(since, parts);
  owner->add_look();
  WaitFacts facts = read_wait(board, SlotIndex(1));
  EXPECT_TRUE(facts.is_running);
  EXPECT_FALSE(facts.has_several_threads);
  EXPECT_EQ(facts.since, since);
  EXPECT_EQ(facts.looks, 1u);
  ASSERT_EQ(facts.parts.size(), 3u);
  EXPECT_EQ(facts.parts[1], parts[1]);
  EXPECT_TRUE(facts.parts[0].one_suffices);
  EXPECT_EQ(facts.parts[0].awaited, parts[0].awaited);
  EXPECT_TRUE(facts.parts[2].makes_group);
  EXPECT_EQ(describe_wait(board, SlotIndex(1), facts.parts[0]),
            "recv(f32 x 0, from any rank, tag 3)");
  EXPECT_EQ(describe_wait(board, SlotIndex(1), facts.parts[1]), "all_reduce #41(f32 x 205, sum)");

  const std::uint64_t version = facts.version;
  owner->show_wait(since, std::vector<WaitPart>(20, parts[1]));
  facts = read_wait(board, SlotIndex(1));
  EXPECT_GT(facts.version, version);
  EXPECT_EQ(facts.parts.size(), static_cast<std::size_t>(kWaitParts)) << "no more are read";
  owner->say_several_threads();
  EXPECT_TRUE(read_wait(board, SlotIndex(1)).has_several_threads);
  owner->take_back_wait();
  EXPECT_EQ(read_wait(board, SlotIndex(1)).version, 0u);
  owner->show_wait(since, parts);
  EXPECT_GT(read_wait(board, SlotIndex(1)).version, facts.version) << "no version is used twice";
}

TEST(Board, AWaitForNobodyIsNone) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(0));
  const WaitPart part{.group = 7, .awaited = {WorldRank(1)}};
  owner->show_wait(Clock::now(), {part});
  EXPECT_NE(read_wait(board, SlotIndex(0)).version, 0u);
  owner->show_wait(Clock::now(), {part, WaitPart{.group = 7}});
  EXPECT_EQ(read_wait(board, SlotIndex(0)).version, 0u);
  owner->show_wait(Clock::now(), {});
  EXPECT_EQ(read_wait(board, SlotIndex(0)).version, 0u);
}

TEST(Board, AWaitIsNeverTorn) {
  const net::Fd memory = Board::make(2);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(0));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 1; !stop.load(); ++i) {
      const auto number = static_cast<std::uint64_t>(i);
      WaitPart part{.group = number, .what = all_reduce_at(number), .awaited = {WorldRank(1)}};
      owner->show_wait(Clock::time_point(Clock::duration(i)), {part, part});
    }
  });
  int whole = 0;
  for (int i = 0; i < 100'000 || whole == 0; ++i) {
    const WaitFacts facts = read_wait(board, SlotIndex(0));
    if (facts.version == 0) continue;
    ++whole;
    ASSERT_EQ(facts.parts.size(), 2u);
    for (const WaitPart& part : facts.parts) {
      ASSERT_EQ(part.group, facts.version);
      ASSERT_EQ(part.what.seq, facts.version);
      ASSERT_EQ(facts.since.time_since_epoch().count(), static_cast<std::int64_t>(part.group));
    }
  }
  stop.store(true);
  writer.join();
}

TEST(Board, SaysWhatARankIsDoing) {
  const net::Fd memory = Board::make(1);
  const Board board(memory);
  const auto owner = std::make_unique<SlotOwner>(board, SlotIndex(0));
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 7), "has not made this group");
  Line* line = opened(board, *owner, 7, 3);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 7), "is in new_group");
  line->site.store(owner->site({"src/train.cc", 12}));
  EXPECT_EQ(describe_doing(board, SlotIndex(0)), "is in new_group at train.cc:12");
  line->asked_of.store(0);
  EXPECT_EQ(describe_doing(board, SlotIndex(0)), "is in init_process_group at train.cc:12");
  line->state.store(LineState::open);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 7), "has completed no collective yet");
  for (const std::uint64_t seq : {40, 41}) {
    Shown value = all_reduce_at(seq);
    value.count = 1000;
    value.site = owner->site({"src/train.cc", 88});
    line->history[seq % kHistory].write(value);
    line->entered.store(seq);
  }
  line->completed.store(40);
  line->waiting.store(Awaited{41, 2, WorldRank(5)}.pack());
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 7),
            "is in all_reduce #41(f32 x 1000, sum) at train.cc:88, waiting for rank 2, last "
            "completed all_reduce #40(f32 x 1000, sum) at train.cc:88");

  // Whoever awaits it in another group reads what it does here, with ranks of the world.
  Line* other = opened(board, *owner, 8, 3);
  other->state.store(LineState::open);
  line->asked_of.store(3);
  EXPECT_EQ(
      describe_doing(board, SlotIndex(0), 8),
      "has completed no collective yet and meanwhile is in all_reduce #41(f32 x 1000, sum) "
      "at train.cc:88 of the group made by new_group at train.cc:12, waiting for world rank 5");
  EXPECT_TRUE(describe_doing(board, SlotIndex(0))
                  .starts_with(
                      "is in all_reduce #41(f32 x 1000, sum) at train.cc:88 of the group "
                      "made by new_group at train.cc:12, waiting for world rank 5, last completed"))
      << describe_doing(board, SlotIndex(0));
  line->failure.store(failure_word(ErrorCode::kAborted));
  EXPECT_EQ(
      describe_doing(board, SlotIndex(0), 8),
      "has completed no collective yet and was in all_reduce #41(f32 x 1000, sum) at "
      "train.cc:88 of the group made by new_group at train.cc:12, waiting for world rank 5, when "
      "that failed");
  // Its program may have gone on since: nothing says for how long.
  line->since.store((Clock::now() - std::chrono::hours(1)).time_since_epoch().count());
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 7),
            "was in all_reduce #41(f32 x 1000, sum) at train.cc:88, waiting for rank 2, when that "
            "failed, last completed all_reduce #40(f32 x 1000, sum) at train.cc:88");

  // Ranks in brackets are those of the group, and a text that speaks of the world says so.
  Shown message = all_reduce_at(1);
  message.op = static_cast<std::uint8_t>(Op::recv);
  message.root_or_peer = 1;
  message.chain = 0;
  Shown rooted = message;
  rooted.op = static_cast<std::uint8_t>(Op::broadcast);
  EXPECT_EQ(describe_wait(board, SlotIndex(0), {.group = 8, .what = message}),
            "recv(f32 x 5, from 1 of the group, tag 0) of another group");
  EXPECT_EQ(describe_wait(board, SlotIndex(0), {.group = 8, .what = rooted}),
            "broadcast #1(f32 x 5, root 1 of the group) of another group");
  message.root_or_peer = kAnyRank;
  EXPECT_EQ(describe_wait(board, SlotIndex(0), {.group = 8, .what = message}),
            "recv(f32 x 5, from any rank, tag 0) of another group");
  message.op = static_cast<std::uint8_t>(Op::recv) | kUnevenBit;
  EXPECT_EQ(describe_wait(board, SlotIndex(0), {.group = 8, .what = message}),
            "recv(f32, any count, from any rank, tag 0) of another group");
  message.op = static_cast<std::uint8_t>(Op::send);
  message.root_or_peer = 2;
  other->message.write(message);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 8), "is in send(f32 x 5, to 2, tag 0)");
  EXPECT_EQ(describe_doing(board, SlotIndex(0)),
            "is in send(f32 x 5, to 2 of the group, tag 0) of another group");
  other->message.clear();

  // A group that could not be made is shown until the next one is asked for.
  Line* unmade = opened(board, *owner, 9, 3);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 8),
            "has completed no collective yet and meanwhile is in new_group");
  owner->publish_purpose(9, "new_group({1, 0})");
  owner->publish_failure(OwnLine(*unmade), ErrorCode::kTimeout, {});
  unmade->state.store(LineState::unmade);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 8),
            "has completed no collective yet and was in new_group({1, 0}), which failed");
  EXPECT_EQ(describe_doing(board, SlotIndex(0)), "was in new_group({1, 0}), which failed");

  opened(board, *owner, 10, 3)->state.store(LineState::gone);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 8), "has completed no collective yet");
  other->state.store(LineState::closing);
  other->site.store(owner->site({"src/train.cc", 13}));
  EXPECT_EQ(describe_doing(board, SlotIndex(0)),
            "is in close of the group made by new_group at train.cc:13");
  other->times.store(2);
  EXPECT_EQ(describe_doing(board, SlotIndex(0)),
            "is in close of the group made by new_group at train.cc:13 (#2)");
  other->times.store(1);
  owner->publish_purpose(closing_key(8), "close at train.cc:90");
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 8), "is in close at train.cc:90");
  EXPECT_EQ(describe_doing(board, SlotIndex(0)),
            "is in close at train.cc:90 of the group made by new_group at train.cc:13");
  other->state.store(LineState::gave_up);
  EXPECT_EQ(describe_doing(board, SlotIndex(0), 8), "has completed no collective yet");
  EXPECT_EQ(describe_doing(board, SlotIndex(0)),
            "gave up close at train.cc:90 of the group made by new_group at train.cc:13");
}

}  // namespace
}  // namespace tutti::control
