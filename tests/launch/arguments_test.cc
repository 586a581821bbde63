#include "launch/arguments.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "launch/program.h"
#include "launch/refusal.h"

namespace tutti::launch {
namespace {

using Words = std::vector<std::string>;
const OptionWord kKnown[] = {
    {"n", 1}, {"np", 1}, {"nproc-per-node", 1}, {"grace", 1}, {"dry-run", 0}};

TEST(CutArguments, TakesEverySpelling) {
  for (const Words& words :
       {Words{"-n", "4", "prog", "-x"}, Words{"-n=4", "prog", "-x"}, Words{"-n4", "prog", "-x"},
        Words{"-np", "4", "prog", "-x"}, Words{"--nproc_per_node", "4", "prog", "-x"},
        Words{"--nproc-per-node=4", "prog", "-x"},
        Words{"-nproc_per_node=4", "--", "prog", "-x"}}) {
    const CutArguments cut = cut_arguments(words, kKnown);
    ASSERT_EQ(cut.options.size(), 1u) << words[0];
    EXPECT_TRUE(cut.options[0] == "-n4" || cut.options[0].ends_with("=4")) << cut.options[0];
    EXPECT_EQ(cut.command, (Words{"prog", "-x"}));
  }
}

TEST(CutArguments, KeepsWhatWasTyped) {
  const OptionWord known[] = {{"mca", 2}, {"n", 1}, {"np", 1}, {"dry-run", 0}};
  const CutArguments cut = cut_arguments(
      Words{"-n", "2", "-n3", "-np=4", "-mca", "a", "b", "--dry_run", "--np", "5", "prog"}, known);
  EXPECT_EQ(cut.options, (Words{"-n2", "-n3", "--np=4", "--mca", "a", "b", "--dry-run", "--np=5"}));
  EXPECT_EQ(cut.typed, (Words{"-n 2", "-n3", "-np=4", "-mca", "a", "b", "--dry_run", "--np 5"}));
}

TEST(CutArguments, LeavesTheProgramsArgumentsAlone) {
  const CutArguments cut =
      cut_arguments(Words{"--dry-run", "-n", "2", "prog", "-n", "7", "--", "--grace"}, kKnown);
  EXPECT_EQ(cut.options, (Words{"--dry-run", "-n2"}));
  EXPECT_EQ(cut.command, (Words{"prog", "-n", "7", "--", "--grace"}));
}

TEST(CutArguments, ProgramMayBeginWithADashAfterTheSeparator) {
  EXPECT_EQ(cut_arguments(Words{"-n", "2", "--", "-odd"}, kKnown).command, (Words{"-odd"}));
}

TEST(CutArguments, OneProgramIsForAllRanks) {
  EXPECT_EQ(refusal_of([] {
              cut_arguments(Words{"-n", "1", "a", ":", "-n", "2", "b"}, kKnown);
            }),
            "':' would begin another program, and all ranks run one: a script may look at RANK; a "
            "':' for the program itself stands behind --: tutti run -n 2 -- a ... :");
  EXPECT_EQ(cut_arguments(Words{"-n", "1", "--", "a", ":"}, kKnown).command, (Words{"a", ":"}));
}

TEST(CutArguments, TakesTwoValues) {
  const OptionWord known[] = {{"mca", 2}, {"n", 1}};
  const CutArguments cut = cut_arguments(Words{"-mca", "btl", "^openib", "-n", "2", "prog"}, known);
  EXPECT_EQ(cut.options, (Words{"--mca", "btl", "^openib", "-n2"}));
  EXPECT_EQ(cut.command, (Words{"prog"}));
  EXPECT_EQ(refusal_of([&] {
              cut_arguments(Words{"--mca", "pml"}, known);
            }),
            "--mca needs two values");
}

TEST(Command, PythonIsStartedAsTorchrunDoes) {
  EXPECT_EQ(command_of({"train.py", "-x"}, false, false),
            (Words{"python3", "-u", "train.py", "-x"}));
  EXPECT_EQ(command_of({"./train.py"}, false, true), (Words{"./train.py"}));
  EXPECT_EQ(command_of({"json.tool", "f"}, true, false),
            (Words{"python3", "-u", "-m", "json.tool", "f"}));
  EXPECT_EQ(command_of({"./train"}, false, false), (Words{"./train"}));
  EXPECT_EQ(refusal_of([] { command_of({"json.tool"}, true, true); }),
            "-m starts a module of Python, and --no-python says that there is none: give one of "
            "them");
}

TEST(CutArguments, NamesTheOptionWithoutValue) {
  EXPECT_EQ(refusal_of([] { cut_arguments(Words{"--grace"}, kKnown); }), "--grace needs a value");
}

TEST(CutArguments, AnEmptyValueIsNone) {
  for (const Words& words : {Words{"--grace=", "-n", "1", "prog"}, Words{"-grace", "", "prog"}}) {
    EXPECT_EQ(refusal_of([&] { cut_arguments(words, kKnown); }),
              "--grace: the value is empty; give one, or leave the option out");
  }
  EXPECT_EQ(refusal_of([] {
              cut_arguments(Words{"-n", "", "prog"}, kKnown);
            }),
            "-n: the value is empty; give one, or leave the option out");
  EXPECT_EQ(cut_arguments(Words{"--dry-run", "prog", "", "--grace="}, kKnown).command,
            (Words{"prog", "", "--grace="}));
}

TEST(CutArguments, GuessesUnknownOptions) {
  EXPECT_EQ(refusal_of([] {
              cut_arguments(Words{"--graze", "1", "prog"}, kKnown);
            }),
            "unknown option --graze; did you mean --grace?");
  EXPECT_EQ(refusal_of([] {
              cut_arguments(Words{"--nproc", "1", "prog"}, kKnown);
            }),
            "unknown option --nproc; did you mean --nproc-per-node?");
  // No guess where nothing of the word would be left.
  EXPECT_EQ(
      refusal_of([] {
        cut_arguments(Words{"-q7", "prog"}, kKnown);
      }),
      "unknown option -q7; tutti run --help lists them; options of the program stand after it");
  // Every letter is near to another word.
  EXPECT_EQ(
      refusal_of([] {
        cut_arguments(Words{"-x", "A=b", "prog"}, kKnown);
      }),
      "unknown option -x; tutti run --help lists them; options of the program stand after it");
  // What is far for its length, or too short to be far from anything.
  const OptionWord known[] = {{"tee", 1}, {"np", 1}, {"timeout", 1}};
  for (const char* const word : {"--frobnicate", "--tune", "--hnp", "-env", "--ppr"}) {
    const std::string far = refusal_of([&] { cut_arguments(Words{word}, known); });
    EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
  }
  EXPECT_EQ(refusal_of([&] { cut_arguments(Words{"--tiemout"}, known); }),
            "unknown option --tiemout; did you mean --timeout?");
  EXPECT_EQ(refusal_of([] { cut_arguments(Words{"--dry-run=1"}, kKnown); }),
            "--dry-run=1: takes no value");
}

TEST(ParseRankCount, NumbersAndWords) {
  EXPECT_EQ(parse_rank_count("-n", "3", 8), 3);
  EXPECT_EQ(parse_rank_count("-n", "auto", 8), 8);
  EXPECT_EQ(parse_rank_count("-n", "cpu", 8), 8);
}

TEST(ParseRankCount, RefusesWithTheValue) {
  for (const char* text : {"0", "-1", "257", "99999999999", "4x", "", "gpu", "0x4"}) {
    const std::string message = refusal_of([&] { parse_rank_count("-n", text, 8); });
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
}

TEST(ExplainLateCount, SeesTheCountBehindTheProgram) {
  const auto late = [](const Words& words) { return explain_late_count(cut_arguments(words, {})); };
  const std::string text = late({"./train", "--nproc_per_node=2"});
  EXPECT_NE(text.find("--nproc_per_node=2 stands after the program"), std::string::npos) << text;
  EXPECT_NE(text.find("tutti run -n N ./train"), std::string::npos) << text;
  EXPECT_NE(late({"./train", "x", "-n", "2"}), "");
  EXPECT_EQ(late({"--", "./train", "-n", "2"}), "") << "its words are its own";
  EXPECT_EQ(late({"./train", "--epochs", "2"}), "");
  EXPECT_EQ(late({"./-n"}), "");
}

TEST(ShellWords, QuotesWhatAShellWouldSplit) {
  EXPECT_EQ(shell_words(Words{"a", "b c", "", "d'e"}), "a 'b c' '' 'd'\\''e'");
}

class FindProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "tutti_find_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    former_ = ::get_current_dir_name();
    ASSERT_EQ(::chdir(folder_.c_str()), 0);
  }
  void TearDown() override {
    ASSERT_EQ(::chdir(former_), 0);
    std::free(former_);
    for (const char* name : {"prog", "plain"}) ::unlink((folder_ + "/" + name).c_str());
    ::rmdir(folder_.c_str());
  }
  void make(const char* name, mode_t mode) {
    std::ofstream(folder_ + "/" + name) << "#!/bin/sh\n";
    ASSERT_EQ(::chmod((folder_ + "/" + name).c_str(), mode), 0);
  }
  std::string folder_;
  char* former_ = nullptr;
};

TEST_F(FindProgram, SearchesThePathInOrder) {
  make("prog", 0755);
  EXPECT_EQ(find_program("prog", "/nonexistent:" + folder_), folder_ + "/prog");
  EXPECT_EQ(find_program("./prog", ""), "./prog");
}

TEST_F(FindProgram, SuggestsTheOneThatIsHere) {
  make("prog", 0755);
  const std::string message = refusal_of([] { find_program("prog", "/nonexistent"); });
  EXPECT_NE(message.find("did you mean ./prog?"), std::string::npos) << message;
}

TEST_F(FindProgram, SaysWhatIsWrong) {
  make("plain", 0644);
  EXPECT_EQ(refusal_of([] { find_program("plain", "/nonexistent"); }),
            "program plain: not found in PATH");
  EXPECT_NE(refusal_of([] { find_program("./plain", ""); }).find("not executable"),
            std::string::npos);
  EXPECT_NE(refusal_of([] { find_program("./none", ""); }).find("No such file"), std::string::npos);
  EXPECT_NE(refusal_of([] { find_program("/", ""); }).find("is a directory"), std::string::npos);
  EXPECT_EQ(refusal_of([] { find_program(".", "/bin:/usr/bin"); }), "program .: is a directory");
  EXPECT_EQ(refusal_of([] { find_program("zilch", "/nonexistent"); }),
            "program zilch: not found in PATH");
}

TEST_F(FindProgram, SaysThatTheWorkingFolderIsGone) {
  const std::string removed = folder_ + "/removed";
  ASSERT_EQ(::mkdir(removed.c_str(), 0755), 0);
  ASSERT_EQ(::chdir(removed.c_str()), 0);
  ASSERT_EQ(::rmdir(removed.c_str()), 0);
  EXPECT_EQ(refusal_of([] { find_program("./prog", ""); }),
            "program ./prog: the working folder was removed; cd to one that is there");
  EXPECT_EQ(refusal_of([] { find_program("true", "/bin", "sub"); }),
            "--wdir sub: the working folder was removed; cd to one that is there");
  EXPECT_EQ(find_program("true", "/bin"), "/bin/true");
}

}  // namespace
}  // namespace tutti::launch
