#include "ddp/attendance.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tutti/test_kit.h"

namespace tutti::ddp {
namespace {

void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("check failed: " + what);
}

TEST(Attendance, RanksLeaveOneByOneAndAllKnow) {
  const auto body = [](ProcessGroup& world) {
    Attendance attendance(3);
    check(!attendance.has_shadows() && attendance.lowest() == 0, "at first all are in");
    const int own_turns = std::vector<int>{1, 3, 2}[static_cast<std::size_t>(world.rank())];
    const std::vector<int> in = {3, 2, 1}, lowest = {0, 1, 1};
    for (int turn = 0; turn < 3; ++turn) {
      const bool is_in = turn < own_turns;
      const Word own = {is_in ? Turn::backward : Turn::left, world.rank() == 1 && turn == 2,
                        is_in ? 5 + static_cast<std::uint64_t>(turn == 1) : 0};
      const Word others = attendance.take(own, 5, world, Where::current());
      const auto at = static_cast<std::size_t>(turn);
      check(attendance.count() == in[at] && attendance.lowest() == lowest[at], "who is in");
      check(attendance.has_shadows() == (turn > 0), "who has left");
      check(others.turn == Turn::backward && others.gave_up == (turn == 2), "what they do");
      check(others.digest == (turn == 1 ? 6u : 5u), "their digest");
      check(attendance.is_changed() == (turn == 1), "a change");
      check(!attendance.is_over(), "not over");
    }
    attendance.take({}, 5, world, Where::current());
    check(attendance.is_over(), "over");
    check(attendance.lowest() == 1 && attendance.count() == 1, "who left last");
  };
  EXPECT_NO_THROW(test_kit::run_ranks(3, body));
  EXPECT_NO_THROW(test_kit::run_ranks(3, body, {.hosts = {0, 1, 1}}));
}

TEST(Attendance, WhereAllLeaveAfterTheSameTurnNobodyHasShadowed) {
  EXPECT_NO_THROW(test_kit::run_ranks(2, [](ProcessGroup& world) {
    Attendance attendance(2);
    attendance.take({Turn::forward, false, 1}, 1, world, Where::current());
    attendance.take({}, 1, world, Where::current());
    check(attendance.is_over() && !attendance.has_shadows(), "nobody has missed any");
  }));
}

}  // namespace
}  // namespace tutti::ddp
