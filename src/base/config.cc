#include "base/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <numeric>
#include <utility>

#include "base/run_defaults.h"
#include "tutti/error.h"

extern char** environ;

namespace tutti {
namespace {

enum class Kind { flag, number, duration, bytes, text, word };

struct Row {
  Setting id;
  std::string_view name;
  Kind kind;
  std::string_view default_value;
  std::string_view words;  // of a Kind::word, separated by |
  bool uniform;
  std::string_view doc;
  std::array<std::string_view, 2> hints = {};  // variables of other libraries
};

constexpr Row kRows[] = {
    {Setting::agent, "agent", Kind::text, "", "", false,
     "abstract socket of the agent that started this rank; set by tutti run"},
    {Setting::algorithm, "algorithm", Kind::word, "auto",
     "auto|direct|exchange|doubling|binomial|pairwise|ring", true,
     "how native goes about operations between hosts that can go so; auto: by operation, bytes and "
     "ranks; the results have the same bits"},
    {Setting::backend, "backend", Kind::text, "automatic", "", true,
     "what moves the bytes, where the program does not say: a name, one for each kind of memory "
     "(cpu:gloo,cuda:nccl), or automatic: native, and nccl for device memory where every rank "
     "has a device of its own"},
    {Setting::backend_path, "backend_path", Kind::text, "", "", false,
     "folders with plugins of backends, separated by colons; searched after the library's own"},
    {Setting::check, "check", Kind::flag, "on", "", true,
     "whether ranks compare what they are about to do before a backend that does not check itself "
     "is called; off: mistakes of the program may hang or corrupt"},
    {Setting::close_timeout, "close_timeout", Kind::duration, "30s", "", false,
     "how long leaving a group waits for pending work and for the others"},
    {Setting::cuda_library, "cuda_library", Kind::text, "", "", false,
     "file of CUDA's driver library, for buffers in device memory; empty: libcuda.so.1"},
    {Setting::deadlock, "deadlock", Kind::word, "fail", "fail|warn|off", true,
     "when ranks wait for each other in a circle: fail their groups, write a line, or look for "
     "nothing; for programs in which a thread that has called nothing yet comes to help"},
    {Setting::deadlock_after, "deadlock_after", Kind::duration, "1s", "", true,
     "how long ranks must have waited for each other before that counts as a deadlock"},
    {Setting::failure_grace, "failure_grace", Kind::duration, "5s", "", false,
     "after a failure: what tutti run gives the other ranks, and the backend mpi a call that MPI "
     "does not let go, to end by themselves"},
    {Setting::host_id, "host_id", Kind::text, "", "", false,
     "ranks with equal ids try to share memory; empty: boot id and network namespace"},
    {Setting::init_method, "init_method", Kind::text, "env://", "", false,
     "where ranks meet, where the program does not say: env://, tcp://HOST:PORT, "
     "tcp://HOST:PORT?rank=R&world_size=N, or rank=auto for numbers in the order of arrival"},
    {Setting::log, "log", Kind::word, "warn", "error|warn|info|debug", false,
     "how much is written to standard error"},
    {Setting::mpi, "mpi", Kind::word, "auto", "auto|openmpi|mpich", true,
     "which MPI the backend mpi uses; auto: the one in the process, else the launcher's"},
    {Setting::mpi_mode, "mpi_mode", Kind::word, "blocking", "blocking|nonblocking", true,
     "how the backend mpi waits: in MPI's own blocking calls (fast; a rank lost inside ends the "
     "process) or testing (slower; deadlines and aborts hold)"},
    {Setting::name, "name", Kind::text, "", "", true, "name of the world in messages"},
    {Setting::nccl_library, "nccl_library", Kind::text, "", "", false,
     "file of NCCL's library, or a folder that holds it, for the backend nccl; empty: libnccl.so.2 "
     "of the program, else the system's"},
    {Setting::port_range, "port_range", Kind::text, "", "", false,
     "ports at which ranks listen for those of other hosts, like 30000-30100, one for each rank of "
     "a host, and by file:// another one for rank 0; empty: any that is free"},
    {Setting::rank, "rank", Kind::number, "-1", "", false,
     "rank of this process; -1: from the launcher"},
    {Setting::secret_file, "secret_file", Kind::text, "", "", false,
     "file with the secret that all ranks of the job know, of 16 to 4096 bytes and readable by its "
     "owner alone; needed between hosts where security is auth or integrity"},
    {Setting::security, "security", Kind::word, "opportunistic",
     "none|opportunistic|auth|integrity|encrypt", true,
     "how connections between hosts are protected: by what ranks say at the meeting (none), and "
     "not by who only listens there (opportunistic), by a secret (auth), at every frame "
     "(integrity); on one host native opens none; from auth on backends whose connections are "
     "their own are refused; encrypt is not in this version"},
    {Setting::segment_bytes, "segment_bytes", Kind::bytes, "0", "", true,
     "the pieces in which native moves large operations between hosts, up to 1MiB; 0: chosen"},
    {Setting::socket_ifname,
     "socket_ifname",
     Kind::text,
     "",
     "",
     false,
     "interface at which ranks listen for those of other hosts: beginnings of names (eth,ib), "
     "whole names (=eth0), what is not wanted (^docker), or networks (10.0.0.0/8); empty: the one "
     "toward the meeting point, with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME as hints",
     {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}},
    {Setting::staging_bytes, "staging_bytes", Kind::bytes, "64MiB", "", false,
     "how much pinned host memory a group keeps to move device memory through"},
    {Setting::stall_timeout, "stall_timeout", Kind::duration, "30s", "", true,
     "an operation fails when all ranks are in it and no byte has moved for this long"},
    {Setting::timeout, "timeout", Kind::duration, "30min", "", false,
     "how long an operation, or init, waits for a rank that has not come"},
    {Setting::world_size, "world_size", Kind::number, "-1", "", false,
     "number of ranks; -1: from the launcher"},
};

consteval bool rows_in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<std::size_t>(kRows[i].id) != i) return false;
  }
  return std::size(kRows) == kSettingCount;
}
static_assert(rows_in_order(), "one row per Setting, in the order of the enumerators");

