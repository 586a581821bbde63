// The store in a file: what is left of processes that were killed, and files that are none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "net/fd.h"
#include "ranks.h"
#include "stores.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

bool lock_whole(int fd, short kind) {
  struct flock whole {};
  whole.l_type = kind;
  whole.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

TEST(FileStore, WhatWasAppendedInPartIsCutOffAtAnyByte) {
  test::FileUnderTest under_test;
  under_test.at(0)->set("first", "1");
  const std::string before = contents(under_test.path());
  under_test.at(0)->set("second", std::string(100, 'x'));
  const std::string all = contents(under_test.path());
  for (std::size_t cut = before.size(); cut < all.size(); ++cut) {
    write(under_test.path(), all.substr(0, cut));
    const auto one = make_file_store(under_test.path());
    const auto other = make_file_store(under_test.path());
    EXPECT_EQ(one->get("first"), "1");
    EXPECT_EQ(one->try_get("second"), std::nullopt) << cut;
    one->set("third", "3");
    EXPECT_EQ(other->get("third"), "3");
    EXPECT_EQ(other->num_keys(), 2);
  }
}

TEST(FileStore, AFileOfSomethingElseIsRefusedAndKept) {
  test::FileUnderTest under_test;
  const std::string text(200, '#');
  write(under_test.path(), text);
  const Error error = thrown_by([&] { under_test.at(0)->set("k", "v"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, under_test.path() + " is no store's file of Tutti");
  EXPECT_EQ(contents(under_test.path()), text);
}

TEST(FileStore, AFileThatIsRemovedInUseIsSaidToBe) {
  test::FileUnderTest under_test;
  under_test.at(0)->set("k", "v");
  ::unlink(under_test.path().c_str());
  const Error error = thrown_by([&] { under_test.at(0)->get("k"); });
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "was removed or cut while it was in use");
}

TEST(FileStore, WhoIsStoppedWithTheLockIsATimeout) {
  test::FileUnderTest under_test;
  under_test.at(0)->set("k", "v");
  const net::Fd other(::open(under_test.path().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(lock_whole(other.get(), F_WRLCK));
  const Error error = thrown_by([&] { under_test.at(0)->set("k", "w", 100ms); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "stayed locked until the deadline");
  ASSERT_TRUE(lock_whole(other.get(), F_UNLCK));
  EXPECT_EQ(under_test.at(0)->get("k"), "v");
}

TEST(FileStore, KilledAtAnyMomentItLeavesAWholeStore) {
  test::FileUnderTest under_test;
  const auto store = under_test.at(0);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto own = make_file_store(under_test.path());
      for (;;) own->add("n", 1);
    }
    const std::int64_t before = store->add("n", 0);
    while (store->add("n", 0) < before + 5) {
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::int64_t after = store->add("n", 1);
    EXPECT_EQ(make_file_store(under_test.path())->get("n"), std::to_string(after));
  }
}

TEST(FileStore, AForkedChildIsToldToOpenItItself) {
  test::FileUnderTest under_test;
  const auto store = under_test.at(0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      store->set("k", "v");
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::kInvalidArgument ? 7 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(FileStore, WhatCannotBeOpenedIsNamed) {
  EXPECT_EQ(thrown_by([] { make_file_store(""); }).code(), ErrorCode::kInvalidArgument);
  const Error error = thrown_by([] { make_file_store("/no/such/folder/store"); });
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "/no/such/folder/store");
}

}  // namespace
}  // namespace tutti
