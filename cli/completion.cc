// tutti completion: scripts by which shells complete the words of `tutti`, made from its manuals.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

/// Of "none|core|numa" what can be typed: not N, which stands for something.
std::vector<std::string> choices_of(const std::string& value) {
  std::vector<std::string> choices;
  if (value.find('|') == value.npos) return choices;
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t end = std::min(value.find('|', at), value.size());
    const std::string each = value.substr(at, end - at);
    if (!each.empty() && std::islower(static_cast<unsigned char>(each[0])) != 0)
      choices.push_back(each);
    at = end + 1;
  }
  return choices;
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

/// In single quotes, for all three.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }
std::string quoted_in_fish(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string joined(std::span<const std::string> words, std::string_view between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<Word> listed(const Manual& manual) {
  std::vector<Word> words;
  for (const WordGroup& group : manual.groups)
    words.insert(words.end(), group.words.begin(), group.words.end());
  return words;
}

/// Those that are listed, and those that are not.
std::vector<Word> all_words(const Manual& manual) {
  std::vector<Word> words = listed(manual);
  words.insert(words.end(), manual.hidden.begin(), manual.hidden.end());
  return words;
}

/// All names of words that take so many values.
std::vector<std::string> names_with(const std::vector<Word>& words, int values) {
  std::vector<std::string> names;
  for (const Word& word : words)
    if (word.values == values) names.insert(names.end(), word.names.begin(), word.names.end());
  return names;
}

std::vector<std::string> options_of(const WordGroup& group) {
  std::vector<std::string> names;
  for (const Word& word : group.words)
    names.insert(names.end(), word.names.begin(), word.names.end());
  return names;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return names;
}

// ---- bash

/// "  -n|--np) ((i += 1)) ;;", or nothing.
std::string bash_skip(const std::vector<Word>& words, int values) {
  const std::vector<std::string> names = names_with(words, values);
  if (names.empty()) return "";
  return fmt::format("        {}) ((i += {})) ;;\n", joined(names, "|"), values);
}

std::string bash_values(const std::vector<Word>& words) {
  std::string text;
  for (const Word& word : words) {
    if (word.values == 0) continue;
    const std::vector<std::string> choices = choices_of(word.value);
    std::string how;
    if (!choices.empty())
      how = fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\"))", joined(choices));
    if (word.value == "FILE") how = "_tutti_files -f";
    if (word.value == "FOLDER") how = "_tutti_files -d";
    if (!how.empty()) text += fmt::format("        {}) {} ;;\n", joined(word.names, "|"), how);
  }
  return text;
}

std::string bash_program() {
  return R"(    if ((i < COMP_CWORD)); then
      if declare -F _command_offset >/dev/null; then _command_offset "$i"
      else compopt -o default; fi
      return
    fi
    if ((i == COMP_CWORD)) && [[ $current != -* || $marked ]]; then
      _tutti_files -c -f
      return
    fi
)";
}

std::string bash_command(const Command& command) {
  const Manual manual = command.manual();
  const std::vector<Word> words = all_words(manual);
  std::string text = fmt::format("  {})\n", command.name);
  if (manual.operand == "PROGRAM") {
    text +=
        // A word with = in it is three for bash.
        "    for ((i = 2; i < COMP_CWORD; ++i)); do\n"
        "      [[ ${COMP_WORDS[i+1]} == = ]] || case ${COMP_WORDS[i]} in\n"
        "        --) ((++i)); marked=1; break ;;\n" +
        bash_skip(words, 1) + bash_skip(words, 2) +
        "        -*) ;;\n        *) break ;;\n      esac\n"
        "      while [[ ${COMP_WORDS[i+1]} == = ]]; do ((i += 2)); done\n    done\n" +
        bash_program();
    text += "    if ((i > COMP_CWORD)); then\n      case $option in\n" + bash_values(words) +
            "      esac\n      return\n    fi\n";
  }
  const std::vector<std::string> choices = choices_of(manual.operand);
  text += fmt::format("    COMPREPLY=($(compgen -W '{}{}{}' -- \"$current\"))\n    ;;\n",
                      joined(options_of({.title = {}, .words = listed(manual)})),
                      choices.empty() ? "" : " ", joined(choices));
  return text;
}