const Row& row_of(Setting setting) { return kRows[static_cast<std::size_t>(setting)]; }

constexpr std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::flag:
      return "bool";
    case Kind::number:
      return "int";
    case Kind::duration:
      return "duration";
    case Kind::bytes:
      return "bytes";
    case Kind::text:
      return "text";
    case Kind::word:
      return "word";
  }
  return "?";
}

std::string variable_of(std::string_view name) {
  std::string variable = "TUTTI_";
  for (const char letter : name) {
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return variable;
}

[[noreturn]] void reject(std::string_view what, std::string_view text, std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: cannot read \"{}\": give {}", what, text, wanted));
}

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

/// Reads "1h30min" as a sum of numbers with units. False: not of that form, or too large.
template <std::size_t N>
bool parse_units(std::string_view text, const Unit (&units)[N], std::uint64_t limit,
                 std::uint64_t* total) {
  *total = 0;
  if (text.empty()) return false;
  while (!text.empty()) {
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{}) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    const std::size_t letters = std::min(text.find_first_of("0123456789"), text.size());
    const auto unit = std::find_if(std::begin(units), std::end(units), [&](const Unit& candidate) {
      return candidate.name == text.substr(0, letters);
    });
    if (unit == std::end(units)) return false;
    if (number > (limit - *total) / unit->factor) return false;
    *total += number * unit->factor;
    text.remove_prefix(letters);
  }
  return true;
}

std::int64_t parse_number(std::string_view what, std::string_view text) {
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || end != text.data() + text.size()) {
    reject(what, text, "a whole number");
  }
  return number;
}

