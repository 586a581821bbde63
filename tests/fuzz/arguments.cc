// Whatever a person types behind `tutti run`, a word a line: it is cut where the program begins, or
// refused in words. No word is lost.
#include "launch/arguments.h"

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "tutti/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  using namespace tutti;
  static const std::vector<launch::OptionWord> known = {
      {"n", 1},       {"np", 1},       {"nproc-per-node", 1},
      {"timeout", 1}, {"dry-run", 0}, {"verbose", 0},
      {"v", 0},      {"nnodes", 1}};
  const std::vector<std::string> words = fuzz::Input(data, byte_count).lines();
  fuzz::take_or_refuse([&] {
    const launch::CutArguments cut = launch::cut_arguments(words, known);
    fuzz::require(cut.command.size() <= words.size());
    for (std::size_t i = 0; i < cut.command.size(); ++i)
      fuzz::require(cut.command[i] == words[words.size() - cut.command.size() + i]);
    for (const std::string& option : cut.options) fuzz::require(option.starts_with('-'));
    (void)launch::explain_late_count(cut.command);
    fuzz::require(launch::shell_words(cut.command).size() >= cut.command.size());
  });
  for (const std::string& word : words)
    fuzz::take_or_refuse([&] { fuzz::require(launch::parse_rank_count(word, 8) >= 1); });
  return 0;
}
