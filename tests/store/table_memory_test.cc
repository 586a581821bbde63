// Where there is no memory for a call.
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "refused_memory.h"
#include "store/table.h"

namespace tutti::store {
namespace {

const std::string kOld(100, 'o'), kNew(200, 'n');  // no short strings: each of them takes memory

/// One key of the call is there, two are new. Whether the table has taken it, the memory that it
/// asked for as the `until`th being refused.
bool takes(std::size_t until) {
  Table table;
  table.apply({Command::set, {"old " + kOld}, {kOld}});
  const Call call{Command::set, {"old " + kOld, "new " + kOld, "newer"}, {kNew, kNew, kNew}};
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
  std::size_t until = 1;
  while (!takes(until) && !HasFailure()) ++until;
  EXPECT_GT(until, 6u) << "none was refused";
}

}  // namespace
}  // namespace tutti::store