std::int64_t parse_flag(std::string_view what, std::string_view text) {
  for (const std::string_view yes : {"1", "true", "on", "yes"}) {
    if (text == yes) return 1;
  }
  for (const std::string_view no : {"0", "false", "off", "no"}) {
    if (text == no) return 0;
  }
  reject(what, text, "1|true|on|yes or 0|false|off|no");
}

std::int64_t parse_word(std::string_view what, std::string_view text, std::string_view words) {
  std::int64_t index = 0;
  for (std::string_view rest = words; !rest.empty(); ++index) {
    const std::size_t end = std::min(rest.find('|'), rest.size());
    if (rest.substr(0, end) == text) return index;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  reject(what, text, fmt::format("one of {}", words));
}

std::int64_t parse(const Row& row, std::string_view what, std::string_view text) {
  switch (row.kind) {
    case Kind::flag:
      return parse_flag(what, text);
    case Kind::number:
      return parse_number(what, text);
    case Kind::duration:
      return parse_duration(what, text).count();
    case Kind::bytes:
      return static_cast<std::int64_t>(parse_bytes(what, text));
    case Kind::text:
      return 0;
    case Kind::word:
      return parse_word(what, text, row.words);
  }
  return 0;
}

/// Letters that are wrong, missing or too many; two that have changed places count once.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> former, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    former = std::exchange(last, row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = last[j] + (a[i] == b[j] ? 0 : 1);
      row[j + 1] = std::min({row[j] + 1, last[j + 1] + 1, replaced});
      const bool are_swapped = i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j];
      if (are_swapped) row[j + 1] = std::min(row[j + 1], former[j - 1] + 1);
    }
  }
  return row.back();
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

void take_hint(const Row& row, const Environment& environment, std::string* text,
               std::string* source) {
  for (const std::string_view hint : row.hints) {
    const auto entry = hint.empty() ? environment.end() : environment.find(hint);
    if (entry == environment.end() || entry->second.empty()) continue;
    *text = entry->second;
    *source = hint;
    return;
  }
}

void check_names(const Settings& options) {
  const std::vector<std::string> names = setting_names();
  for (const auto& [name, text] : options) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string guess = nearest(name, names);
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is not a setting{} {}", name,
                    guess.empty() ? "; the settings are"
                                  : fmt::format(", did you mean \"{}\"? The settings are", guess),
                    fmt::join(names, ", ")));
  }
}

}  // namespace

