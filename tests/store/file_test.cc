// The store in a file: what is left of processes that were killed, and files that are none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "net/fd.h"
#include "ranks.h"
#include "store/table.h"
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

TEST(FileStore, WhatIsTooShortOrOnlyBeginsLikeALogIsRefusedAndKept) {
  test::FileUnderTest under_test;
  under_test.at(0)->set("first", std::string(100, 'x'));
  const std::string log = contents(under_test.path());
  std::vector<std::string> files = {"n", "n1\n", "node-1\n", "node-1\nnode-2\n"};
  files.push_back(std::string("\x1f\x8b\x08\0", 4) + std::string(40, 'z'));          // gzip
  files.push_back(std::string("\xff\xfeh\0o\0s\0t\0", 10) + std::string(40, '\0'));  // UTF-16
  for (std::size_t cut = 1; cut < net::kFrameHeaderBytes; ++cut) {  // no kill leaves so little
    files.push_back(log.substr(0, cut));
  }
  for (const std::string& file : files) {
    write(under_test.path(), file);
    const auto store = make_file_store(under_test.path());
    for (const Error& error :
         {thrown_by([&] { store->get("k", 20s); }), thrown_by([&] { store->set("k", "v"); })}) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      expect_text(error, under_test.path() + " is no store's file of Tutti");
    }
    EXPECT_EQ(contents(under_test.path()), file);
  }
}

TEST(FileStore, TheFirstCallMayBeThereInPart) {
  test::FileUnderTest under_test;
  under_test.at(0)->set("first", std::string(100, 'x'));
  const std::string log = contents(under_test.path());
  for (std::size_t cut = net::kFrameHeaderBytes; cut < log.size(); ++cut) {
    write(under_test.path(), log.substr(0, cut));
    const auto store = make_file_store(under_test.path());
    EXPECT_EQ(store->num_keys(), 0);
    store->set("k", "v");
    EXPECT_EQ(make_file_store(under_test.path())->num_keys(), 1) << cut;
  }
}

TEST(FileStore, ALimitOfItsSizeIsAnErrorAndChangesNothing) {
  test::FileUnderTest under_test;
  const auto store = under_test.at(0), other = under_test.at(1);
  const auto set_within = [&](rlim_t byte_count) {
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{byte_count, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Error error = thrown_by([&] { store->set("k", "after"); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    expect_text(error, "cannot write the store's file " + under_test.path() + ": File too large");
    expect_text(error, "`ulimit -f`");
  };
  for (const rlim_t few : {0, 1, 10}) {
    set_within(few);
    EXPECT_EQ(contents(under_test.path()), "");
  }
  store->set("k", "before");
  const std::string log = contents(under_test.path());
  set_within(log.size() + 5);
  EXPECT_EQ(contents(under_test.path()), log);
  EXPECT_EQ(store->get("k"), "before");
  EXPECT_EQ(other->get("k"), "before");
  store->set("k", "after");
  EXPECT_EQ(other->get("k"), "after");
}

TEST(FileStore, ACallThatDoesNotFitIsSeenByNobody) {
  test::FileUnderTest under_test;
  const auto store = under_test.at(0), other = under_test.at(1);
  std::vector<std::string> keys(store::kMaxCallKeys);
  const std::vector<std::string> values(keys.size());
  for (std::size_t made = 0; made < store::kMaxTableKeys;) {
    for (std::string& key : keys) key = "k" + std::to_string(made++);
    store->multi_set(keys, values);
  }
  const std::vector<std::string> one_new = {"k5", "one too many"}, new_values = {"new", ""};
  const Error error = thrown_by([&] { store->multi_set(one_new, new_values); });
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "the store is full");
  EXPECT_EQ(store->get("k5"), "");
  EXPECT_EQ(other->get("k5"), "");
  EXPECT_EQ(store->compare_set("k5", "", "mine"), "mine");
  EXPECT_EQ(other->get("k5"), "mine");
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
