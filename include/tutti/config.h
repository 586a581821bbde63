// The configuration table: every setting, its default, and where its value came from.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/types.h"

namespace tutti {

/// Settings given by the program, by row of the table: `{{"timeout", "60s"}}`. They hold for one
/// world only and win over TUTTI_* variables, which win over the launcher's environment.
using Settings = std::map<std::string, std::string, std::less<>>;

/// One row of the configuration table with the value in force, for `tutti env`.
struct SettingInfo {
  std::string name;           ///< "timeout"; the variable is TUTTI_TIMEOUT
  std::string type;           ///< "duration"
  std::string default_value;  ///< "30min"
  std::string value;          ///< in force
  std::string source;         ///< "default", "TUTTI_TIMEOUT", "option"
  std::string doc;
  bool uniform = false;  ///< must be equal on all ranks; compared at init
};

/// Every row with the value this process would use.
TUTTI_API std::vector<SettingInfo> describe_settings(const Settings& overrides = {});

}  // namespace tutti