std::string bash_script() {
  std::string text = fmt::format(
      "# Completion of tutti for bash; made by `tutti completion bash`.\n"
      "_tutti_files() {{\n"
      "  local how\n"
      "  compopt -o filenames\n"
      "  mapfile -t COMPREPLY < <(for how; do compgen \"$how\" -- \"$current\"; done)\n"
      "}}\n"
      "_tutti() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD-1]}} marked= i\n"
      "  COMPREPLY=()\n"
      "  [[ $current == = ]] && current=\n"
      "  [[ $option == = ]] && option=${{COMP_WORDS[COMP_CWORD-2]}}\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W '{} {}' -- \"$current\"))\n    return\n  fi\n"
      "  case ${{COMP_WORDS[1]}} in\n",
      joined(command_names()), joined(options_of(manual_of_tutti().groups.back())));
  for (const Command& command : commands()) text += bash_command(command);
  return text + "  esac\n}\ncomplete -F _tutti tutti\n";
}

// ---- zsh

std::string zsh_values(const Word& word) {
  std::string text;
  const std::vector<std::string> choices = choices_of(word.value);
  std::string action = choices.empty() ? " " : fmt::format("({})", joined(choices));
  if (word.value == "FILE") action = "_files";
  if (word.value == "FOLDER") action = "_files -/";
  const std::string what = word.value.empty() ? " " : replaced(word.value, ":", "\\:");
  for (int value = 0; value < word.values; ++value) text += fmt::format(":{}:{}", what, action);
  return text;
}

std::string zsh_option(const Word& word) {
  const std::string others = fmt::format("({})", joined(word.names));
  const std::string says = replaced(replaced(word.text, "[", "\\["), "]", "\\]");
  std::string text;
  for (const std::string& name : word.names) {
    const char* const equals = word.values == 1 && name.starts_with("--") ? "=" : "";
    const std::string spec = fmt::format("{}{}{}[{}]{}", name == "-x" ? "*" : others, name, equals,
                                         says, zsh_values(word));
    text += "          " + quoted(spec) + " \\\n";
  }
  return text;
}

std::string zsh_command(const Command& command) {
  const Manual manual = command.manual();
  std::string text = fmt::format("        {})\n          _arguments -S -A '-*' \\\n", command.name);
  for (const Word& word : listed(manual)) text += zsh_option(word);
  for (const Word& word : manual.hidden) {
    for (const std::string& name : word.names)
      text += "          " + quoted("!" + name + zsh_values(word)) + " \\\n";
  }
  const std::vector<std::string> choices = choices_of(manual.operand);
  if (manual.operand == "PROGRAM") {
    text += "          '(-):program:_command_names -e' '*::arguments:_normal'\n";
  } else if (!choices.empty()) {
    text += fmt::format("          '1:which:({})'\n", joined(choices));
  } else {
    text += "          && return\n";
  }
  return text + "          ;;\n";
}

std::string zsh_script() {
  std::string text =
      "#compdef tutti\n# Completion of tutti for zsh; made by `tutti completion zsh`.\n"
      "_tutti() {\n  local curcontext=\"$curcontext\" context state line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C '(- *)'{-h,--help}'[what there is]' "
      "'(- *)'{-V,--version}'[which one this is]' \\\n"
      "    '1:command:->command' '*::argument:->argument'\n"
      "  case $state in\n    command)\n      local -a commands\n      commands=(\n";
  for (const Command& command : commands()) {
    text += fmt::format(
        "        {}\n",
        quoted(fmt::format("{}:{}", command.name, replaced(command.manual().summary, ":", "\\:"))));
  }
  text +=
      "      )\n      _describe command commands\n      ;;\n"
      "    argument)\n      case $words[1] in\n";
  for (const Command& command : commands()) text += zsh_command(command);
  return text +
         "      esac\n      ;;\n  esac\n}\n"
         "if [[ $funcstack[1] == _tutti ]]; then _tutti \"$@\"; else compdef _tutti tutti; fi\n";
}

// ---- fish

