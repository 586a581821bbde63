// The configuration table: one row per setting, and the only reader of the process's environment.
//
// A *row* has a name, a type, a default and a text; its variable is TUTTI_ and the name in
// capitals. A *config* holds the value in force of every row, for one world: explicit option, else
// variable, else what another library's variable of the same sense says (*hint*), else default. To
// add a setting: one enumerator here, one row in config.cc.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/config.h"
#include "tutti/log.h"

namespace tutti {

/// All variables of a process, as a value: what identity and configuration are functions of.
using Environment = std::map<std::string, std::string, std::less<>>;
TUTTI_API Environment read_environment();  // plugins of backends use it, too

enum class Setting : std::uint8_t {
  agent,
  algorithm,
  backend,
  backend_path,
  check,
  close_timeout,
  cuda_library,
  deadlock,
  deadlock_after,
  failure_grace,
  host_id,
  init_method,
  log,
  mpi,
  mpi_mode,
  name,
  nccl_library,
  port_range,
  rank,
  secret_file,
  security,
  segment_bytes,
  socket_ifname,
  staging_bytes,
  stall_timeout,
  timeout,
  world_size,
};
inline constexpr std::size_t kSettingCount = 27;

/// The value of every setting, parsed and checked.
///
/// Errors  kInvalidArgument: an option that is no setting, a value that does not parse; the message
///         names both and what would be accepted. Asking for a row by the wrong type: kInternal.
class Config {
 public:
  Config(const Settings& options, const Environment& environment);

  bool flag(Setting setting) const;
  std::int64_t number(Setting setting) const;
  std::chrono::nanoseconds duration(Setting setting) const;  ///< nanoseconds::max(): never
  const std::string& text(Setting setting) const;            ///< as it was given
  const std::string& source(Setting setting) const;          ///< "TUTTI_TIMEOUT", "option"
  LogLevel log_level() const;

  /// Every row, for `tutti env` and for comparing the uniform ones at init.
  std::vector<SettingInfo> describe() const;

 private:
  struct Value {
    std::string text;
    std::string source;
    std::int64_t number = 0;
  };
  const Value& value(Setting setting, int kind) const;
  std::array<Value, kSettingCount> values_;
};

/// One line for each TUTTI_ variable that is no setting: "TUTTI_TIMEOT is not a setting of Tutti
/// and is ignored; did you mean TUTTI_TIMEOUT?".
std::vector<std::string> unknown_variables(const Environment& environment);

/// TUTTI_LOG of this process; warn where it is not set or not a level.
LogLevel log_level_of_process() noexcept;

/// "30s", "500ms", "1h30min", "250us", "10ns", "never"; a plain "30" is seconds. Throws
/// kInvalidArgument naming `what`. Plugins of backends use it, too.
TUTTI_API std::chrono::nanoseconds parse_duration(std::string_view what, std::string_view text);
/// "65536", "64KiB", "1MiB". Throws kInvalidArgument naming `what`.
std::size_t parse_bytes(std::string_view what, std::string_view text);
/// The candidate with the least edit distance to `word`; empty if all are too far.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tutti
