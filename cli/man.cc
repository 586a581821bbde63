// tutti man: the pages that a package installs, as source for man(1).
#include <set>
#include <span>
#include <string>
#include <vector>

#include "command.h"
#include "tutti/error.h"

namespace tutti::cli {

Manual man_manual() {
  std::string names;
  for (const Command& command : commands())
    names += (names.empty() ? "" : "|") + std::string(command.name);
  return {.name = "tutti man",
          .summary = "print the source of a man page, for packages",
          .usage = "[COMMAND]",
          .operand = names,
          .examples = {{"tutti man run > tutti-run.1", "the page of tutti run"},
                       {"tutti man | man -l -", "read the page of tutti itself"}},
          .paragraphs = {"The pages are installed with the command: man tutti-run."},
          .groups = {{"Options", {{.names = {"-h", "--help"}, .text = "this text"}}}}};
}

int man_command(std::span<const std::string> words) {
  if (!words.empty() && words[0].starts_with('-')) {
    (void)flags_given(man_manual(), words);
    print(help_text(man_manual()));
    return 0;
  }
  if (words.size() > 1)
    throw Error(ErrorCode::kInvalidArgument, "one command at most: tutti man [COMMAND]");
  std::vector<std::string> all = {"tutti"};
  for (const Command& command : commands()) all.push_back(command.manual().name);
  print(man_page(words.empty() ? manual_of_tutti() : command_named(words[0]).manual(), all));
  return 0;
}

}  // namespace tutti::cli
