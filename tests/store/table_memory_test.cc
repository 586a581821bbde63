// Where there is no memory for a call.
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "refused_memory.h"
#include "store/table.h"

namespace tutti::store {
namespace {

const std::string kOld(100, 'o'), kNew(200, 'n');  // no short strings: each of them takes memory

/// Two keys of the call are there, two are new, and `others` are there, too. Whether the table has
/// taken it, the memory that it asked for as the `until`th being refused.
bool takes(std::size_t until, int others) {
  Table table;
  const Call before{Command::set, {"old " + kOld, "older " + kOld}, {kOld, kOld}};
  table.apply(before);
  for (int i = 0; i < others; ++i) table.apply({Command::set, {std::to_string(i)}, {kOld}});
  const Call call{Command::set,
                  {before.keys[0], before.keys[1], "new " + kOld, "newer"},
                  {kNew, kNew, kNew, kNew}};
  bool has_taken = true;
  refuse_own_memory(until);
  try {
    table.apply(call);
  } catch (const std::bad_alloc&) {
    has_taken = false;
  }
  refuse_own_memory(0);
  EXPECT_EQ(table.missing(call.keys).size(), has_taken ? 0u : 2u);
  EXPECT_EQ(table.apply({Command::get, {call.keys[0]}})->values[0], has_taken ? kNew : kOld);
  for (const std::string& key : call.keys) table.apply({Command::erase, {key}});
  table.apply(call);  // it has counted right: there is room
  return has_taken;
}

TEST(TableMemory, ACallThatIsRefusedMemoryChangesNothing) {
  for (int others = 0; others < 64; ++others) {  // more room is made by and by
    std::size_t until = 1;
    while (!takes(until, others) && !HasFailure()) ++until;
    EXPECT_GT(until, 6u) << "none was refused";
  }
}

/// Whether the table has set a new value, the memory being refused as above.
bool sets(std::size_t until) {
  Table table;
  table.apply({Command::set, {kOld}, {kOld}});
  bool has_set = true;
  refuse_own_memory(until);
  try {
    table.apply({Command::compare_set, {kOld}, {kOld, kNew}});
  } catch (const std::bad_alloc&) {
    has_set = false;
  }
  refuse_own_memory(0);
  EXPECT_EQ(table.apply({Command::get, {kOld}})->values[0], has_set ? kNew : kOld);
  return has_set;
}

TEST(TableMemory, ACompareSetWithoutMemoryForItsAnswerSetsNothing) {
  std::size_t until = 1;
  while (!sets(until) && !HasFailure()) ++until;
  EXPECT_GT(until, 6u) << "none was refused";
}

}  // namespace
}  // namespace tutti::store
