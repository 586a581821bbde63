#include "plugins/mpi/communicators.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/of_rank.h"

namespace tutti::mpi {

namespace {

#if defined(OPEN_MPI)
constexpr const char* kTitle = "Open MPI";
constexpr const char* kLauncher = "mpirun.openmpi";
#else
constexpr const char* kTitle = "MPICH";
constexpr const char* kLauncher = "mpiexec.mpich";
#endif

/// Who one rank of the world is in MPI: "2 4 4711 17".
struct Place {
  int rank = 0;
  int world_size = 0;
  PageAddress page;
  int host = 0;
};

Place parse(const std::string& text, int rank, int host) {
  int numbers[4] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int& number : numbers) {
    const auto [stop, problem] = std::from_chars(at, end, number);
    if (problem != std::errc()) {
      throw Error(ErrorCode::kInternal, fmt::format("backend \"mpi\": rank {} says '{}' of itself",
                                                    rank, text.substr(0, 80)));
    }
    at = stop == end ? end : stop + 1;
  }
  return {numbers[0], numbers[1], {numbers[2], numbers[3]}, host};
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kUnsupported, fmt::format("backend \"mpi\": {}", text));
}

void check_places(const std::vector<Place>& places) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    for (std::size_t other = 0; other < rank; ++other) {
      if (place.rank != places[other].rank || place.world_size != places[other].world_size ||
          place.page.pid != places[other].page.pid || place.host != places[other].host)
        continue;
      refuse(
          fmt::format("ranks {} and {} are threads of one process (pid {}), which is one rank "
                      "of MPI; give each rank a process of its own",
                      other, rank, place.page.pid));
    }
  }
  const auto differs = std::find_if(places.begin(), places.end(), [&](const Place& place) {
    return place.world_size != static_cast<int>(places.size());
  });
  if (differs == places.end()) return;
  refuse(
      fmt::format("the world has {} ranks, but MPI_COMM_WORLD of its rank {} has {}: the "
                  "processes were not started as one job of {}; start them with: {} -n {} "
                  "PROGRAM",
                  places.size(), differs - places.begin(), differs->world_size, kTitle, kLauncher,
                  places.size()));
}

}  // namespace

std::shared_ptr<const RankMap> exchange_ranks(const GroupSpec& spec, Process& process) {
  if (!spec.store) return std::make_shared<RankMap>(1, process.rank());
  const auto budget = std::chrono::duration_cast<Store::Timeout>(
      std::min<std::chrono::nanoseconds>(spec.timeout, std::chrono::hours(24)));
  const auto key = [](std::size_t rank) { return fmt::format("mpi/{}", rank); };
  const PageAddress own = process.ending().own();
  spec.store->set(key(static_cast<std::size_t>(spec.rank)),
                  fmt::format("{} {} {} {}", process.rank(), process.world_size(), own.pid, own.fd),
                  budget);
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < spec.world_ranks.size(); ++rank) keys.push_back(key(rank));
  const std::vector<std::string> texts = spec.store->multi_get(keys, budget);
  std::vector<Place> places;
  std::vector<PageAddress> pages;  // of this host: elsewhere pids mean other processes
  auto map = std::make_shared<RankMap>();
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    places.push_back(parse(texts[rank], static_cast<int>(rank), spec.hosts[rank]));
    map->push_back(places.back().rank);
    if (places.back().host == of_rank(spec.hosts, spec.rank)) pages.push_back(places.back().page);
  }
  check_places(places);
  process.ending().watch(pages);
  return map;
}

Communicators::Communicators(const GroupSpec& spec, const RankMap& map, Process& process)
    : process_(process) {
  const Process::Inside inside(process, "new_group");
  std::vector<int> ranks;
  for (const int rank : spec.world_ranks) ranks.push_back(of_rank(map, rank));
  const auto lock = process.lock();
  MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members),
        "MPI_Group_incl");
  // Groups that are made at the same time must differ in it.
  const auto tag = static_cast<int>(spec.id % static_cast<std::uint64_t>(process.last_tag()));
  check(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &collectives_),
        "MPI_Comm_create_group");
  MPI_Group_free(&members);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(collectives_, MPI_ERRORS_RETURN);
  check(MPI_Comm_dup(collectives_, &messages_), "MPI_Comm_dup");
  process.count_open(1);
}

void Communicators::free() noexcept {
  const auto lock = process_.lock();
  if (messages_ != MPI_COMM_NULL) MPI_Comm_free(&messages_);
  if (collectives_ != MPI_COMM_NULL) MPI_Comm_free(&collectives_);
  process_.count_open(-1);
}

}  // namespace tutti::mpi
