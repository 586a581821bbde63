// Promises of time, on a machine that may be busy with other things.
#pragma once

#include <gtest/gtest.h>

namespace tutti {

/// One of three tries keeps the promise. `attempt(is_in_time)` asserts all but the time, and says
/// whether that was kept.
template <class Attempt>
void expect_once_in_time(Attempt&& attempt) {
  bool is_in_time = false;
  for (int tries = 0; tries < 3 && !is_in_time && !testing::Test::HasFailure(); ++tries) {
    attempt(is_in_time);
  }
  EXPECT_TRUE(is_in_time) << "not once in time";
}

}  // namespace tutti