std::string fish_option(const std::string& begin, const Word& word) {
  std::string text = begin;
  for (const std::string& name : word.names)
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  const std::vector<std::string> choices = choices_of(word.value);
  if (word.values > 0 && word.value == "FILE") {
    text += " -r -F";
  } else if (word.values > 0 && word.value == "FOLDER") {
    text += " -x -a '(__fish_complete_directories)'";
  } else if (word.values > 0) {
    text += choices.empty() ? " -x" : fmt::format(" -x -a '{}'", joined(choices));
  }
  return text + " -d " + quoted_in_fish(word.text) + '\n';
}

std::string fish_skip(const std::vector<Word>& words, int values) {
  const std::vector<std::string> names = names_with(words, values);
  if (names.empty()) return "";
  std::string text = fmt::format("            case {}\n", joined(names));
  for (int value = 0; value < values; ++value) {
    text +=
        "                set -e words[1]\n"
        "                if not set -q words[1]\n                    echo value\n"
        "                    return\n                end\n";
  }
  return text;
}

/// Says where the cursor is behind the command's name: "options", the "value" of one, or "program".
std::string fish_function(const Command& command, const std::vector<Word>& words) {
  return fmt::format(
             "function __tutti_{0}\n"
             "    set -l words (commandline -opc)\n"
             "    test (count $words) -ge 2; and test \"$words[2]\" = {0}; or return\n"
             "    set -e words[1..2]\n"
             "    while set -q words[1]\n        switch $words[1]\n"
             "            case --\n                echo program\n                return\n",
             command.name) +
         fish_skip(words, 1) + fish_skip(words, 2) +
         "            case '-*'\n            case '*'\n"
         "                echo program\n                return\n"
         "        end\n        set -e words[1]\n    end\n    echo options\nend\n";
}

std::string fish_command(const Command& command) {
  const Manual manual = command.manual();
  const std::vector<Word> words = all_words(manual);
  std::string text = fish_function(command, words);
  const auto where = [&](const char* places) {
    return fmt::format("complete -c tutti -n 'contains -- (__tutti_{0}) {1}'", command.name,
                       places);
  };
  for (const Word& word : listed(manual)) text += fish_option(where("options value"), word);
  const std::vector<std::string> choices = choices_of(manual.operand);
  if (!choices.empty()) text += fmt::format("{} -x -a '{}'\n", where("options"), joined(choices));
  if (manual.operand == "PROGRAM") {
    text += fmt::format("{} -x -a '(__fish_complete_subcommand --fcs-skip=2 {} {})'\n",
                        where("options program"), joined(names_with(words, 1)),
                        joined(names_with(words, 2)));
  }
  return text;
}

std::string fish_script() {
  std::string text =
      "# Completion of tutti for fish; made by `tutti completion fish`.\ncomplete -c tutti -f\n";
  for (const Command& command : commands()) {
    text += fmt::format("complete -c tutti -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        quoted_in_fish(command.manual().summary));
  }
  const WordGroup own = manual_of_tutti().groups.back();
  for (const Word& word : own.words)
    text += fish_option("complete -c tutti -n __fish_use_subcommand", word);
  for (const Command& command : commands()) text += fish_command(command);
  return text;
}

}  // namespace

Manual completion_manual() {
  return {.name = "tutti completion",
          .summary = "print what makes a shell complete the words of tutti",
          .usage = "bash|zsh|fish",
          .operand = "bash|zsh|fish",
          .examples = {{"source <(tutti completion bash)", "in ~/.bashrc"},
                       {"source <(tutti completion zsh)", "in ~/.zshrc, behind compinit"},
                       {"tutti completion fish | source", "in ~/.config/fish/config.fish"}},
          .paragraphs = {"Where tutti was installed into the system's own folders, shells find the "
                         "script there, and nothing need be done."},
          .groups = {{"Options", {{.names = {"-h", "--help"}, .text = "this text"}}}}};
}

int completion_command(std::span<const std::string> words) {
  if (!words.empty() && words[0].starts_with('-')) {
    (void)flags_given(completion_manual(), words);
    print(help_text(completion_manual()));
    return 0;
  }
  const std::string shell = words.size() == 1 ? words[0] : "";
  if (shell == "bash") {
    print(bash_script());
  } else if (shell == "zsh") {
    print(zsh_script());
  } else if (shell == "fish") {
    print(fish_script());
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: give one shell: bash, zsh or fish",
                            words.empty() ? "no shell given" : joined(words)));
  }
  return 0;
}

}  // namespace tutti::cli
