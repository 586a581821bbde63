#include "launch/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/config.h"
#include "rendezvous/identity.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

/// "-n2": an option of one letter with its number.
bool has_number_attached(std::string_view word) {
  return word.size() > 2 && word[1] != '-' &&
         word.find_first_not_of("0123456789", 2) == std::string_view::npos;
}

/// "-nproc_per_node" -> "nproc-per-node".
std::string option_name(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string name(word.substr(0, word.find('=')));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

[[noreturn]] void refuse_unknown(const std::string& word, const std::string& name,
                                 std::span<const OptionWord> known) {
  std::vector<std::string> names;
  for (const OptionWord& option : known) {
    if (option.name.size() > 1) names.push_back(option.name);
  }
  // What is that short is near to another one, whatever it is.
  std::string guess = name.size() > 3 ? nearest(name, names) : "";
  for (const std::string& candidate : names) {
    if (guess.empty() && name.size() > 1 && candidate.starts_with(name)) guess = candidate;
  }
  refuse(fmt::format("unknown option {}; {}", word,
                     guess.empty() ? "tutti run --help lists them; options of the program stand "
                                     "after it"
                                   : fmt::format("did you mean --{}?", guess)));
}

}  // namespace

CutArguments cut_arguments(std::span<const std::string> words, std::span<const OptionWord> known) {
  CutArguments cut;
  std::size_t next = 0;
  for (; next < words.size(); ++next) {
    const std::string& word = words[next];
    if (word == "--") {
      cut.is_marked = true;
      ++next;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    const bool attached = has_number_attached(word);
    const std::string name = option_name(attached ? word.substr(0, 2) : word);
    const auto option = std::find_if(known.begin(), known.end(),
                                     [&](const OptionWord& entry) { return entry.name == name; });
    if (option == known.end()) refuse_unknown(word, name, known);
    const std::size_t equals = word.find('=');
    std::string value;
    const bool is_short = name.size() == 1;
    const std::string uniform = (is_short ? "-" : "--") + name;
    if (option->values == 2) {
      if (next + 2 >= words.size()) refuse(fmt::format("{} needs two values", word));
      cut.options.insert(cut.options.end(), {uniform, words[next + 1], words[next + 2]});
      cut.typed.insert(cut.typed.end(), {word, words[next + 1], words[next + 2]});
      next += 2;
      continue;
    }
    cut.typed.push_back(word);
    if (attached || equals != std::string::npos) {
      if (option->values == 0) refuse(fmt::format("{}: takes no value", word));
      value = word.substr(attached ? 2 : equals + 1);
    } else if (option->values == 1) {
      if (next + 1 == words.size()) refuse(fmt::format("{} needs a value", word));
      value = words[++next];
      cut.typed.back() += ' ' + value;
    }
    if (option->values == 1 && value.empty()) {
      refuse(fmt::format("{}: the value is empty; give one, or leave the option out", uniform));
    }
    cut.options.push_back(
        option->values == 0 ? uniform : fmt::format("{}{}{}", uniform, is_short ? "" : "=", value));
  }
  cut.command.assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
  if (!cut.is_marked &&
      std::find(cut.command.begin(), cut.command.end(), ":") != cut.command.end()) {
    refuse(fmt::format(
        "':' would begin another program, and all ranks run one: a script may look at RANK; a ':' "
        "for the program itself stands behind --: tutti run -n 2 -- {} ... :",
        cut.command[0]));
  }
  return cut;
}

int parse_rank_count(std::string_view word, std::string_view text, int cores) {
  if (text == "auto" || text == "cpu") return cores;
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(
        fmt::format("{} {}: not a number of ranks; give a number, 'auto' or 'cpu' ({} here), or "
                    "'gpu'",
                    word, text, cores));
  }
  if (count < 1 || count > rendezvous::kMaxRanksOfHost) {
    refuse(fmt::format("{} {}: a job has 1 to {} ranks on a host", word, text,
                       rendezvous::kMaxRanksOfHost));
  }
  return count;
}

std::string explain_late_count(const CutArguments& cut) {
  for (std::size_t i = 1; i < cut.command.size() && !cut.is_marked; ++i) {
    const std::string& word = cut.command[i];
    const std::string name = option_name(word);
    const bool is_option = word.size() > 1 && word[0] == '-';
    if (!is_option || (name != "n" && name != "np" && name != "nproc-per-node")) continue;
    return fmt::format(
        "one rank: {} stands after the program and is handed to it. For N ranks: tutti run -n N {} "
        "...; if the program is to get it: tutti run -- {} ...",
        word, cut.command[0], cut.command[0]);
  }
  return {};
}

std::vector<std::string> command_of(std::vector<std::string> words, bool is_module,
                                    bool no_python) {
  if (is_module && no_python) {
    refuse(
        "-m starts a module of Python, and --no-python says that there is none: give one of them");
  }
  std::vector<std::string> command;
  if (is_module) {
    command = {"python3", "-u", "-m"};
  } else if (!no_python && !words.empty() && words[0].ends_with(".py")) {
    command = {"python3", "-u"};
  }
  command.insert(command.end(), std::make_move_iterator(words.begin()),
                 std::make_move_iterator(words.end()));
  return command;
}

std::string shell_words(std::span<const std::string> words) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_-+=:,./";
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char letter : word) {
      if (letter == '\'') {
        line += "'\\''";
      } else {
        line += letter;
      }
    }
    line += '\'';
  }
  return line;
}

}  // namespace tutti::launch
