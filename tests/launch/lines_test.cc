#include "launch/lines.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <string>
#include <vector>

#include "launch/output.h"
#include "launch/repeats.h"

namespace tutti::launch {
namespace {

struct Seen {
  std::vector<std::string> lines, drafts;
  LineSplitter::Emit emit() {
    return [this](std::string_view line, bool is_draft) {
      (is_draft ? drafts : lines).emplace_back(line);
    };
  }
};

using Lines = std::vector<std::string>;

TEST(LineSplitter, WholeLinesFromAnyPieces) {
  const std::string text = "one\n\ntwo\r\nthree";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    LineSplitter splitter;
    Seen seen;
    for (std::size_t at = 0; at < text.size(); at += step) {
      splitter.feed(std::string_view(text).substr(at, step), seen.emit());
    }
    EXPECT_EQ(seen.lines, (Lines{"one", "", "two"})) << step;
    splitter.finish(seen.emit());
    EXPECT_EQ(seen.lines, (Lines{"one", "", "two", "three"})) << step;
  }
}

TEST(LineSplitter, OnlyTheLastStateOfAProgressBarIsALine) {
  LineSplitter splitter;
  Seen seen;
  splitter.feed("10%\r20%\r30%\n", seen.emit());
  EXPECT_EQ(seen.drafts, (Lines{"10%", "20%"}));
  EXPECT_EQ(seen.lines, (Lines{"30%"}));
  splitter.feed("40%\r", seen.emit());
  splitter.finish(seen.emit());
  EXPECT_EQ(seen.lines, (Lines{"30%", "40%"}));
}

/// A terminal that a rank makes for itself turns \r\n into \r\r\n.
TEST(LineSplitter, AReturnWithoutTextTakesNothingAway) {
  const std::string text = "A\r\r\nold\rmac\rlines\r\rX\n\r\n\r\r\nB\r\r";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    LineSplitter splitter;
    Seen seen;
    for (std::size_t at = 0; at < text.size(); at += step) {
      splitter.feed(std::string_view(text).substr(at, step), seen.emit());
    }
    splitter.finish(seen.emit());
    EXPECT_EQ(seen.lines, (Lines{"A", "X", "", "", "B"})) << step;
    EXPECT_EQ(seen.drafts, (Lines{"A", "old", "mac", "lines", "B"})) << step;
  }
}

TEST(LineSplitter, ADraftBeforeALineThatIsCutIsNotItsEnd) {
  LineSplitter splitter;
  Seen seen;
  splitter.feed("50%\r" + std::string(kLongestLine + 1, 'z') + "\r\n", seen.emit());
  EXPECT_EQ(seen.lines, (Lines{std::string(kLongestLine, 'z'), "z"}));
}

TEST(LineSplitter, EndlessLineIsCutNotKept) {
  LineSplitter splitter;
  Seen seen;
  const std::string block(10000, 'x');
  std::size_t total = 0;
  for (int i = 0; i < 20; ++i) {
    splitter.feed(block, seen.emit());
    total += block.size();
  }
  splitter.finish(seen.emit());
  std::size_t sum = 0;
  for (const std::string& line : seen.lines) {
    EXPECT_LE(line.size(), kLongestLine);
    sum += line.size();
  }
  EXPECT_EQ(sum, total);
}

TEST(LineSplitter, LineOfExactlyTheLimitStaysWhole) {
  LineSplitter splitter;
  Seen seen;
  splitter.feed(std::string(kLongestLine, 'y') + "\n", seen.emit());
  ASSERT_EQ(seen.lines.size(), 1u);
  EXPECT_EQ(seen.lines[0].size(), kLongestLine);
}

TEST(Tail, KeepsTheLastLines) {
  Tail tail(2);
  for (const char* line : {"a", "b", "c"}) tail.add(line);
  EXPECT_EQ(tail.lines(), (Lines{"b", "c"}));
}

