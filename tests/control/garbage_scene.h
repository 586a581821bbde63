// A board with something of everything on it, and whoever reads it: for tests of what others have
// written there.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "control/board/describe.h"
#include "control/board/log.h"
#include "control/board/notice.h"
#include "control/board/own_line.h"
#include "control/board/owner.h"
#include "control/board/waits.h"
#include "control/garbage.h"
#include "control/group_members.h"
#include "control/hosts/vote_place.h"
#include "control/judge/agree.h"
#include "control/judge/deadlock.h"
#include "control/judge/look.h"
#include "control/judge/meeting.h"
#include "control/judge/standing.h"
#include "control/untold.h"
#include "tutti/error.h"

namespace tutti::control {

/// In which both ranks are; one more that each makes; and one on a further line.
inline constexpr GroupId kOpen = 7, kMaking = 9, kFurther = 100;

inline Verdict verdict_of(GroupId group) {
  return {
      .code = ErrorCode::kTimeout, .groups = {group}, .culprits = {WorldRank(0)}, .text = "late"};
}

/// Two ranks that wait for each other, with a vote, entries of the log and further lines.
struct Scene {
  Scene() {
    board.slot(SlotIndex(0)).state.store(RankState::running);
    board.slot(SlotIndex(1)).state.store(RankState::running);
    fill(own, WorldRank(1));
    fill(theirs, WorldRank(0));
    BoardLog log(board, theirs);
    const Verdict chosen = verdict_of(8);
    EXPECT_TRUE(log.propose(1, verdict_of(7)));
    EXPECT_TRUE(log.enter_chosen(2, &chosen));
    VotePlace place(board, theirs, 2);
    HostVote vote = place.take_over(1).value();
    vote.vote.number = 1;
    vote.entries.push_back({verdict_of(7), {}});
    EXPECT_TRUE(place.write(vote));
    theirs.show_wish(verdict_of(9));
    theirs.publish_lost({WorldRank(0)});
    theirs.publish_held_up({WorldRank(0)});
  }

  /// Where others write.
  std::vector<Stretch> stretches() const {
    std::vector<Stretch> all = {words_of(board.header())};
    for (const SlotIndex slot : board.slots()) {
      all.push_back(words_of(board.slot(slot)));
      all.push_back(further_lines(board, slot));
      all.push_back(stretch(&board.relay_area(slot), &board.relay_area(slot) + 1));
    }
    return all;
  }

  static void fill(SlotOwner& owner, WorldRank other) {
    OwnLine line = *owner.open_line(kOpen, 3, {});
    line.set_state(LineState::open);
    Shown value;
    value.seq = 1;
    value.chain = 3;
    value.count = 5;
    value.op = static_cast<std::uint8_t>(Op::all_reduce);
    value.dtype = static_cast<std::uint8_t>(DType::f32);
    value.site = owner.site({"train.cc", 8});
    line.enter(value);
    line.enter_message(value);
    line.waits({1, 1, other}, Clock::now() - std::chrono::seconds(2));
    owner.open_line(kMaking, 3, {});
    owner.publish_purpose(value.chain, "a purpose");
    EXPECT_TRUE(owner.add_lines());
    for (GroupId group = 20; owner.open_line(group, kOpen, {WorldRank(0), WorldRank(1)}); ++group) {
      if (group == 20 + kLinesPerSlot) owner.open_line(kFurther, kOpen, {});
    }
    owner.show_wait(Clock::now() - std::chrono::seconds(2),
                    {{.group = kOpen, .what = value, .awaited = {other}},
                     {.group = kMaking, .makes_group = true, .awaited = {other}}});
    owner.add_look();
  }

