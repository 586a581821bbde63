#include "launch/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/run_defaults.h"
#include "rendezvous/identity.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

/// What an outer torchrun tells its worker; others of that prefix are settings, of the user.
constexpr std::string_view kOfOuterTorchrun[] = {
    "TORCHELASTIC_RUN_ID",          "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",    "TORCHELASTIC_SIGNALS_TO_HANDLE"};

}  // namespace

Placement place_on_host(const std::vector<int>& ranks, const std::string& host,
                        const std::vector<Binding>& bindings) {
  Placement placement{.ranks = {}, .world_size = static_cast<int>(ranks.size())};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    placement.ranks.push_back({ranks[i], static_cast<int>(i), host, bindings.at(i), {}});
  }
  return placement;
}

ThreadDefaults thread_defaults(const Environment& inherited, int cores, int sharers) {
  ThreadDefaults defaults;
  const auto add = [&](const char* name, const std::string& value) {
    if (inherited.contains(name)) return;
    defaults.added[name] = value;
    defaults.notice += fmt::format("{}{}={}", defaults.notice.empty() ? "" : " ", name, value);
  };
  add("OMP_NUM_THREADS", std::to_string(std::max(1, cores / sharers)));
  // Spinning OpenMP threads of several ranks steal each other's cores.
  add("OMP_WAIT_POLICY", "PASSIVE");
  if (!defaults.notice.empty()) {
    defaults.notice = fmt::format(
        "tutti: {} for every rank ({} core{}, {} rank{}); set to override", defaults.notice, cores,
        cores == 1 ? "" : "s", sharers, sharers == 1 ? "" : "s");
  }
  return defaults;
}

int master_port(const Environment& inherited) {
  const auto set = inherited.find("MASTER_PORT");
  if (set == inherited.end() || set->second.empty() || inherited.contains("TORCHELASTIC_RUN_ID"))
    return 0;
  const std::string& text = set->second;
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port < 0 || port > 65535) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("MASTER_PORT={}: no port; give one of 1 to 65535, or leave it out", text));
  }
  return port;
}

Environment rank_variables(const Environment& inherited, const Placement& placement, int local_rank,
                           const JobFacts& job) {
  const Place& place = placement.ranks.at(static_cast<std::size_t>(local_rank));
  Environment variables = inherited;
  // What an outer torchrun told its worker would name another job: its run, its restarts, its
  // store, and the file in which it looks for this worker's error.
  for (const std::string_view name : kOfOuterTorchrun) variables.erase(std::string(name));
  const std::string world = std::to_string(placement.world_size);
  const std::string global_rank = std::to_string(place.rank);
  variables["RANK"] = global_rank;
  variables["WORLD_SIZE"] = world;
  variables["LOCAL_RANK"] = std::to_string(place.local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(placement.ranks.size());
  variables["GROUP_RANK"] = std::to_string(placement.host_index);
  variables["GROUP_WORLD_SIZE"] = std::to_string(placement.host_count);
  variables["ROLE_NAME"] = job.role;
  variables["ROLE_RANK"] = global_rank;
  variables["ROLE_WORLD_SIZE"] = world;
  variables["MASTER_ADDR"] = job.master_address;
  variables["MASTER_PORT"] = std::to_string(job.master_port);
  variables["TORCHELASTIC_RUN_ID"] = job.run_id;
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(job.restart_count);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(job.max_restarts);
  if (!job.error_file.empty()) variables["TORCHELASTIC_ERROR_FILE"] = job.error_file;
  variables["TUTTI_AGENT"] = job.agent;
  variables[kRunAround] = rendezvous::launchers_around(inherited);
  if (!place.gpus.empty()) variables["CUDA_VISIBLE_DEVICES"] = place.gpus;
  return variables;
}

}  // namespace tutti::launch