TEST(Tail, KeepsWhatAProgramDiedOfBeforeItsBacktrace) {
  Tail tail(3);
  for (const char* line :
       {"epoch 1", "terminate called after throwing an instance of 'c10::Error'",
        "  what():  mat1 and mat2 shapes cannot be multiplied (8x784 and 10x10)",
        "Exception raised from meta at ../aten/src/ATen/native/LinearAlgebra.cpp",
        "frame #0: c10::Error::Error", "frame #1: c10::detail::torchCheckFail", "frame #2: main"}) {
    tail.add(line);
  }
  EXPECT_EQ(tail.lines(),
            (Lines{"terminate called after throwing an instance of 'c10::Error'",
                   "  what():  mat1 and mat2 shapes cannot be multiplied (8x784 and 10x10)",
                   "frame #0: c10::Error::Error", "frame #1: c10::detail::torchCheckFail",
                   "frame #2: main"}));
}

TEST(Tail, IsWholeUnlessTheScreenStillShowsAll) {
  Tail tail(3);
  tail.add("elsewhere");
  tail.add("traceback", 7);
  tail.add("the reason", 8);
  EXPECT_EQ(tail.lines(7), (Lines{"elsewhere", "traceback", "the reason"}));
  tail.add("and its hint", 9);
  EXPECT_EQ(tail.lines(8), (Lines{"traceback", "the reason", "and its hint"}));
  EXPECT_EQ(tail.lines(7), Lines{});
}

TEST(Repeats, FoldsOneCauseOfAllRanksAndSaysSo) {
  const auto begin = Repeats::Clock::now();
  const std::string cause = "rank 1 (pid 7 on vm, exit code 5) was lost: in barrier #4 at a.cc:9";
  Repeats repeats;
  EXPECT_FALSE(repeats.is_repeat(0, "tutti: rank 0: group world (rank 0): " + cause, begin));
  EXPECT_TRUE(repeats.is_repeat(2, "tutti: rank 2: group world (rank 2): " + cause, begin));
  EXPECT_TRUE(repeats.is_repeat(
      2, "tutti: rank 2: uncaught tutti::Error kPeerLost: barrier #4 (rank 2) at a.cc:7: " + cause,
      begin));
  EXPECT_FALSE(repeats.is_repeat(2, "tutti: rank 2: group world (rank 2): another", begin));
  EXPECT_FALSE(repeats.is_repeat(2, "step 3: loss 0.1", begin));
  EXPECT_FALSE(repeats.is_repeat(0, "step 3: loss 0.1", begin)) << "the program's own lines";
  EXPECT_EQ(repeats.next_close(), begin + Repeats::kWindow);
  EXPECT_EQ(repeats.close(begin), Lines{});
  EXPECT_EQ(repeats.close(begin + Repeats::kWindow),
            (Lines{"tutti: the same from rank 2 (2 lines), uncaught on rank 2: rank 1 (pid 7 on "
                   "vm, exit code 5) was lost: in barrier #4 at..."}));
  EXPECT_EQ(repeats.next_close(), Repeats::Clock::time_point::max());
}

TEST(ControlCharacters, AreMadeVisible) {
  EXPECT_EQ(without_control_characters("a\x1b[31mb\tc"), "a\\x1b[31mb\tc");
}

TEST(Excerpt, IsCutBetweenLetters) {
  EXPECT_EQ(excerpt("a\x1b", 2), "a\\x1b");
  EXPECT_EQ(excerpt("abc", 2), "ab...");
  EXPECT_EQ(excerpt("a\xc3\xa4", 2), "a...");
}

TEST(FirstColumns, EscapesAndContinuationBytesTakeNone) {
  EXPECT_EQ(first_columns("abcdef", 3), "abc");
  EXPECT_EQ(first_columns("abc", 3), "abc");
  EXPECT_EQ(first_columns("\x1b[31mab\x1b[0mcd", 2), "\x1b[31mab\x1b[0m");
  EXPECT_EQ(first_columns("\xc3\xa4\xc3\xb6x", 2), "\xc3\xa4\xc3\xb6");
}

