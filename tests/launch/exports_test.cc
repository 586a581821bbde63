// mpirun's -x.
#include "launch/exports.h"

#include <gtest/gtest.h>

#include "launch/refusal.h"

namespace tutti::launch {
namespace {

using Words = std::vector<std::string>;

std::string refusal_of(const Words& words) {
  Environment environment;
  return launch::refusal_of([&] { export_variables(words, environment); });
}

TEST(Exports, SetVariables) {
  Environment environment = {{"HOME", "/h"}, {"NCCL_DEBUG", "INFO"}};
  EXPECT_TRUE(
      export_variables(Words{"A=1", "B=", "HOME", "NCCL_*", "C=a=b", "A=1"}, environment).empty());
  EXPECT_EQ(
      environment,
      (Environment{{"A", "1"}, {"B", ""}, {"C", "a=b"}, {"HOME", "/h"}, {"NCCL_DEBUG", "INFO"}}));
}

TEST(Exports, SayWhatIsNotSet) {
  Environment environment = {{"NCCL_DEBUG", "INFO"}};
  const auto notes = export_variables(Words{"NCCL_?EBUG", "NOPE", "OMPI_*"}, environment);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "tutti run: -x NOPE: not set here, and so not for the ranks");
  EXPECT_EQ(notes[1], "tutti run: -x OMPI_*: not set here, and so not for the ranks");
}

TEST(Exports, WarnOfSecrets) {
  Environment environment = {{"HF_TOKEN", "x"}};
  const auto notes =
      export_variables(Words{"HF_TOKEN", "Db_Password=y", "TUTTI_SECRET_FILE=/s"}, environment);
  ASSERT_EQ(notes.size(), 2u) << "a file is where a secret belongs";
  EXPECT_NE(notes[0].find("-x HF_TOKEN: if that is a secret"), std::string::npos);
  EXPECT_NE(notes[1].find("the command line of tutti run shows it"), std::string::npos);
}

TEST(Exports, RefuseWhatCannotBeMeant) {
  EXPECT_EQ(refusal_of({"A=1", "A=2"}), "-x gives A two values, \"1\" and \"2\": give it one");
  EXPECT_EQ(refusal_of({"=1"}), "-x =1: no name; write NAME, NAME=VALUE or a pattern, 'NCCL_*'");
  for (const std::string word : {"RANK=1", "ROLE_NAME=mine", "TORCHELASTIC_RUN_ID=7"})
    EXPECT_EQ(refusal_of({word}), "-x " + word + ": tutti run says that to each rank itself");
}

}  // namespace
}  // namespace tutti::launch
