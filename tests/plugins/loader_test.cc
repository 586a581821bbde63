// Plugins that are missing, damaged or of another build: each is refused with the file, the reason
// and what to do, before any of its code runs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ranks.h"
#include "tutti/init.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

/// A folder of plugins for one test.
class Loader : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tutti-plugins-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& name) const {
    return folder_ / ("libtutti_backend_" + name + ".so");
  }
  /// The error of a world over the backend `name`.
  Error refused(const std::string& name) const {
    return thrown_by([&] {
      init_process_group({.backend = name,
                          .rank = 0,
                          .world_size = 1,
                          .settings = {{"backend_path", folder_.string()}}});
    });
  }
  void expect_refused(const std::string& name, const std::string& reason) const {
    const Error error = refused(name);
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    expect_text(error, file(name).string());
    expect_text(error, reason);
  }

  fs::path folder_;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(Loader, AWholeOneIsUsed) {
  fs::copy(TUTTI_SAMPLE, file("sample"));
  ProcessGroup world = init_process_group({.backend = "sample",
                                           .rank = 0,
                                           .world_size = 1,
                                           .settings = {{"backend_path", folder_.string()}}});
  EXPECT_EQ(world.backend().name, "store");
  EXPECT_EQ(world.all_reduce_value(7), 7);
}

TEST_F(Loader, AnUnknownNameListsThoseThereAre) {
  fs::copy(TUTTI_SAMPLE, file("sample"));
  const Error error = refused("smaple");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "there is no backend \"smaple\"");
  expect_text(error, "native");
  expect_text(error, "did you mean \"sample\"?");
}

TEST_F(Loader, ATruncatedOneIsRefusedWhereverItWasCut) {
  const std::string whole = bytes_of(TUTTI_SAMPLE);
  for (const std::size_t kept : {std::size_t{0}, std::size_t{20}, whole.size() / 10,
                                 whole.size() / 2, whole.size() - 100, whole.size() - 1}) {
    std::ofstream(file("cut"), std::ios::binary) << whole.substr(0, kept);
    expect_refused("cut", kept < 64 ? "too few for a shared object" : "is truncated");
  }
}

TEST_F(Loader, WhatIsNoSharedObjectIsRefused) {
  fs::create_directory(file("folder"));
  expect_refused("folder", "is not a file");
  std::ofstream(file("text")) << std::string(5000, 'x');
  expect_refused("text", "is not a shared object");
  std::string other = bytes_of(TUTTI_SAMPLE);
  other[4] = other[4] == 1 ? 2 : 1;  // 32 bits for 64
  std::ofstream(file("other"), std::ios::binary) << other;
  expect_refused("other", "is no shared object of this kind of machine");
}

TEST_F(Loader, OneOfAnotherInterfaceIsRefused) {
  fs::copy(TUTTI_OTHER_ABI, file("old"));
  expect_refused("old", "was built for \"tutti-backend 0\"");
}

TEST_F(Loader, ALibraryThatIsNoBackendIsRefused) {
  fs::copy(TUTTI_NO_BACKEND, file("plain"));
  expect_refused("plain", "is no backend of Tutti");
}

TEST_F(Loader, AMissingLibraryIsNamed) {
  fs::copy(TUTTI_NEEDS_ABSENT, file("needs"));
  expect_refused("needs", "libtutti_test_absent.so");
}

}  // namespace
}  // namespace tutti
