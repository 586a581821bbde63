#include "launch/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "tutti/error.h"

namespace tutti::launch {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

/// The numbers of all cores, each domain's in one list.
std::vector<std::vector<std::size_t>> cores_by_domain(const Topology& topology) {
  std::set<int> domains;
  for (const Core& core : topology.cores) domains.insert(core.domain);
  std::vector<std::vector<std::size_t>> by_domain(domains.size());
  for (std::size_t i = 0; i < topology.cores.size(); ++i) {
    const auto place = std::distance(domains.begin(), domains.find(topology.cores[i].domain));
    by_domain[static_cast<std::size_t>(place)].push_back(i);
  }
  return by_domain;
}

/// The cores in the order in which ranks get them.
std::vector<std::size_t> order_of(const Topology& topology, MapBy by) {
  std::vector<std::size_t> order;
  const auto by_domain = cores_by_domain(topology);
  if (by == MapBy::slot) {
    for (std::size_t i = 0; i < topology.cores.size(); ++i) order.push_back(i);
    return order;
  }
  for (std::size_t turn = 0; order.size() < topology.cores.size(); ++turn) {
    for (const auto& cores : by_domain) {
      if (turn < cores.size()) order.push_back(cores[turn]);
    }
  }
  return order;
}

/// Where rank `rank` of `ranks` stands in the order of `places`: with fewer ranks than places each
/// has one; with more, neighbours share by slot, and turns go round by domain.
std::size_t place_of(int rank, int ranks, std::size_t places, MapBy by) {
  const auto number = static_cast<std::size_t>(rank), count = static_cast<std::size_t>(ranks);
  if (count <= places) return number;
  return by == MapBy::slot ? number * places / count : number % places;
}

Binding binding_of(const Topology& topology, const std::vector<std::size_t>& cores) {
  Binding binding{.threads = {}, .core_count = static_cast<int>(cores.size())};
  for (const std::size_t core : cores) {
    const std::vector<int>& threads = topology.cores[core].threads;
    binding.threads.insert(binding.threads.end(), threads.begin(), threads.end());
  }
  std::sort(binding.threads.begin(), binding.threads.end());
  return binding;
}

std::vector<std::size_t> cores_for(const Topology& topology, std::size_t core, BindTo to) {
  std::vector<std::size_t> cores;
  for (std::size_t i = 0; i < topology.cores.size(); ++i) {
    const bool is_taken =
        to == BindTo::none || i == core ||
        (to == BindTo::numa && topology.cores[i].domain == topology.cores[core].domain);
    if (is_taken) cores.push_back(i);
  }
  return cores;
}

}  // namespace

BindTo parse_bind_to(std::string_view word, std::string_view text) {
  if (text == "none") return BindTo::none;
  if (text == "core") return BindTo::core;
  if (text == "numa") return BindTo::numa;
  if (text == "hwthread") {
    refuse(fmt::format("{} {}: a rank gets a core with all its hardware threads: give core", word,
                       text));
  }
  if (text.starts_with("core:")) {
    refuse(
        fmt::format("{} {}: a core is for one rank: give core; more ranks than cores are "
                    "bound to numa or none",
                    word, text));
  }
  refuse(fmt::format("{} {}: give none, core or numa", word, text));
}

MapBy parse_map_by(std::string_view word, std::string_view text) {
  if (text == "slot" || text == "core" || text == "node") return MapBy::slot;
  if (text == "numa") return MapBy::numa;
  const std::size_t colon = text.find(':');
  const std::string_view unit = text.substr(0, colon);
  if (colon != text.npos &&
      (unit == "slot" || unit == "core" || unit == "node" || unit == "numa")) {
    refuse(
        fmt::format("{} {}: give {} alone; --bind-to core gives each rank a core, "
                    "--oversubscribe allows more ranks than slots",
                    word, text, unit));
  }
  refuse(fmt::format("{} {}: give slot, core, node or numa", word, text));
}

std::vector<Binding> bind_ranks(const Topology& topology, int ranks, BindTo to, MapBy by) {
  const std::size_t places = topology.cores.size();
  if (to == BindTo::core && static_cast<std::size_t>(ranks) > places) {
    refuse(
        fmt::format("--bind-to core: {} ranks, and {} core{} that may be used here; bind to numa "
                    "or none, or start fewer",
                    ranks, places, places == 1 ? "" : "s"));
  }
  const std::vector<std::size_t> order = order_of(topology, by);
  std::vector<Binding> bindings;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t core = order[place_of(rank, ranks, places, by)];
    bindings.push_back(binding_of(topology, cores_for(topology, core, to)));
  }
  for (Binding& binding : bindings) {
    binding.sharers =
        static_cast<int>(std::count_if(bindings.begin(), bindings.end(), [&](const Binding& other) {
          return other.threads == binding.threads;
        }));
  }
  return bindings;
}

}  // namespace tutti::launch
