// tutti env: every setting with its value and source, and who this process would be.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "base/config.h"
#include "command.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

constexpr const char* kHelp =
    "Examples:\n"
    "  tutti env                    what is set here, and why\n"
    "  tutti run -n 1 tutti env     the same as a rank would see it\n"
    "  tutti env --json             for programs\n"
    "\n"
    "Usage: tutti env [--json]\n"
    "\n"
    "A setting comes from an option of the program, else from its TUTTI_ variable, else from its\n"
    "default. Those marked * must be equal on all ranks.\n";

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string settings_table(const std::vector<SettingInfo>& settings) {
  std::size_t widest_name = 0, widest_value = 0;
  for (const SettingInfo& setting : settings) {
    widest_name = std::max(widest_name, setting.name.size());
    widest_value = std::max(widest_value, setting.value.size());
  }
  std::string text;
  for (const SettingInfo& setting : settings) {
    text += fmt::format("{:<{}} {} {:<{}}  {:<8} {} ({})\n", setting.name, widest_name,
                        setting.uniform ? '*' : ' ', setting.value, widest_value, setting.type,
                        setting.doc, setting.source);
  }
  return text;
}

nlohmann::ordered_json settings_json(const std::vector<SettingInfo>& settings) {
  auto rows = nlohmann::ordered_json::array();
  for (const SettingInfo& setting : settings) {
    rows.push_back({{"name", setting.name},
                    {"type", setting.type},
                    {"value", setting.value},
                    {"default", setting.default_value},
                    {"source", setting.source},
                    {"uniform", setting.uniform},
                    {"doc", setting.doc}});
  }
  return rows;
}

}  // namespace

int env_command(std::span<const std::string> words) {
  bool as_json = false;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") {
      print(kHelp);
      return 0;
    }
    if (word != "--json") {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("unknown option {}; the only one is --json", word));
    }
    as_json = true;
  }
  const std::vector<SettingInfo> settings = describe_settings();
  if (as_json) {
    print(nlohmann::ordered_json{{"settings", settings_json(settings)}}.dump(2) + "\n");
  } else {
    print(settings_table(settings));
    for (const std::string& line : unknown_variables(read_environment())) print(line + "\n");
  }
  return 0;
}

}  // namespace tutti::cli
