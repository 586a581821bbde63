// What the ranks print, in files.
#include "launch/log_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "launch/refusal.h"
#include "net/fd.h"

namespace tutti::launch {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LogFilesTest : public testing::Test {
 protected:
  ~LogFilesTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + fmt::format("tutti_logs_{}", ::getpid());
};

TEST(Streams, AreTorchruns) {
  EXPECT_EQ(parse_streams("-r", "3", 2), (std::vector<StreamSet>{3, 3}));
  EXPECT_EQ(parse_streams("-r", "0:1,2:2", 3), (std::vector<StreamSet>{1, 0, 2}));
  for (const char* const text : {"", "4", "-1", "0:4", "x:1", "0:", "0:1,", "1,2"}) {
    EXPECT_NE(refusal_of([&] { parse_streams("-r", text, 4); }).find("cannot read"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(refusal_of([] { parse_streams("-r", "4:1", 4); }),
            "-r 4:1: there is no rank 4: the job has ranks 0 to 3");
}

TEST(Ranks, AreNamedByNumbersAndRanges) {
  EXPECT_EQ(parse_ranks("--filter", "0,2-3", 4), (std::vector<bool>{true, false, true, true}));
  for (const char* const text : {"", "a", "2-1", "-1", "1-"}) {
    EXPECT_NE(refusal_of([&] { parse_ranks("--filter", text, 4); }).find("cannot read"),
              std::string::npos)
        << text;
  }
  EXPECT_NE(refusal_of([] { parse_ranks("--filter", "2-4", 4); }).find("there is no rank 4"),
            std::string::npos);
}

TEST_F(LogFilesTest, KeepTheStreamsThatAreAskedFor) {
  LogFiles files({folder_, LogPlan::Names::torchrun, {1, 2}}, 3);
  EXPECT_EQ(files.write(0, Stream::out, "a"), "");
  EXPECT_EQ(files.write(0, Stream::out, "b\n"), "");
  EXPECT_EQ(files.write(0, Stream::err, "not asked for"), "");
  EXPECT_EQ(files.write(1, Stream::err, std::string("x\0y", 3)), "");
  EXPECT_EQ(content_of(folder_ + "/attempt_3/0/stdout.log"), "ab\n");
  EXPECT_EQ(content_of(folder_ + "/attempt_3/1/stderr.log"), std::string("x\0y", 3));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/attempt_3/0/stderr.log"));
}

TEST_F(LogFilesTest, AreNamedAsByMpirunToo) {
  LogFiles files({folder_, LogPlan::Names::mpirun, std::vector<StreamSet>(11, 3)}, 0);
  files.write(3, Stream::out, "a");
  EXPECT_EQ(content_of(folder_ + "/1/rank.03/stdout"), "a");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/1/rank.10/stderr"));
}

TEST_F(LogFilesTest, ADiskThatTakesNoMoreIsSaidOnce) {
  LogFiles files({folder_, LogPlan::Names::mpirun, {3}}, 0);
  EXPECT_EQ(files.write(0, Stream::out, "ab"), "");
  auto* const former = ::signal(SIGXFSZ, SIG_IGN);  // the launcher blocks it
  rlimit limit = {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit two{2, limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &two);
  const std::string first = files.write(0, Stream::out, "c");
  const std::string second = files.write(0, Stream::out, "d");
  const std::string other = files.write(0, Stream::err, "e");
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, former);
  EXPECT_EQ(first,
            fmt::format("tutti: cannot write {}/1/rank.0/stdout: File too large; what rank 0 "
                        "prints from now on is not kept there",
                        folder_));
  EXPECT_EQ(second, "");
  EXPECT_EQ(other, "") << "its other stream goes on";
}

/// To open a pipe that nobody reads would wait without end.
TEST_F(LogFilesTest, APipeOrADeviceIsRefused) {
  const LogPlan plan{folder_, LogPlan::Names::mpirun, {1}};
  LogFiles files(plan, 0);
  const std::string path = folder_ + "/1/rank.0/stdout";
  const std::string wrong = "cannot write " + path + ": it is no regular file; ";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);
  EXPECT_EQ(refusal_of([&] { LogFiles again(plan, 0); }), wrong + "name another folder");
  const net::Fd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(refusal_of([&] { LogFiles again(plan, 0); }), wrong + "name another folder");
  EXPECT_EQ(files.write(0, Stream::out, "a"),
            "tutti: " + wrong + "what rank 0 prints from now on is not kept there");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/full", path);
  EXPECT_EQ(refusal_of([&] { LogFiles again(plan, 0); }), wrong + "name another folder");
}

TEST_F(LogFilesTest, AFolderThatCannotBeMadeIsRefused) {
  std::ofstream(folder_) << "a file";
  const LogPlan plan{folder_, LogPlan::Names::torchrun, {3}};
  EXPECT_NE(refusal_of([&] { LogFiles files(plan, 0); }).find("cannot make the folder of"),
            std::string::npos);
}

TEST(NoLogFiles, KeepNothing) {
  LogFiles files({}, 0);
  EXPECT_EQ(files.write(0, Stream::out, "a"), "");
}

}  // namespace
}  // namespace tutti::launch
