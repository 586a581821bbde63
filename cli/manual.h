// What a command is, as a value: its help, its man page and its completion are made from it.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

namespace tutti::cli {

struct Word {
  std::vector<std::string> names;  ///< "-n", "--np"
  std::string value = {};          ///< "N", or all there are: "core|numa"; empty: it takes none
  int values = 0;                  ///< how many words follow it
  std::string text = {};
};

struct WordGroup {
  std::string title;
  std::vector<Word> words;
};

struct Example {
  std::string line, text;
};

struct Section {
  std::string title;
  std::vector<std::string> paragraphs;
};

struct Manual {
  std::string name;  ///< "tutti run"
  std::string summary;
  std::string usage;  ///< what may stand behind the name
  /// What stands there that is no option: all there are ("bash|zsh|fish"), or "PROGRAM", whose
  /// words are its own; else "".
  std::string operand = {};
  std::vector<Example> examples;
  std::vector<std::string> paragraphs;
  std::vector<WordGroup> groups;
  std::vector<Word> hidden = {};  ///< words that are taken, and not listed
  std::vector<Section> sections = {};
  std::vector<Word> variables = {};  ///< of the environment: in the man page alone
};

/// What --help prints: the examples first.
std::string help_text(const Manual& manual);
/// The source of a page for man(1), in the macros of man(7).
std::string man_page(const Manual& manual, std::span<const std::string> see_also);

/// Of a command whose words take no values: those that are given, or {"--help"} if that is one of
/// them. Throws Error(kInvalidArgument): another word, or two of them where they `exclude` each
/// other.
std::set<std::string> flags_given(const Manual& manual, std::span<const std::string> words,
                                  bool exclude = false);

}  // namespace tutti::cli
