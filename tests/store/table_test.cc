// The contents of a store at its limits.
#include "store/table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ranks.h"

namespace tutti::store {
namespace {

/// So many keys, all in calls of the most that one takes.
Table with_keys(std::size_t count) {
  Table table;
  for (std::size_t made = 0; made < count;) {
    Call call{Command::set};
    for (; made < count && call.keys.size() < kMaxCallKeys; ++made) {
      call.keys.push_back("k" + std::to_string(made));
      call.values.emplace_back();
    }
    table.apply(call);
  }
  return table;
}

std::string value_in(Table& table, const std::string& key) {
  const Answer answer = *table.apply({Command::try_get, {key}});
  return answer.values.empty() ? "(none)" : answer.values[0];
}

std::int64_t key_count(Table& table) { return table.apply({Command::num_keys})->number; }

TEST(Table, TakesAllKeysOfACallOrNone) {
  Table table = with_keys(kMaxTableKeys - 1);
  const Error error = thrown_by([&] {
    table.apply({Command::set, {"k5", "new", "newer"}, {"v", "", ""}});
  });
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "the store is full");
  EXPECT_EQ(value_in(table, "k5"), "");
  EXPECT_EQ(value_in(table, "new"), "(none)");
  table.apply({Command::set, {"k5", "new", "new"}, {"v", "1", "2"}});  // one new key
  EXPECT_EQ(value_in(table, "new"), "2");
  EXPECT_EQ(key_count(table), static_cast<std::int64_t>(kMaxTableKeys));
  for (const Command command : {Command::add, Command::append, Command::compare_set}) {
    const std::size_t values = command == Command::add ? 0 : command == Command::append ? 1 : 2;
    const Call call{command, {"another"}, std::vector<std::string>(values)};
    EXPECT_EQ(thrown_by([&] { table.apply(call); }).code(), ErrorCode::kSystem);
  }
  EXPECT_EQ(value_in(table, "another"), "(none)");
}

TEST(Table, CountsTheBytesThatAreLeftAtLast) {
  Table table;
  const std::string most(kMaxValueBytes, 'v');
  for (std::size_t i = 0; i < kMaxTableBytes / kMaxValueBytes - 1; ++i) {
    table.apply({Command::set, {"big" + std::to_string(i)}, {most}});
  }
  const std::string half(kMaxValueBytes / 2, 'h');
  // What grows before another shrinks, and what is there twice.
  table.apply({Command::set, {"a"}, {half}});
  table.apply({Command::set, {"b", "a"}, {most.substr(1000), ""}});
  table.apply({Command::set, {"b", "b", "a"}, {most, "", half}});
  EXPECT_EQ(value_in(table, "b"), "");
  EXPECT_EQ(thrown_by([&] {
              table.apply({Command::set, {"b", "a"}, {most, "new"}});
            }).code(),
            ErrorCode::kSystem);
  EXPECT_TRUE(value_in(table, "a") == half);
  EXPECT_EQ(value_in(table, "b"), "");
}

}  // namespace
}  // namespace tutti::store
