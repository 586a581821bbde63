// What a process lacks for connections: who waits is told once that has lasted.
#include "control/hosts/shortage.h"

#include <gtest/gtest.h>

#include <string>

#include "tutti/log.h"

namespace tutti::control {
namespace {

using namespace std::chrono_literals;

const Error kNoFiles(ErrorCode::kSystem, "no more files");
constexpr Clock::time_point kStart{1000s};

TEST(Shortage, IsToldOnceItHasLasted) {
  Shortage shortage;
  EXPECT_FALSE(shortage.lasting(kStart));
  shortage.note(kNoFiles, kStart);
  EXPECT_FALSE(shortage.lasting(kStart));
  EXPECT_FALSE(shortage.lasting(kStart + 10s)) << "it was not tried again";
  shortage.note(kNoFiles, kStart + 999ms);
  EXPECT_FALSE(shortage.lasting(kStart + 999ms));
  shortage.note(kNoFiles, kStart + 1s);
  ASSERT_TRUE(shortage.lasting(kStart + 1s));
  EXPECT_STREQ(shortage.lasting(kStart + 1s)->what(), "no more files");
  EXPECT_FALSE(shortage.lasting(kStart + 2s)) << "nothing has failed any more since";
  shortage.is_over();
  shortage.note(kNoFiles, kStart + 2s);
  EXPECT_FALSE(shortage.lasting(kStart + 2s)) << "another one, which may be short";
}

TEST(Shortage, FillsNoLog) {
  static int lines = 0;
  set_log_callback([](LogLevel, std::string_view) { ++lines; });
  Shortage shortage;
  for (auto at = 0ms; at < 100s; at += 50ms) shortage.note(kNoFiles, kStart + at);
  set_log_callback({});
  EXPECT_GE(lines, 3);
  EXPECT_LE(lines, 8);
}

}  // namespace
}  // namespace tutti::control
