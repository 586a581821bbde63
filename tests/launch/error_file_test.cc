#include "launch/error_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace tutti::launch {
namespace {

TEST(ErrorFile, SaysWhatWasWrittenThere) {
  const ErrorFile file;
  EXPECT_EQ(file.said(), "");
  ASSERT_FALSE(file.path().empty());
  std::ofstream(file.path()) << R"({"message": {"message": "ValueError: no data"}})";
  EXPECT_EQ(file.said(), "ValueError: no data");
  std::ofstream(file.path()) << "short";  // in its place
  EXPECT_EQ(file.said(), "short");
}

TEST(ErrorFile, ReadsTorchsFormAndAnyText) {
  EXPECT_EQ(error_in(R"({"message": "OSError: full"})"), "OSError: full");
  EXPECT_EQ(
      error_in(R"({"message": {"message": "A: b\nand more", "extraInfo": {"py_callstack": 1}}})"),
      "A: b");
  EXPECT_EQ(error_in("plain words\nand more"), "plain words");
  EXPECT_EQ(error_in(""), "");
  EXPECT_EQ(error_in(R"({"other": 1})"), R"({"other": 1})");
  EXPECT_EQ(error_in(R"({"message": [1]})"), R"({"message": [1]})");
  EXPECT_EQ(error_in(std::string(60'000, '[')).size(), 403u);  // neither JSON nor short
  EXPECT_EQ(error_in("a\x1b[2Jb").find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace tutti::launch
