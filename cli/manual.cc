#include "manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/config.h"
#include "tutti/error.h"
#include "tutti/version.h"

namespace tutti::cli {
namespace {

constexpr std::size_t kWidth = 100, kColumn = 30;

/// Of texts for people: at spaces, never in the middle of a word.
std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines = {""};
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines;
}

std::string paragraph(const std::string& text) {
  return fmt::format("{}\n", fmt::join(wrapped(text, kWidth), "\n"));
}

std::string row(const Word& word) {
  std::string left = fmt::format("  {}{}{}", fmt::join(word.names, ","),
                                 word.value.empty() ? "" : " ", word.value);
  std::string text;
  if (left.size() + 1 > kColumn) {
    text = left + '\n';
    left.clear();
  }
  for (const std::string& line : wrapped(word.text, kWidth - kColumn)) {
    text += fmt::format("{:<{}}{}\n", left, kColumn, line);
    left.clear();
  }
  return text;
}

// ---- man(7)

std::string escaped(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else if (letter == '\'') {
      out += "\\(aq";
    } else {
      out += letter;
    }
  }
  return out;
}

/// A line of text; a point at its beginning would be a macro's.
std::string line_of(const std::string& text) {
  return (text.starts_with('.') ? "\\&" : "") + escaped(text) + '\n';
}

std::string upper(std::string text) {
  for (char& letter : text)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return text;
}

/// "tutti run" -> "tutti-run".
std::string page_name(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string entry(const Word& word) {
  std::string names;
  for (const std::string& name : word.names)
    names += (names.empty() ? "\\fB" : ", \\fB") + escaped(name) + "\\fR";
  const std::string value = word.value.empty() ? "" : " \\fI" + escaped(word.value) + "\\fR";
  return ".TP\n" + names + value + '\n' + line_of(word.text);
}

}  // namespace

std::string help_text(const Manual& manual) {
  std::size_t longest = 0;
  for (const Example& example : manual.examples) longest = std::max(longest, example.line.size());
  std::string text = "Examples:\n";
  for (const Example& example : manual.examples)
    text += fmt::format("  {:<{}}    {}\n", example.line, longest, example.text);
  for (const std::string& each : manual.paragraphs) text += '\n' + paragraph(each);
  text += fmt::format("\nUsage: {} {}\n", manual.name, manual.usage);
  for (const WordGroup& group : manual.groups) {
    text += fmt::format("\n{}:\n", group.title);
    for (const Word& word : group.words) text += row(word);
  }
  for (const Section& section : manual.sections) {
    text += fmt::format("\n{}:\n", section.title);
    for (const std::string& each : section.paragraphs) text += paragraph(each);
  }
  return text;
}

std::string man_page(const Manual& manual, std::span<const std::string> see_also) {
  const std::string name = page_name(manual.name);
  std::string page = fmt::format(".TH {} 1 \"\" \"tutti {}\" \"Tutti\"\n", escaped(upper(name)),
                                 escaped(build_info().version));
  page += ".SH NAME\n" + escaped(name) + " \\- " + escaped(manual.summary) + '\n';
  page += ".SH SYNOPSIS\n.B " + escaped(manual.name) + '\n' + line_of(manual.usage);
  page += ".SH DESCRIPTION\n";
  for (const std::string& each : manual.paragraphs) page += ".PP\n" + line_of(each);
  page += ".SH OPTIONS\n";
  for (const WordGroup& group : manual.groups) {
    page += ".SS " + escaped(group.title) + '\n';
    for (const Word& word : group.words) page += entry(word);
  }
  for (const Section& section : manual.sections) {
    page += ".SH " + escaped(upper(section.title)) + '\n';
    for (const std::string& each : section.paragraphs) page += ".PP\n" + line_of(each);
  }
  if (!manual.variables.empty()) page += ".SH ENVIRONMENT\n";
  for (const Word& variable : manual.variables) page += entry(variable);
  page += ".SH EXAMPLES\n";
  for (const Example& example : manual.examples)
    page += ".TP\n\\fB" + escaped(example.line) + "\\fR\n" + line_of(example.text);
  page += ".SH SEE ALSO\n";
  std::string others;
  for (const std::string& other : see_also) {
    if (other == manual.name) continue;
    others += (others.empty() ? "" : ",\n") + (".BR " + escaped(page_name(other)) + " (1)");
  }
  return page + others + '\n';
}

std::set<std::string> flags_given(const Manual& manual, std::span<const std::string> words,
                                  bool exclude) {
  std::vector<std::string> known = {"--help", "-h"};
  for (const WordGroup& group : manual.groups) {
    for (const Word& word : group.words) {
      known.insert(known.end(), word.names.begin(), word.names.end());
    }
  }
  std::set<std::string> given;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") return {"--help"};
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      const std::string guess = nearest(word, known);
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("unknown option {}; {}", word,
                              guess.empty() ? fmt::format("{} --help lists them", manual.name)
                                            : fmt::format("did you mean {}?", guess)));
    }
    given.insert(word);
  }
  if (exclude && given.size() > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} contradict each other: give one", fmt::join(given, " and ")));
  }
  return given;
}

}  // namespace tutti::cli
