// Whatever a person types behind `tutti run`, a word a line: it is cut where the program begins, or
// refused in words. No word is lost.
#include "launch/arguments.h"

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "launch/exports.h"
#include "launch/log_files.h"
#include "launch/slots.h"
#include "tutti/error.h"

namespace {

using namespace tutti;

/// What stands behind a word, on its own.
void take_value(const std::string& text) {
  fuzz::take_or_refuse([&] { fuzz::require(launch::parse_rank_count("-n", text, 8) >= 1); });
  fuzz::take_or_refuse([&] {
    for (const launch::HostSlots& host : launch::parse_host_list("-H", text))
      fuzz::require(!host.name.empty() && host.slots >= 1);
  });
  fuzz::take_or_refuse([&] {
    for (const launch::StreamSet set : launch::parse_streams("-r", text, 8))
      fuzz::require(set <= launch::kBothStreams);
  });
  fuzz::take_or_refuse(
      [&] { fuzz::require(launch::parse_ranks("--local-ranks-filter", text, 8).size() == 8); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  static const std::vector<launch::OptionWord> known = {
      {"n", 1},       {"np", 1}, {"nproc-per-node", 1}, {"timeout", 1}, {"dry-run", 0},
      {"verbose", 0}, {"v", 0},  {"nnodes", 1}};
  const std::vector<std::string> words = fuzz::Input(data, byte_count).lines();
  fuzz::take_or_refuse([&] {
    const launch::CutArguments cut = launch::cut_arguments(words, known);
    fuzz::require(cut.command.size() <= words.size());
    for (std::size_t i = 0; i < cut.command.size(); ++i)
      fuzz::require(cut.command[i] == words[words.size() - cut.command.size() + i]);
    for (const std::string& option : cut.options) fuzz::require(option.starts_with('-'));
    (void)launch::explain_late_count(cut);
    fuzz::require(launch::shell_words(cut.command).size() >= cut.command.size());
  });
  for (const std::string& word : words) take_value(word);
  Environment environment = {{"HOME", "/h"}, {"NCCL_DEBUG", "INFO"}};
  fuzz::take_or_refuse([&] { (void)launch::export_variables(words, environment); });
  fuzz::take_or_refuse([&] {
    const std::string file(reinterpret_cast<const char*>(data), byte_count);
    fuzz::require(!launch::parse_hostfile("hosts", file).empty());
  });
  return 0;
}
