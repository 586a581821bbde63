// run_ranks for GoogleTest: an EXPECT that fails in a forked rank fails the test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/test_kit.h"

namespace tutti {

/// TSan does not follow ranks that are forked from a process in which it runs threads of its own;
/// ASan keeps memory that was freed.
#if defined(__has_feature)
inline constexpr bool kNoForks = __has_feature(thread_sanitizer);
inline constexpr bool kKeepsFreed = __has_feature(address_sanitizer);
#else
inline constexpr bool kNoForks = false, kKeepsFreed = false;
#endif

/// Ranks as threads, and as processes where they can be.
inline std::vector<test_kit::As> every_kind() {
  if (kNoForks) return {test_kit::As::threads};
  return {test_kit::As::threads, test_kit::As::processes};
}

/// Of this process; ranks can be forked while it has none but the one.
inline bool has_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks)) > 1;
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

inline void expect_text(const Error& error, const std::string& part) {
  EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
      << "expected '" << part << "' in: " << error.what();
}

}  // namespace tutti
