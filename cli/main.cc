// The command `tutti`: finds the subcommand and hands it its words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
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

constexpr Command kCommands[] = {
    {"run", run_manual, run_command},
    {"env", env_manual, env_command},
    {"backends", backends_manual, backends_command},
    {"completion", completion_manual, completion_command},
    {"man", man_manual, man_command},
};

void complain(const std::string& text) {
  const std::string line = text + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int run_main(const std::vector<std::string>& words) {
  if (words.empty()) {
    std::string list;
    for (const Command& command : kCommands)
      list += fmt::format("  {:<10} {}\n", command.name, command.manual().summary);
    complain(fmt::format("Usage: tutti COMMAND [options]\n\n{}\ntutti --help says more.", list));
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
    print(help_text(manual_of_tutti()));
    return 0;
  }
  return command_named(word).run(std::span(words).subspan(1));
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

const Command& command_named(const std::string& word) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (word == command.name) return command;
    names.emplace_back(command.name);
  }
  const std::string guess = nearest(word, names);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown command '{}'; {}", word,
                          guess.empty() ? "tutti --help lists the commands"
                                        : fmt::format("did you mean tutti {}?", guess)));
}

Manual manual_of_tutti() {
  WordGroup all{"Commands", {}};
  for (const Command& command : kCommands)
    all.words.push_back({.names = {command.name}, .text = command.manual().summary});
  return {
      .name = "tutti",
      .summary = "distributed communication and data-parallel training for C++",
      .usage = "COMMAND [options]",
      .examples = {{"tutti run -n 4 ./train --epochs 3", "four ranks on this host"},
                   {"tutti run -n auto ./train", "one rank per core"},
                   {"tutti run -n 4 --dry-run ./train", "say what would be started, and where"},
                   {"tutti env", "settings and identity, and where they come from"},
                   {"tutti backends", "which backends there are here, and what they can do"}},
      .paragraphs = {fmt::format(
          "tutti {}: distributed communication and data-parallel training for C++.",
          build_info().version)},
      .groups = {all,
                 {"Options",
                  {{.names = {"-h", "--help"}, .text = "this text; tutti COMMAND --help says more"},
                   {.names = {"-V", "--version"},
                    .text = "version, commit, compiler, what is built in and what was found"}}}}};
}

void print(const std::string& text) {
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (is_written) return;
  throw Error(ErrorCode::kSystem,
              fmt::format("cannot write to stdout: {}; its output is lost", std::strerror(errno)));
}

}  // namespace tutti::cli

int main(int argc, char** argv) {
  using tutti::cli::complain;
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::string name = "tutti";
  for (const tutti::cli::Command& command : tutti::cli::commands())
    if (!words.empty() && words[0] == command.name) name += " " + words[0];
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