/// What Output writes into two pipes.
class OutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe2(out_, O_CLOEXEC | O_NONBLOCK), 0);
    ASSERT_EQ(::pipe2(err_, O_CLOEXEC | O_NONBLOCK), 0);
  }
  void TearDown() override {
    for (const int fd : {out_[0], out_[1], err_[0], err_[1]}) {
      if (fd >= 0) ::close(fd);
    }
  }
  static std::string drain(int fd) {
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = ::read(fd, buffer, sizeof buffer)) > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }
  std::string written(Output& output, int fd) {
    std::string text;
    while (!output.is_written()) {
      output.write_some(Stream::out);
      output.write_some(Stream::err);
      text += drain(fd);
    }
    return text;
  }
  int out_[2] = {-1, -1};
  int err_[2] = {-1, -1};
};

TEST_F(OutputTest, PrefixesWholeLinesAndKeepsTheOrderOfARank) {
  Output output(2, out_[1], err_[1]);
  output.feed(0, Stream::out, "zero one\nzero ");
  output.feed(1, Stream::out, "one one\n");
  output.feed(0, Stream::out, "two\n");
  EXPECT_EQ(written(output, out_[0]), "[0] zero one\n[1] one one\n[0] zero two\n");
}

TEST_F(OutputTest, StdoutAndStderrStayApart) {
  Output output(2, out_[1], err_[1]);
  output.feed(0, Stream::out, "to out\n");
  output.feed(0, Stream::err, "to err\n");
  EXPECT_EQ(written(output, out_[0]), "[0] to out\n");
  EXPECT_EQ(drain(err_[0]), "[0] to err\n");
}

TEST_F(OutputTest, FlushesThePartialLineAtTheEnd) {
  Output output(2, out_[1], err_[1]);
  output.feed(1, Stream::out, "no newline");
  EXPECT_TRUE(output.is_written());
  output.finish(1, Stream::out);
  EXPECT_EQ(written(output, out_[0]), "[1] no newline\n");
}

TEST_F(OutputTest, NoControlCharactersForDraftsWithoutATerminal) {
  Output output(2, out_[1], err_[1]);
  output.feed(0, Stream::out, "1%\r2%\r3%\r\n");
  EXPECT_EQ(written(output, out_[0]), "[0] 3%\n");
}

TEST_F(OutputTest, LinesOfBothStreamsGoAboveTheDraftOfOneTerminal) {
  int screen = -1, keyboard = -1;
  ASSERT_EQ(::openpty(&keyboard, &screen, nullptr, nullptr, nullptr), 0);
  termios raw = {};
  ::cfmakeraw(&raw);
  ::tcsetattr(screen, TCSANOW, &raw);
  ::fcntl(keyboard, F_SETFL, O_NONBLOCK);
  Output output(2, screen, screen);
  output.feed(0, Stream::err, "\r50%");
  output.feed(0, Stream::err, "\r60%\r");
  EXPECT_EQ(written(output, keyboard), "\r\x1b[K[0] 50%\r\x1b[K[0] 60%");
  output.feed(0, Stream::out, "table\n");
  EXPECT_EQ(written(output, keyboard), "\r\x1b[K[0] table\n[0] 60%");
  output.say("a line of the launcher");
  EXPECT_EQ(written(output, keyboard), "\r\x1b[Ka line of the launcher\n[0] 60%");
  output.feed(0, Stream::err, "70%\n");
  EXPECT_EQ(written(output, keyboard), "\r\x1b[K[0] 70%\n");
  output.feed(1, Stream::out, "done\n");
  EXPECT_EQ(written(output, keyboard), "[1] done\n");
  ::close(screen);
  ::close(keyboard);
}

TEST_F(OutputTest, OneRankPassesAsItIs) {
  Output output(1, out_[1], err_[1]);
  output.feed(0, Stream::out, "1%\r2%");
  EXPECT_EQ(written(output, out_[0]), "1%\r2%");
  output.finish(0, Stream::out);
  EXPECT_EQ(written(output, out_[0]), "");
  EXPECT_EQ(output.last_lines(0), (Lines{"2%"}));
}