  net::Fd memory = Board::make(2);
  Board board{memory};
  SlotOwner own{board, SlotIndex(0), memory.duplicate()};
  SlotOwner theirs{board, SlotIndex(1), memory.duplicate()};
};

inline void judge(const GroupFacts& facts) {
  find_disagreement(facts);
  compare_goodbyes(facts);
  find_failure(facts);
  comes_too_late(facts, ErrorCode::kClosed);
  is_line_needed(facts, {});
  lost_to(facts, {0, 1});
  for (const int member : possible_senders(facts)) ASSERT_LT(member, 2);
  for (const int member : awaited_in(facts, 1, false).members) ASSERT_LT(member, 2);
  const Clock::time_point now = Clock::now();
  for (const Op op : {Op::all_reduce, Op::recv}) {
    Request request;
    request.op = op;
    request.seq = op == Op::recv ? 0 : 1;
    request.arrive = request.stall = Deadline::after(std::chrono::nanoseconds(0));
    request.message.peer = 1;
    WaitClock clock;
    ArriveClock arrive;
    clock.begin(request, now - std::chrono::seconds(1), std::chrono::seconds(0));
    look(request, -1, facts, clock, arrive, now);
    look(request, 1, facts, clock, arrive, now);
  }
  MeetingClock clock{.deadline = Deadline::after(std::chrono::nanoseconds(0))};
  const MeetingQuestion question = {
      .group = kOpen, .asked_of = 3, .world_ranks = world_ranks({0, 1})};
  look_at_meeting(question, facts, clock, now);
  look_at_meeting(question, facts, clock, now + std::chrono::seconds(1));
}

/// What `rank` reads of a group.
inline void read_group(const Board& board, const Roster& roster, GroupId group, int rank) {
  const GroupMembers members(board, roster, nullptr, group, world_ranks({0, 1}), rank);
  const GroupFacts facts = members.read_meetings();
  ASSERT_EQ(facts.size(), 2);
  for (int member = 0; member < 2; ++member) {
    members.state_of(member);
    members.here().is_on_core(0, member);
    if (!facts.line_of(member) || !facts.line_of(member)->failure) continue;
    for (const int culprit : facts.line_of(member)->failure->culprits) ASSERT_LT(culprit, 2);
    name_of(facts.line_of(member)->failure->code);
  }
  judge(facts);
  members.shows_failure();
}

inline void read_slot(const Board& board, SlotIndex slot) {
  for (const GroupId group : {kOpen, GroupId{8}, kFurther}) {
    describe_doing(board, slot, group);
    describe_making(board, slot, group);
    is_world(board, slot, group);
  }
  describe_doing(board, slot);
  has_left(board, slot);
  blamed_by(board, slot);
  disagreement_of(board, slot);
  read_untold(board, slot);
  if (const auto exit = board.exit_of(slot)) describe_wait_status(*exit);
  board.pid_of(slot);
  rouse_control(board, slot);
  for (const RankWords* set : {&board.slot(slot).lost, &board.slot(slot).held_up})
    for (const WorldRank rank : read_set(*set, board.world_size())) ASSERT_LT(rank, WorldRank(2));
  const auto wish = read_wish(board, slot);
  if (wish) {
    ASSERT_LE(wish->groups.size(), kVerdictGroups);
  }
}

inline void read_waits_of_all(const Board& board) {
  std::vector<WaitFacts> waits;
  for (const SlotIndex slot : board.slots()) {
    for (const WaitPart& part : waits.emplace_back(read_wait(board, slot)).parts) {
      for (const WorldRank awaited : part.awaited) ASSERT_LT(awaited, WorldRank(2));
      ASSERT_FALSE(describe_wait(board, slot, part).empty());
    }
  }
  for (const WorldRank rank : world_ranks({0, 1})) {
    DeadlockClock clock;
    look_for_deadlock(rank, waits, clock, Clock::now(), std::chrono::seconds(1));
    look_for_deadlock(rank, waits, clock, Clock::now(), std::chrono::seconds(1));
    still_stands(clock, waits);
  }
}

/// As a rank that has read nothing yet.
inline void read_log(const Board& board, SlotOwner& own) {
  BoardLog log(board, own);
  Verdict verdict;
  for (const std::uint64_t number : {1, 2, 3, 255, 256, 300}) {
    if (log.read(number, &verdict) != BoardLog::State::entered) continue;
    for (const WorldRank culprit : verdict.culprits) ASSERT_LT(culprit, WorldRank(2));
    ASSERT_LE(verdict.groups.size(), kVerdictGroups);
  }
  std::size_t steps = 0;
  for (std::uint64_t number = 1;;) {
    const BoardLog::State state = log.read(number, &verdict);
    if (state == BoardLog::State::open) break;
    number = state == BoardLog::State::missed ? log.after_missed(number) : number + 1;
    ASSERT_LE(++steps, 4 * kLogEntries) << "it would read for very long";
  }
}

/// Whatever anybody reads on the board, for a group that both are in and one that nobody is in.
inline void read_everything(const Board& board, SlotOwner& own) {
  const Roster roster = Roster::of_one_host(2, "here");
  for (const GroupId group : {kOpen, GroupId{8}, kFurther})
    for (const int rank : {0, 1}) read_group(board, roster, group, rank);
  for (const SlotIndex slot : board.slots()) read_slot(board, slot);
  cores_of_all(board);
  read_waits_of_all(board);
  read_log(board, own);
  VoteBytes::relay_on(board);
}

}  // namespace tutti::control
