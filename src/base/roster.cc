#include "base/roster.h"

#include <fmt/format.h>

#include <utility>

#include "tutti/error.h"

namespace tutti {

std::vector<WorldRank> world_ranks(const std::vector<int>& ranks) {
  return {ranks.begin(), ranks.end()};
}

Roster Roster::of_one_host(int world_size, std::string name) {
  HostRanks all{std::move(name), {}, {}};
  for (int rank = 0; rank < world_size; ++rank) all.ranks.emplace_back(rank);
  return Roster({std::move(all)}, 0);
}

Roster::Roster(std::vector<HostRanks> hosts, int own_host)
    : hosts_(std::move(hosts)), own_host_(own_host) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "roster of the world: " + why);
  };
  if (own_host < 0 || own_host >= host_count())
    refuse(fmt::format("there is no host {} of {}", own_host, host_count()));
  std::size_t world_size = 0;
  for (const HostRanks& each : hosts_) {
    if (each.ranks.empty()) refuse(fmt::format("host {} has no ranks", each.name));
    if (!each.pids.empty() && each.pids.size() != each.ranks.size()) {
      refuse(fmt::format("host {} has {} ranks and {} processes", each.name, each.ranks.size(),
                         each.pids.size()));
    }
    world_size += each.ranks.size();
  }
  places_.resize(world_size);
  for (int host = 0; host < host_count(); ++host) {
    int slot = 0;
    for (const WorldRank rank : this->host(host).ranks) {
      // As many places as ranks: one that is there twice, or too high, means that one is missing.
      if (rank.value < 0 || rank.index() >= world_size)
        refuse(fmt::format("rank {} of {} does not exist", rank.value, world_size));
      Place& place = places_[rank.index()];
      if (place.host >= 0) {
        refuse(fmt::format("rank {} is on host {} and again on host {}", rank.value,
                           this->host(place.host).name, this->host(host).name));
      }
      place = {host, SlotIndex(slot++)};
    }
  }
}

}  // namespace tutti