TEST_F(OutputTest, ReaderThatWentAwayClosesOnlyItsStream) {
  // SIGPIPE is blocked in the launcher; here it is ignored for the length of the test.
  auto* const former = ::signal(SIGPIPE, SIG_IGN);
  Output output(2, out_[1], err_[1]);
  ::close(out_[0]);
  out_[0] = -1;
  output.feed(0, Stream::out, "lost\n");
  output.feed(0, Stream::err, "kept\n");
  EXPECT_EQ(written(output, err_[0]), "[0] kept\n");
  EXPECT_TRUE(output.is_closed(Stream::out));
  EXPECT_FALSE(output.is_closed(Stream::err));
  ::signal(SIGPIPE, former);
}

/// Blocking pipes, as a shell makes them, shared with somebody else who writes there.
TEST_F(OutputTest, AFullPipeBlocksNobodyAndIsGivenUp) {
  for (const int fd : {out_[1], err_[1]}) ::fcntl(fd, F_SETFL, 0);
  Output output(2, out_[1], err_[1]);
  ::fcntl(out_[1], F_SETFL, O_NONBLOCK);
  std::string other(4096, 'x');
  while (::write(out_[1], other.data(), other.size()) > 0) {
  }
  ::fcntl(out_[1], F_SETFL, 0);
  output.feed(0, Stream::out, "stuck\n");
  output.feed(0, Stream::err, "not behind it\n");
  output.write_some(Stream::out);  // would block for ever
  EXPECT_EQ(output.awaited(Stream::out), out_[1]);
  output.write_some(Stream::err);
  EXPECT_EQ(drain(err_[0]), "[0] not behind it\n") << "stderr does not wait for stdout's reader";
  EXPECT_EQ(::fcntl(out_[1], F_GETFL) & O_NONBLOCK, 0) << "others who share it see no change";
  output.drop_awaited(Stream::out);
  output.feed(0, Stream::out, "later\n");
  EXPECT_EQ(written(output, err_[0]),
            "tutti: nobody reads stdout: 10 bytes of what was printed are dropped\n");
}

TEST_F(OutputTest, FullDiskIsSaidOnceAndEndsNobody) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  Output output(2, full, err_[1]);
  for (int line = 0; line < 3; ++line) {
    output.feed(0, Stream::out, "lost\n");
    output.feed(0, Stream::err, "kept\n");
  }
  EXPECT_EQ(written(output, err_[0]),
            "[0] kept\n[0] kept\n[0] kept\n"
            "tutti: cannot write to stdout: No space left on device; its output is lost\n");
  EXPECT_FALSE(output.is_closed(Stream::out));
  ::close(full);
}

TEST_F(OutputTest, RandomPiecesOfManyRanksGiveWholeLines) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr int kRanks = 4, kLinesEach = 200;
  std::vector<std::string> pending(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int line = 0; line < kLinesEach; ++line) {
      pending[static_cast<std::size_t>(rank)] +=
          "line " + std::to_string(line) + std::string(random() % 50, '.') + "|\n";
    }
  }
  Output output(kRanks, out_[1], err_[1]);
  std::string text;
  for (bool busy = true; busy;) {
    busy = false;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::string& rest = pending[static_cast<std::size_t>(rank)];
      const std::string piece = rest.substr(0, random() % 40);
      rest.erase(0, piece.size());
      output.feed(rank, Stream::out, piece);
      busy = busy || !rest.empty();
    }
    text += written(output, out_[0]);
  }
  std::vector<int> next(kRanks, 0);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ASSERT_EQ(line.back(), '|') << line;
    const int rank = line[1] - '0';
    const std::string wanted = "[" + std::to_string(rank) + "] line " +
                               std::to_string(next[static_cast<std::size_t>(rank)]++);
    EXPECT_TRUE(line.starts_with(wanted)) << line;
  }
  EXPECT_EQ(next, std::vector<int>(kRanks, kLinesEach));
}

}  // namespace
}  // namespace tutti::launch
