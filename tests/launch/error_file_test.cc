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

TEST(ErrorFile, TheMessageIsFoundInFilesOfAnySize) {
  const ErrorFile file;
  const auto say = [&](const std::string& text) {
    std::ofstream(file.path()) << text;
    return file.said();
  };
  const std::string begin = R"({"message": {"message": "ValueError: no data", "extraInfo": )";
  const std::string stack = R"({"py_callstack": ")" + std::string(200'000, 'x') + R"("}}})";
  EXPECT_EQ(say(begin + stack), "ValueError: no data");
  EXPECT_EQ(say(begin + R"({"py_callstack": ")" + std::string(3'000'000, 'x') + R"("}}})"),
            "ValueError: no data");
  EXPECT_EQ(say(R"({"message": {"extraInfo": {"message": "another", "a": [{"message": "no"}]}, )"
                R"("x": ")" +
                std::string(200'000, 'x') + R"(", "message": "ValueError: late"}})"),
            "ValueError: late");
  const std::string long_message = say(R"({"message": ")" + std::string(200'000, 'm') + R"("})");
  EXPECT_EQ(long_message, std::string(400, 'm') + "...");
  // Longer than what is read: its beginning, as it stands there.
  const std::string cut = say(R"({"message": ")" + std::string(3'000'000, 'm') + R"("})");
  EXPECT_TRUE(cut.starts_with(R"({"message": "mmm)") && cut.ends_with("m...")) << cut.size();
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
  EXPECT_EQ(error_in(R"([{"message": "in a list"}])"), R"([{"message": "in a list"}])");
  EXPECT_EQ(error_in(R"({"message": [{"message": 1}, 2], "a": {"message": "b"}})"),
            R"({"message": [{"message": 1}, 2], "a": {"message": "b"}})");
  EXPECT_EQ(error_in(std::string(60'000, '[')).size(), 403u);  // neither JSON nor short
  EXPECT_EQ(error_in("a\x1b[2Jb").find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace tutti::launch