Environment read_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::chrono::nanoseconds parse_duration(std::string_view what, std::string_view text) {
  constexpr Unit kUnits[] = {{"ns", 1},
                             {"us", 1'000},
                             {"ms", 1'000'000},
                             {"s", 1'000'000'000},
                             {"min", 60'000'000'000},
                             {"h", 3'600'000'000'000}};
  if (text == "never") return std::chrono::nanoseconds::max();
  const bool plain = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  std::uint64_t total = 0;
  if (!parse_units(plain ? fmt::format("{}s", text) : text, kUnits,
                   std::numeric_limits<std::int64_t>::max(), &total)) {
    reject(what, text, "a duration like 30 (seconds), 30s, 500ms, 30min, 1h30min or never");
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(total));
}

std::size_t parse_bytes(std::string_view what, std::string_view text) {
  constexpr Unit kUnits[] = {
      {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", std::uint64_t{1} << 30}};
  const bool plain = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  std::uint64_t total = 0;
  if (!parse_units(plain ? fmt::format("{}B", text) : text, kUnits,
                   std::numeric_limits<std::int64_t>::max(), &total)) {
    reject(what, text, "a number of bytes like 65536, 64KiB or 1MiB");
  }
  return total;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // A letter of four may be wrong; of a shorter word something must be left.
  const std::size_t furthest = word.size() < 4 ? word.size() / 2 : word.size() / 4;
  std::size_t least = furthest + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      found = candidate;
    }
  }
  return found;
}

Config::Config(const Settings& options, const Environment& environment) {
  check_names(options);
  for (const Row& row : kRows) {
    Value& value = values_[static_cast<std::size_t>(row.id)];
    const std::string variable = variable_of(row.name);
    if (const auto option = options.find(row.name); option != options.end()) {
      value = {option->second, "option"};
    } else if (const auto entry = environment.find(variable);
               entry != environment.end() && !entry->second.empty()) {
      value = {entry->second, variable};
    } else {
      value = {std::string(row.default_value), "default"};
      take_hint(row, environment, &value.text, &value.source);
    }
    const std::string what =
        value.source == "option" ? fmt::format("setting \"{}\"", row.name) : value.source;
    value.number = parse(row, what, value.text);
  }
}

const Config::Value& Config::value(Setting setting, int kind) const {
  const Row& row = row_of(setting);
  if (row.kind != static_cast<Kind>(kind)) {
    throw Error(ErrorCode::kInternal,
                fmt::format("setting \"{}\" is a {}, asked for as a {}", row.name,
                            name_of(row.kind), name_of(static_cast<Kind>(kind))));
  }
  return values_[static_cast<std::size_t>(setting)];
}

bool Config::flag(Setting setting) const {
  return value(setting, static_cast<int>(Kind::flag)).number != 0;
}
std::int64_t Config::number(Setting setting) const {
  return value(setting, static_cast<int>(Kind::number)).number;
}
std::chrono::nanoseconds Config::duration(Setting setting) const {
  return std::chrono::nanoseconds(value(setting, static_cast<int>(Kind::duration)).number);
}
const std::string& Config::text(Setting setting) const {
  return values_[static_cast<std::size_t>(setting)].text;
}
const std::string& Config::source(Setting setting) const {
  return values_[static_cast<std::size_t>(setting)].source;
}
LogLevel Config::log_level() const {
  return static_cast<LogLevel>(value(Setting::log, static_cast<int>(Kind::word)).number);
}

std::vector<SettingInfo> Config::describe() const {
  std::vector<SettingInfo> infos;
  for (const Row& row : kRows) {
    const Value& value = values_[static_cast<std::size_t>(row.id)];
    infos.push_back({std::string(row.name),
                     std::string(row.kind == Kind::word ? row.words : name_of(row.kind)),
                     std::string(row.default_value), value.text, value.source, std::string(row.doc),
                     row.uniform});
  }
  return infos;
}

std::vector<SettingInfo> describe_settings(const Settings& overrides) {
  return Config(overrides, read_environment()).describe();
}

std::vector<std::string> unknown_variables(const Environment& environment) {
  std::vector<std::string> known;
  for (const Row& row : kRows) known.push_back(variable_of(row.name));
  known.push_back("TUTTI_SPAWN");  // of tutti::spawn to its ranks
  known.push_back(kRunDefaults);
  known.push_back(kRunAround);
  std::vector<std::string> lines;
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with("TUTTI_") || variable.starts_with("TUTTI_TEST_")) continue;
    if (std::find(known.begin(), known.end(), variable) != known.end()) continue;
    const std::string guess = nearest(variable, known);
    lines.push_back(fmt::format(
        "{} is not a setting of Tutti and is ignored{}", variable,
        guess.empty() ? "; `tutti env` lists them" : fmt::format("; did you mean {}?", guess)));
  }
  return lines;
}

LogLevel log_level_of_process() noexcept {
  try {
    const Environment environment = read_environment();
    const auto entry = environment.find(std::string_view("TUTTI_LOG"));
    if (entry == environment.end() || entry->second.empty()) return LogLevel::warn;
    return static_cast<LogLevel>(
        parse_word("TUTTI_LOG", entry->second, row_of(Setting::log).words));
  } catch (...) {  // init reports the value; lines before it go by the default
    return LogLevel::warn;
  }
}

}  // namespace tutti
