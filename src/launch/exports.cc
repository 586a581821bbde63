#include "launch/exports.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string_view>

#include "base/run_defaults.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

/// What the launcher says to each rank: another value would be a lie.
constexpr std::array<std::string_view, 15> kOwn = {"RANK",
                                                   "WORLD_SIZE",
                                                   "LOCAL_RANK",
                                                   "LOCAL_WORLD_SIZE",
                                                   "GROUP_RANK",
                                                   "ROLE_NAME",
                                                   "ROLE_RANK",
                                                   "GROUP_WORLD_SIZE",
                                                   "ROLE_WORLD_SIZE",
                                                   "TORCHELASTIC_RUN_ID",
                                                   "TORCHELASTIC_RESTART_COUNT",
                                                   "TORCHELASTIC_MAX_RESTARTS",
                                                   "TORCHELASTIC_ERROR_FILE",
                                                   "TUTTI_AGENT",
                                                   kRunAround};

bool looks_secret(std::string name) {
  for (char& letter : name) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  constexpr std::string_view kMarks[] = {"SECRET",  "TOKEN",   "PASSWORD",   "PASSWD",
                                         "API_KEY", "PRIVATE", "ACCESS_KEY", "CREDENTIAL"};
  const bool names_file = name.ends_with("_FILE") || name.ends_with("_PATH");
  return !names_file && std::any_of(std::begin(kMarks), std::end(kMarks),
                                    [&](const auto mark) { return name.find(mark) != name.npos; });
}

bool is_set(const std::string& pattern, const Environment& environment) {
  return std::any_of(environment.begin(), environment.end(), [&](const auto& variable) {
    return ::fnmatch(pattern.c_str(), variable.first.c_str(), 0) == 0;
  });
}

}  // namespace

std::vector<std::string> export_variables(std::span<const std::string> words,
                                          Environment& environment) {
  std::vector<std::string> notes;
  std::map<std::string, std::string> given;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name.empty()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("-x {}: no name; write NAME, NAME=VALUE or a pattern, 'NCCL_*'", word));
    }
    if (equals == word.npos) {
      if (!is_set(name, environment)) {
        notes.push_back(
            fmt::format("tutti run: -x {}: not set here, and so not for the ranks", name));
      }
    } else {
      if (std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end()) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("-x {}: tutti run says that to each rank itself", word));
      }
      const std::string value = word.substr(equals + 1);
      const auto [known, is_new] = given.emplace(name, value);
      if (!is_new && known->second != value) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("-x gives {} two values, \"{}\" and \"{}\": give it one", name,
                                known->second, value));
      }
      environment[name] = value;
    }
    if (looks_secret(name)) {
      notes.push_back(fmt::format(
          "tutti run: -x {}: if that is a secret, put it into a file that only you may read: {}",
          name,
          equals == word.npos
              ? "all ranks get it in their environment, and so do their children"
              : "the command line of tutti run shows it to everybody on this host"));
    }
  }
  return notes;
}

}  // namespace tutti::launch
