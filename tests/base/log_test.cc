#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rank_thread.h"

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

TEST(Log, AProcessWithRankThreadsIsNoRank) {
  Capture capture;
  std::thread([] {
    const RankThread self{.rank = 4, .world_size = 8, .agent = {}, .recall = {}};
    const RankThreadScope scope(self);
    set_log_rank(4);
    log(LogLevel::error, "four");
  }).join();
  std::thread([] { log(LogLevel::error, "nobody's"); }).join();
  ASSERT_EQ(capture.lines.size(), 2u);
  EXPECT_EQ(capture.lines[0].second, "tutti: rank 4: four");
  EXPECT_EQ(capture.lines[1].second, "tutti: nobody's");
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

/// stderr is a pipe whose reader has stopped reading.
class FullPipe {
 public:
  FullPipe() {
    if (::pipe(ends_) != 0) std::abort();
    saved_ = ::dup(STDERR_FILENO);
    ::dup2(ends_[1], STDERR_FILENO);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    ::fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    while (::write(ends_[1], "x", 1) == 1) {
    }
    ::fcntl(ends_[1], F_SETFL, 0);
  }
  ~FullPipe() {
    ::dup2(saved_, STDERR_FILENO);
    for (const int fd : {saved_, ends_[0], ends_[1]}) ::close(fd);
  }
  /// All there is to read, without what filled it.
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(ends_[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    text.erase(0, text.find_first_not_of('x'));
    return text;
  }

 private:
  int ends_[2] = {};
  int saved_ = -1;
};

TEST(Log, AFullPipeIsNoReasonToWaitAndNothingIsLostThatHasRoomLater) {
  std::string text;
  {
    const FullPipe pipe;
    add_log_flusher(1);
    log(LogLevel::error, "first");
    log(LogLevel::error, "second");
    EXPECT_FALSE(flush_log());
    EXPECT_EQ(pipe.read_all(), "");
    EXPECT_TRUE(flush_log());
    text = pipe.read_all();
    add_log_flusher(-1);
  }
  EXPECT_NE(text.find("first\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("second\n")) << text;
}

TEST(Log, WhatTheQueueHasNoRoomForIsCounted) {
  std::string text;
  {
    const FullPipe pipe;
    add_log_flusher(1);
    for (int i = 0; i < 70; ++i) log(LogLevel::error, std::string(1000, 'l'));
    pipe.read_all();
    log(LogLevel::error, "and on");
    for (bool done = false; !done; text += pipe.read_all()) done = flush_log();
    add_log_flusher(-1);
  }
  EXPECT_NE(text.find(" lines were lost: nobody read stderr\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("and on\n"));
}

}  // namespace
}  // namespace tutti
