// run_ranks for GoogleTest: an EXPECT that fails in a forked rank fails the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "forks.h"
#include "tutti/test_kit.h"

namespace tutti {

/// Ranks as threads, and as processes where they can be.
inline std::vector<test_kit::As> every_kind() {
  if (kNoForks) return {test_kit::As::threads};
  return {test_kit::As::threads, test_kit::As::processes};
}

/// Runs `function` on every rank of a new world and closes it; every failure of a rank is one of
/// the test.
inline void on_ranks(int world_size, const std::function<void(ProcessGroup&)>& function,
                     const test_kit::RunOptions& options = {}) {
  const auto checked = [&](ProcessGroup& world) {
    function(world);
    if (options.as == test_kit::As::processes && testing::Test::HasFailure()) {
      throw std::runtime_error("an expectation failed (see above)");
    }
  };
  try {
    test_kit::run_ranks(world_size, checked, options);
  } catch (const std::exception& failed) {
    ADD_FAILURE() << failed.what();
  }
}

/// The Error that `call` throws; a failure of the test if it throws none.
template <class Call>
Error thrown_by(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no tutti::Error was thrown";
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

/// What `call(time)` throws, with more time until it says `part`: a slow machine may need it.
template <class Call>
Error told_in_time(const std::string& part, Call&& call) {
  for (std::chrono::milliseconds time(100);; time *= 2) {
    const Error error = thrown_by([&] { call(time); });
    const bool says_it = std::string(error.what()).find(part) != std::string::npos;
    if (says_it || time > std::chrono::seconds(10)) return error;
  }
}

inline void expect_text(const Error& error, const std::string& part) {
  EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
      << "expected '" << part << "' in: " << error.what();
}

}  // namespace tutti
