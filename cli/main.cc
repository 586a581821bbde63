// The command `tutti`: finds the subcommand and hands it its words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "command.h"
#include "tutti/error.h"
#include "tutti/version.h"

namespace tutti::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(std::span<const std::string> words);
};

constexpr Command kCommands[] = {
    {"run", "start a program on several ranks and see it through", run_command},
    {"env", "print every setting, its value and its source, and who this process would be",
     env_command},
    {"backends", "say which backends there are, and what each can do", backends_command},
};

std::string command_list() {
  std::string text;
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<8} {}\n", command.name, command.summary);
  }
  return text;
}

std::string long_help() {
  return fmt::format(
      "Examples:\n"
      "  tutti run -n 4 ./train --epochs 3    four ranks on this host\n"
      "  tutti run -n auto ./train            one rank per core\n"
      "  tutti run -n 4 --dry-run ./train     say what would be started, and where\n"
      "  tutti env                            settings and identity, and where they come from\n"
      "  tutti backends                       which backends there are here, and what they can do\n"
      "\n"
      "tutti {}: distributed communication and data-parallel training for C++.\n"
      "\n"
      "Usage: tutti COMMAND [options]\n"
      "\n"
      "Commands:\n{}"
      "\n"
      "Options:\n"
      "  --help     this text; tutti COMMAND --help says more\n"
      "  --version  version, commit, compiler, what is built in and what was found\n",
      build_info().version, command_list());
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void complain(const std::string& text) {
  const std::string line = text + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int unknown_command(const std::string& word) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::string guess = nearest(word, names);
  complain(fmt::format("tutti: unknown command '{}'; {}", word,
                       guess.empty() ? "tutti --help lists the commands"
                                     : fmt::format("did you mean tutti {}?", guess)));
  return kUsageError;
}

int run_main(const std::vector<std::string>& words) {
  if (words.empty()) {
    complain(fmt::format("Usage: tutti COMMAND [options]\n\n{}\ntutti --help says more.",
                         command_list()));
    return kUsageError;
  }
  const std::string& word = words[0];
  if (word == "--version" || word == "-V") {
    const BuildInfo info = build_info();
    const std::vector<std::string> beside = parts_beside();
    print(fmt::format("tutti {} (commit {}, {})\nbuilt in: {}\nfound beside it: {}\n", info.version,
                      info.commit, info.compiler, info.features,
                      beside.empty() ? "nothing" : fmt::format("{}", fmt::join(beside, " "))));
    return 0;
  }
  if (word == "--help" || word == "-h" || word == "help") {
    print(long_help());
    return 0;
  }
  for (const Command& command : kCommands) {
    if (word == command.name) return command.run(std::span(words).subspan(1));
  }
  return unknown_command(word);
}

}  // namespace
}  // namespace tutti::cli

int main(int argc, char** argv) {
  using tutti::cli::complain;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string name = words.empty() || words[0][0] == '-' ? "tutti" : "tutti " + words[0];
  try {
    return tutti::cli::run_main(words);
  } catch (const tutti::Error& error) {
    complain(fmt::format("{}: {}", name, error.what()));
    return error.code() == tutti::ErrorCode::kInvalidArgument ? tutti::cli::kUsageError : 1;
  } catch (const std::exception& error) {
    complain(fmt::format("{}: {}", name, error.what()));
    return 1;
  }
}
