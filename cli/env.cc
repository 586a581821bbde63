// tutti env: every setting with its value and source, who this process would be, and how its host
// speaks with others.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/config.h"
#include "base/cores.h"
#include "base/rank_list.h"
#include "command.h"
#include "gpus.h"
#include "launch/gpus.h"
#include "native/schedule/plan.h"
#include "rendezvous/identity.h"
#include "rendezvous/reach.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

/// Who has put the secret itself where its file belongs must not find it in a log.
std::vector<SettingInfo> without_secret(std::vector<SettingInfo> settings) {
  for (SettingInfo& row : settings) {
    std::error_code ignored;
    if (row.name == "secret_file" && !row.value.empty() &&
        !std::filesystem::exists(row.value, ignored)) {
      row.value = "(not shown: no such file)";
    }
  }
  return settings;
}

std::string settings_table(const std::vector<SettingInfo>& settings) {
  std::size_t widest_name = 0, widest_value = 0;
  for (const SettingInfo& setting : settings) {
    widest_name = std::max(widest_name, setting.name.size());
    widest_value = std::max(widest_value, setting.value.size());
  }
  std::string text;
  for (const SettingInfo& setting : settings) {
    text += fmt::format("  {:<{}} {} {:<{}}  {} ({}, {})\n", setting.name, widest_name,
                        setting.uniform ? '*' : ' ', setting.value, widest_value, setting.doc,
                        setting.type, setting.source);
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

/// Who this process would be; an identity that contradicts itself is shown, not thrown.
struct Who {
  rendezvous::Identity identity;
  std::string error;
};

Who find_out(const Environment& environment) {
  try {
    return {rendezvous::identify(environment), ""};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

std::string identity_text(const Who& who) {
  if (!who.error.empty()) return fmt::format("identity: none, init would fail: {}\n", who.error);
  const rendezvous::Identity& identity = who.identity;
  std::string text = fmt::format("identity: rank {} of {}, from {}{}\n", identity.rank,
                                 identity.world_size, name_of(identity.launcher),
                                 identity.source.empty() ? "" : " (" + identity.source + ")");
  if (identity.local_rank >= 0) {
    text += fmt::format("  on this host: rank {} of {}\n", identity.local_rank,
                        identity.local_world_size);
  }
  if (!identity.agent.empty()) text += fmt::format("  agent: {}\n", identity.agent);
  if (!identity.master_addr.empty()) {
    text += fmt::format("  MASTER_ADDR {} MASTER_PORT {}\n", identity.master_addr,
                        identity.master_port);
  }
  for (const std::string& note : identity.notes) text += fmt::format("  {}\n", note);
  return text;
}

nlohmann::ordered_json identity_json(const Who& who) {
  if (!who.error.empty()) return {{"error", who.error}};
  const rendezvous::Identity& identity = who.identity;
  return {{"rank", identity.rank},
          {"world_size", identity.world_size},
          {"local_rank", identity.local_rank},
          {"local_world_size", identity.local_world_size},
          {"launcher", name_of(identity.launcher)},
          {"source", identity.source},
          {"agent", identity.agent},
          {"master_addr", identity.master_addr},
          {"master_port", identity.master_port},
          {"notes", identity.notes}};
}

const SettingInfo& row_of(const std::vector<SettingInfo>& settings, std::string_view name) {
  return *std::find_if(settings.begin(), settings.end(),
                       [&](const SettingInfo& row) { return row.name == name; });
}

/// "native (default)".
std::string value_of(const std::vector<SettingInfo>& settings, std::string_view name) {
  const SettingInfo& row = row_of(settings, name);
  return fmt::format("{} ({})", row.value, row.source);
}

/// What a level gives between hosts; SECURITY.md says more.
std::string_view protection_of(std::string_view level) {
  if (level == "none") return "keeps out of native's connections only who has not read the store";
  if (level == "opportunistic") {
    return "keeps out of native's connections who has only listened, and not who joins before the "
           "world is complete or changes what goes by";
  }
  if (level == "auth") return "keeps out everybody who does not know the secret; nothing is hidden";
  if (level == "integrity") {
    return "keeps out everybody who does not know the secret, and shows every change on the way; "
           "nothing is hidden";
  }
  return "is not in this version: init refuses it";
}

/// Which this process may use: its launcher, or whoever else started it, may have bound it.
std::vector<int> core_numbers(const Cores& cores) {
  std::vector<int> numbers;
  for (std::size_t core = 0; core < cores.mask.size() * 64; ++core)
    if ((cores.mask[core / 64] >> (core % 64) & 1) != 0) numbers.push_back(static_cast<int>(core));
  return numbers;
}

std::string host_text(const rendezvous::Reach& reach, const std::vector<SettingInfo>& settings) {
  const std::string address =
      reach.address.empty() ? "none" : fmt::format("{} of {}", reach.address, reach.interface);
  const Cores cores = own_cores();
  return fmt::format(
      "host: {}\n  address for other hosts: {}: {}\n  security: {}: {}\n  backend: {}\n"
      "  cores: {}, of which {} may be busy at a time\n",
      reach.host, address, reach.why, value_of(settings, "security"),
      protection_of(row_of(settings, "security").value), value_of(settings, "backend"),
      format_ranks(core_numbers(cores)), cores.count());
}

native::Table table_of(const std::vector<SettingInfo>& settings) {
  return native::make_table({{"algorithm", row_of(settings, "algorithm").value},
                             {"segment_bytes", row_of(settings, "segment_bytes").value}});
}

/// "3 and more ranks, from 64 KiB".
std::string scope_of(const native::Rule& rule) {
  const bool has_most = rule.most_ranks < native::Rule{}.most_ranks;
  std::string ranks = fmt::format("{} and more ranks", rule.least_ranks);
  if (has_most) ranks = fmt::format("{} to {} ranks", rule.least_ranks, rule.most_ranks);
  if (rule.least_ranks == rule.most_ranks) ranks = fmt::format("{} ranks", rule.least_ranks);
  if (rule.least_bytes > 0) ranks += fmt::format(", from {} KiB", rule.least_bytes / 1024);
  if (rule.most_bytes < native::Rule{}.most_bytes)
    ranks += fmt::format(", up to {} KiB", rule.most_bytes / 1024);
  return ranks;
}

/// How native goes about operations between hosts.
std::string algorithms_text(const std::vector<SettingInfo>& settings) {
  const native::Table table = table_of(settings);
  const std::size_t segment =
      table.wish.segment_bytes > 0 ? table.wish.segment_bytes : table.segment_bytes;
  std::string text = fmt::format("algorithms of native between hosts: {}; segments of {} bytes\n",
                                 value_of(settings, "algorithm"), segment);
  if (table.wish.algorithm) text += "  where an operation has that one; else\n";
  for (const native::Rule& rule : table.rules) {
    text += fmt::format("  {:<12} {:<9} {}\n", name_of(rule.op), name_of(rule.algorithm),
                        scope_of(rule));
  }
  return text +
         "  the first that fits and keeps the bits; broadcast else binomial, others direct\n";
}

nlohmann::ordered_json algorithms_json(const std::vector<SettingInfo>& settings) {
  const native::Table table = table_of(settings);
  auto rules = nlohmann::ordered_json::array();
  for (const native::Rule& rule : table.rules) {
    rules.push_back({{"op", name_of(rule.op)},
                     {"algorithm", name_of(rule.algorithm)},
                     {"least_ranks", rule.least_ranks},
                     {"most_ranks", rule.most_ranks},
                     {"least_bytes", rule.least_bytes},
                     {"most_bytes", rule.most_bytes}});
  }
  return {{"algorithm", row_of(settings, "algorithm").value},
          {"segment_bytes",
           table.wish.segment_bytes > 0 ? table.wish.segment_bytes : table.segment_bytes},
          {"rules", rules}};
}

nlohmann::ordered_json host_json(const rendezvous::Reach& reach,
                                 const std::vector<SettingInfo>& settings) {
  return {{"name", reach.host},
          {"interface", reach.interface},
          {"address", reach.address},
          {"why", reach.why},
          {"security", row_of(settings, "security").value},
          {"security_means", protection_of(row_of(settings, "security").value)},
          {"backend", row_of(settings, "backend").value},
          {"cores", core_numbers(own_cores())},
          {"usable_cores", own_cores().count()}};
}

nlohmann::ordered_json gpus_json(const GpuMap& map) {
  auto rows = nlohmann::ordered_json::array();
  for (const GpuFacts& gpu : map.gpus) {
    rows.push_back({{"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"bus_id", gpu.bus_id},
                    {"memory_bytes", gpu.memory_bytes},
                    {"numa_node", gpu.numa_node},
                    {"cores", gpu.cores},
                    {"nvlink_lanes", gpu.lanes}});
  }
  return {{"driver", map.driver}, {"cuda", map.cuda}, {"gpus", rows}, {"ways", map.ways}};
}

/// Of CUDA_VISIBLE_DEVICES, where that is set.
std::string visible_text(const Environment& environment) {
  const auto set = environment.find("CUDA_VISIBLE_DEVICES");
  if (set == environment.end()) return "";
  const launch::Gpus gpus = launch::visible_gpus(environment);
  return gpus.names.empty()
             ? fmt::format("programs with CUDA see none: {}\n", gpus.why)
             : fmt::format("programs with CUDA see {} of them (CUDA_VISIBLE_DEVICES={})\n",
                           gpus.names.size(), set->second);
}

int print_gpus(const Environment& environment, bool as_json) {
  const GpuMap map = read_gpus();
  print(as_json ? gpus_json(map).dump(2) + "\n" : gpus_text(map) + visible_text(environment));
  return 0;
}

}  // namespace

namespace {

std::vector<Word> variables() {
  std::vector<Word> words;
  for (const SettingInfo& setting : describe_settings()) {
    std::string name = "TUTTI_" + setting.name;
    std::transform(name.begin(), name.end(), name.begin(), ::toupper);
    const std::string is_default =
        setting.default_value.empty() ? "" : fmt::format(" (default {})", setting.default_value);
    words.push_back(
        {.names = {name},
         .value = setting.type,
         .values = 1,
         .text = setting.doc + is_default + (setting.uniform ? "; the same on all ranks" : "")});
  }
  return words;
}

}  // namespace

Manual env_manual() {
  return {.name = "tutti env",
          .summary = "print every setting, its value and its source, and who this process would be",
          .usage = "[--gpus] [--json]",
          .examples = {{"tutti env", "what is set here, and why"},
                       {"tutti run -n 1 tutti env", "the same as a rank would see it"},
                       {"tutti env --gpus", "the GPUs here, and what is between them"},
                       {"tutti env --json", "for programs"}},
          .paragraphs =
              {"A setting comes from an option of the program, else from its TUTTI_ variable, "
               "else from its default. Those marked * must be equal on all ranks."},
          .groups = {{"Options",
                      {{.names = {"--gpus"},
                        .text = "instead: each GPU, and the ways between them as nvidia-smi topo "
                                "-m names them"},
                       {.names = {"--json"}, .text = "all of it as one JSON object"},
                       {.names = {"-h", "--help"}, .text = "this text"}}}},
          .variables = variables()};
}

int env_command(std::span<const std::string> words) {
  const std::set<std::string> given = flags_given(env_manual(), words);
  if (given.contains("--help")) {
    print(help_text(env_manual()));
    return 0;
  }
  const Environment environment = read_environment();
  if (given.contains("--gpus")) return print_gpus(environment, given.contains("--json"));
  const std::vector<SettingInfo> settings = without_secret(describe_settings());
  const Who who = find_out(environment);
  const SettingInfo& interface = row_of(settings, "socket_ifname");
  const rendezvous::Reach reach =
      rendezvous::reach_of_this_host(who.identity, row_of(settings, "init_method").value,
                                     rendezvous::choice_of(interface.value, interface.source));
  const std::vector<std::string> warnings = unknown_variables(environment);
  if (given.contains("--json")) {
    const nlohmann::ordered_json all = {{"identity", identity_json(who)},
                                        {"host", host_json(reach, settings)},
                                        {"algorithms", algorithms_json(settings)},
                                        {"settings", settings_json(settings)},
                                        {"warnings", warnings}};
    print(all.dump(2) + "\n");
  } else {
    print(identity_text(who));
    print(host_text(reach, settings));
    print(algorithms_text(settings));
    print("settings (* must be equal on all ranks):\n" + settings_table(settings));
    for (const std::string& line : warnings) print(line + "\n");
  }
  return 0;
}

}  // namespace tutti::cli
