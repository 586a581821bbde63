#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tutti {
namespace {

/// Lines that reach the callback while it lives.
class Capture {
 public:
  Capture() {
    set_log_callback([this](LogLevel level, std::string_view line) {
      lines.emplace_back(level, std::string(line));
    });
  }
  ~Capture() {
    set_log_callback({});
    set_log_level(LogLevel::warn);
  }
  std::vector<std::pair<LogLevel, std::string>> lines;
};

TEST(Log, LevelDecidesWhatIsWritten) {
  Capture capture;
  set_log_level(LogLevel::info);
  log(LogLevel::error, "a");
  log(LogLevel::info, "b");
  log(LogLevel::debug, "c");
  ASSERT_EQ(capture.lines.size(), 2u);
  EXPECT_EQ(capture.lines[0], std::pair(LogLevel::error, std::string("tutti: a")));
  EXPECT_EQ(capture.lines[1], std::pair(LogLevel::info, std::string("tutti: b")));
  EXPECT_FALSE(log_enabled(LogLevel::debug));
}

TEST(Log, EachThreadHasItsRank) {
  Capture capture;
  std::thread([] {
    set_log_rank(3);
    log(LogLevel::error, "three");
  }).join();
  std::thread([] {
    set_log_rank(5);
    log(LogLevel::error, "five");
  }).join();
  std::thread([] { log(LogLevel::error, "first"); }).join();
  ASSERT_EQ(capture.lines.size(), 3u);
  EXPECT_EQ(capture.lines[0].second, "tutti: rank 3: three");
  EXPECT_EQ(capture.lines[1].second, "tutti: rank 5: five");
  EXPECT_EQ(capture.lines[2].second, "tutti: rank 3: first");
}

TEST(Log, CallbackThatThrowsIsDropped) {
  set_log_callback([](LogLevel, std::string_view) { throw std::runtime_error("no"); });
  errno = 42;
  log(LogLevel::error, "a");
  EXPECT_EQ(errno, 42);
  set_log_callback({});
}

TEST(Log, DefaultIsOneLineOnStandardErrorAndNothingOnStandardOutput) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  std::thread([] { log(LogLevel::error, "to stderr"); }).join();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("tutti: ") && text.ends_with("to stderr\n")) << text;
}

}  // namespace
}  // namespace tutti
