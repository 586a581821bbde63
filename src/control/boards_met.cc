#include "control/boards_met.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/odd_ranks.h"
#include "base/rank_list.h"
#include "control/board/board.h"
#include "control/board/owner.h"
#include "control/memory/hand_over.h"
#include "net/interfaces.h"
#include "net/process_info.h"
#include "net/shake_hands.h"
#include "net/system_error.h"
#include "net/tcp.h"
#include "store/watch.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

std::string read_line(const char* path) {
  errno = 0;
  std::ifstream file(path);
  // Where there is no such file all of a host go without.
  if (errno == EMFILE || errno == ENFILE)
    throw net::system_error(fmt::format("cannot read {}", path), errno);
  std::string line;
  std::getline(file, line);
  return line;
}

/// What one rank tells the others before they share anything.
struct Introduction {
  std::string identity;  ///< the same for ranks of one host
  std::string network;   ///< the same for processes that share a loopback address
  std::string host_name;
  bool agent_board = false;  ///< has one from the agent, with its slot unused
  int pid = 0;
};

std::string encode(const Introduction& introduction) {
  return introduction.identity + "\n" + introduction.network + "\n" + introduction.host_name +
         "\n" + (introduction.agent_board ? "1\n" : "0\n") + std::to_string(introduction.pid);
}

[[noreturn]] void throw_unreadable(int rank) {
  throw Error(ErrorCode::kInternal,
              fmt::format("rank {} introduced itself in a way this version cannot read", rank));
}

Introduction decode_introduction(int rank, const std::string& text) {
  std::istringstream lines(text);
  Introduction read;
  int agent_board = 0;
  std::getline(lines, read.identity);
  std::getline(lines, read.network);
  std::getline(lines, read.host_name);
  lines >> agent_board >> read.pid;
  if (!lines) throw_unreadable(rank);
  read.agent_board = agent_board == 1;
  return read;
}

/// Every rank says something and hears what all say, by rank.
std::vector<std::string> tell_all(const HostOptions& options, const char* what,
                                  const std::string& own, Deadline& deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank)
    keys.push_back(fmt::format("{}/{}", what, rank));
  options.store->set(keys[static_cast<std::size_t>(options.rank)], own,
                     store::timeout_of(deadline));
  const auto late = [&](std::span<const std::size_t> ranks) {
    return not_gone_on(std::vector<int>(ranks.begin(), ranks.end()), deadline);
  };
  return store::get_watching(*options.store, keys, deadline, options.look, late);
}

/// Ranks that say they share a host must, or they could not hand each other memory.
void check_hosts(const std::vector<Introduction>& all) {
  std::map<std::string_view, std::size_t> lowest;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto first = lowest.try_emplace(all[rank].identity, rank).first->second;
    if (all[first].network == all[rank].network) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("ranks {} (on {}) and {} (on {}) have the same TUTTI_HOST_ID, \"{}\", "
                    "as if they shared a host, and do not: leave it out, or give the ranks "
                    "of each host (or network name space) their own",
                    first, all[first].host_name, rank, all[rank].host_name, all[rank].identity),
        {.culprits = {static_cast<int>(first), static_cast<int>(rank)}});
  }
}

net::Fd duplicate(int fd) {
  net::Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw net::system_error("status board: cannot duplicate its descriptor", errno);
  return copy;
}

/// Hosts in the order of their lowest ranks.
Roster roster_of(const std::vector<Introduction>& all, int own_rank) {
  std::vector<Roster::HostRanks> hosts;
  std::map<std::string, std::size_t> places;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto [place, is_new] = places.emplace(all[rank].identity, hosts.size());
    if (is_new) hosts.push_back({.name = all[rank].host_name});
    hosts[place->second].ranks.emplace_back(static_cast<int>(rank));
    hosts[place->second].pids.push_back(all[rank].pid);
  }
  const std::size_t own = places.at(all[static_cast<std::size_t>(own_rank)].identity);
  return {std::move(hosts), static_cast<int>(own)};
}

/// Of the ranks of this host; the lowest makes it.
net::Fd share_board(const HostOptions& options, const Roster& roster, Deadline& deadline) {
  const auto count = static_cast<int>(roster.own().ranks.size());
  const int slot = roster.slot_of(WorldRank(options.rank)).value;
  net::Fd memory;
  if (slot == 0) memory = Board::make(count, options.world_size);
  if (count == 1) return memory;
  // The first host's rank 0 is the world's, as where there is one host.
  const std::string prefix =
      roster.host_count() == 1 ? "board" : fmt::format("board/{}", roster.own_host());
  std::vector<int> names;
  for (const WorldRank rank : roster.own().ranks) names.push_back(rank.value);
  std::vector<net::Fd> boards = hand_over(*options.store, prefix, slot, count, memory.get(),
                                          deadline, {.look = &options.look}, names);
  if (!boards.front()) {
    throw Error(ErrorCode::kInternal, fmt::format("status board: rank {} handed over no board",
                                                  roster.rank_in(SlotIndex(0)).value));
  }
  return std::move(boards.front());
}

/// Throws who differs from most in what all ranks must have alike.
class PlateCheck {
 public:
  PlateCheck(const HostOptions& options, const Roster& roster) noexcept
      : own_(options.rank), roster_(roster) {}

  void check_levels(const std::vector<DoorPlate>& plates) const {
    std::vector<std::string> levels;
    for (const DoorPlate& each : plates) levels.emplace_back(net::name_of(each.level));
    check(levels, ErrorCode::kInvalidArgument, [&](int one, int other) {
      return fmt::format(
          "{} has security={}, {} has security={}: give all ranks the same "
          "TUTTI_SECURITY",
          person(one), of_rank(levels, one), person(other), of_rank(levels, other));
    });
  }
  /// Whether a secret is the own one is all that a plate shows.
  void check_secrets(const std::vector<DoorPlate>& plates, const std::string& secret_file) const {
    std::vector<std::string> secrets;
    for (const DoorPlate& each : plates)
      secrets.emplace_back(each.proves_secret ? "the own one" : "another");
    check(secrets, ErrorCode::kUnauthenticated, [&](int one, int other) {
      return fmt::format("{} and {} do not have the same secret: {}", person(one), person(other),
                         net::advice_on_secrets(person(own_), secret_file));
    });
  }
  /// A loopback address is of one network name space alone.
  void check_addresses(const std::vector<DoorPlate>& plates,
                       const std::vector<Introduction>& introductions) const {
    std::vector<std::string> networks;
    for (const DoorPlate& each : plates)
      networks.push_back(each.address.is_loopback() ? introductions[networks.size()].network : "");
    check(networks, ErrorCode::kInvalidArgument, [&](int one, int other) {
      return fmt::format(
          "{} listens at {}, {} at {}: a loopback address is of one host alone. Give "
          "all ranks an address of the network to meet at, or choose its interface "
          "with TUTTI_SOCKET_IFNAME",
          person(one), of_rank(plates, one).address.host(), person(other),
          of_rank(plates, other).address.host());
    });
  }

 private:
  template <class Each>
  static const Each& of_rank(const std::vector<Each>& all, int rank) noexcept {
    return all[static_cast<std::size_t>(rank)];
  }
  std::string person(int of) const {
    return fmt::format("rank {} on {}", of, roster_.host(roster_.host_of(WorldRank(of))).name);
  }
  template <class Words>
  void check(const std::vector<std::string>& said, ErrorCode code, const Words& words) const {
    OddRanks found = odd_ranks(said);
    if (found.odd.empty()) return;
    const std::string text = words(found.usual, found.odd.front());
    throw Error(code, text, {.rank = own_, .culprits = std::move(found.odd)});
  }

  const int own_;
  const Roster& roster_;
};

std::vector<DoorPlate> read_plates(const HostOptions& options, const Roster& roster,
                                   const std::vector<Introduction>& introductions,
                                   const std::vector<std::string>& all,
                                   const net::Security& security) {
  std::vector<DoorPlate> plates;
  for (const std::string& text : all) {
    const auto rank = static_cast<int>(plates.size());
    const auto plate = decode_plate(text, WorldRank(rank), security);
    if (!plate) throw_unreadable(rank);
    plates.push_back(*plate);
  }
  const PlateCheck check(options, roster);
  check.check_levels(plates);
  check.check_secrets(plates, security.secret_file);
  check.check_addresses(plates, introductions);
  return plates;
}

/// Where the meeting point does not say which interface leads to the others: the one of the default
/// route, else the first.
std::string default_address(const std::vector<Introduction>& all, const Introduction& own) {
  const bool is_one_network = std::all_of(all.begin(), all.end(), [&](const Introduction& each) {
    return each.network == own.network;
  });
  if (is_one_network) return "127.0.0.1";
  const auto anywhere = net::TcpAddress::parse("192.0.2.1:9");  // of documentation: nobody's
  return net::choose_address("the way to other hosts (setting socket_ifname)", "^lo",
                             net::interfaces_of_this_host(), net::address_toward(*anywhere))
      .host();
}

net::Fd open_door(const HostOptions& options, const std::string& host) {
  const bool is_v6 = host.find(':') != std::string::npos;
  const auto address = net::TcpAddress::parse(is_v6 ? fmt::format("[{}]:0", host) : host + ":0");
  if (!address) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is no address of this host", host),
                {.rank = options.rank});
  }
  return net::listen_in_range(*address, options.ports);
}

std::unique_ptr<RemoteHosts> open_doors(const HostOptions& options, const net::Fd& memory,
                                        const Roster& roster,
                                        const std::vector<Introduction>& introductions,
                                        Deadline& deadline) {
  const Introduction& self = introductions[static_cast<std::size_t>(options.rank)];
  // As the relay of its host it has a line to each rank of the others; then two lanes of data.
  const auto far = static_cast<std::size_t>(roster.world_size()) - roster.own().ranks.size();
  const std::size_t own_use = 8, lines = far + static_cast<std::size_t>(roster.host_count());
  net::require_descriptors(
      own_use + lines, own_use + lines + 2 * far,
      fmt::format("a world of {} ranks on {} hosts", roster.world_size(), roster.host_count()));
  const net::Security security = options.security ? options.security() : net::Security{};
  const net::KeyPair keys = net::KeyPair::make();
  net::Fd listener = open_door(
      options, options.address.empty() ? default_address(introductions, self) : options.address);
  const DoorPlate own{.address = net::TcpAddress::local(listener.get()),
                      .level = security.level,
                      .public_key = keys.public_key()};
  const std::vector<std::string> all =
      tell_all(options, "door", encode(own, WorldRank(options.rank), security), deadline);
  std::vector<DoorPlate> plates = read_plates(options, roster, introductions, all, security);
  return std::make_unique<RemoteHosts>(RemoteOptions{.memory = memory.duplicate(),
                                                     .roster = roster,
                                                     .rank = WorldRank(options.rank),
                                                     .listener = std::move(listener),
                                                     .plates = std::move(plates),
                                                     .keys = DoorKeys(security, keys, all)});
}

/// A board that is there already, with all ranks on this host unless the options say otherwise.
BoardsMet at_board(const HostOptions& options, net::Fd memory) {
  const int world_size = Board(memory).world_size();
  return {std::move(memory),
          options.roster ? *options.roster : Roster::of_one_host(world_size, net::own_host_name()),
          nullptr};
}

/// Slots on boards of agents that worlds of this process meet to take; each is one world's at a
/// time, which lets go of it once it has taken it or has another board.
class SlotClaims {
 public:
  /// Null: another world's.
  std::shared_ptr<const void> claim(const net::Fd& memory, SlotIndex slot) {
    const Key key = key_of(memory, slot);
    const Board board(memory);
    {
      const std::lock_guard lock(mutex_);
      if (!is_elsewhere_.emplace(key, false).second) return nullptr;
    }
    return {this, [this, key, slot, board](const void*) {
              const std::lock_guard lock(mutex_);
              if (is_elsewhere_.extract(key).mapped()) control::show_elsewhere(board, slot);
            }};
  }
  /// At once, or when the world that meets to take the slot lets go of it and has not taken it.
  void show_elsewhere(const net::Fd& memory, SlotIndex slot) {
    const std::lock_guard lock(mutex_);
    const auto claimed = is_elsewhere_.find(key_of(memory, slot));
    if (claimed != is_elsewhere_.end()) claimed->second = true;
    if (claimed == is_elsewhere_.end()) control::show_elsewhere(Board(memory), slot);
  }

 private:
  using Key = std::pair<ino_t, int>;
  static Key key_of(const net::Fd& memory, SlotIndex slot) noexcept {
    struct stat status {};
    if (::fstat(memory.get(), &status) != 0) status.st_ino = 0;
    return {status.st_ino, slot.value};
  }

  std::mutex mutex_;
  std::map<Key, bool> is_elsewhere_;  ///< of each claimed slot: another world is shown there after
};

SlotClaims& slot_claims() {
  static auto& claims = *new SlotClaims;  // outlives every world
  return claims;
}

std::string network_identity() {
  struct stat status {};
  if (stat("/proc/self/ns/net", &status) != 0) status.st_ino = 0;
  return fmt::format("{}/{}", read_line("/proc/sys/kernel/random/boot_id"), status.st_ino);
}

}  // namespace

std::string host_identity(const std::string& host_id) {
  const auto is_no_text = [](unsigned char letter) { return letter < ' ' || letter == 127; };
  if (std::any_of(host_id.begin(), host_id.end(), is_no_text)) {
    throw Error(ErrorCode::kInvalidArgument,
                "TUTTI_HOST_ID has a line break or another control character: give a word, the "
                "same to all ranks of a host");
  }
  return host_id.empty() ? network_identity() : host_id;
}

/// The agent's board shows one world per process; further worlds make boards of their own. All
/// ranks must choose alike, so all must have found their slot unused.
BoardsMet meet_at_boards(const HostOptions& options, Deadline& deadline) {
  if (options.store == nullptr && options.board_fd >= 0)
    return at_board(options, duplicate(options.board_fd));
  if (options.world_size == 1 && options.board_fd < 0) return at_board(options, Board::make(1));
  Introduction own{host_identity(options.host_id), network_identity(), net::own_host_name(), false,
                   ::getpid()};
  net::Fd memory;
  std::shared_ptr<const void> agents_slot;
  if (options.board_fd >= 0) {
    memory = duplicate(options.board_fd);
    const Board board(memory);
    const SlotIndex slot(options.rank);
    if (options.world_size == board.world_size()) agents_slot = slot_claims().claim(memory, slot);
    own.agent_board = agents_slot != nullptr && board.state_of(slot) == RankState::absent;
  }
  std::vector<Introduction> all;
  for (const std::string& text : tell_all(options, "host", encode(own), deadline))
    all.push_back(decode_introduction(static_cast<int>(all.size()), text));
  check_hosts(all);
  const Roster roster = roster_of(all, options.rank);
  const auto has_board = [](const Introduction& each) { return each.agent_board; };
  const bool at_agents = roster.host_count() == 1 && std::all_of(all.begin(), all.end(), has_board);
  if (!at_agents) {
    agents_slot.reset();
    memory = share_board(options, roster, deadline);
  }
  BoardsMet met{std::move(memory), roster, nullptr, std::move(agents_slot)};
  if (roster.host_count() > 1) met.remote = open_doors(options, met.memory, roster, all, deadline);
  return met;
}

void await_hosts(const HostOptions& options, const Roster& roster, Deadline& deadline) {
  std::vector<std::string> keys;
  for (int host = 0; host < roster.host_count(); ++host)
    keys.push_back(fmt::format("host_is_there/{}", host));
  if (roster.slot_of(WorldRank(options.rank)) == SlotIndex(0)) {
    options.store->set(keys[static_cast<std::size_t>(roster.own_host())], "1",
                       store::timeout_of(deadline));
  }
  const auto late = [&](std::span<const std::size_t> hosts) {
    std::vector<int> ranks;
    for (const std::size_t host : hosts)
      ranks.push_back(roster.host(static_cast<int>(host)).ranks.front().value);
    return not_gone_on(ranks, deadline);
  };
  store::get_watching(*options.store, keys, deadline, options.look, late);
}

void show_elsewhere(const HostOptions& options) {
  if (options.store == nullptr || options.board_fd < 0) return;
  const net::Fd agents = duplicate(options.board_fd);
  if (Board(agents).world_size() != options.world_size) return;
  slot_claims().show_elsewhere(agents, SlotIndex(options.rank));
}

Error not_gone_on(std::span<const int> ranks, const Deadline& deadline) {
  return Error(
      ErrorCode::kTimeout,
      fmt::format("init: {} came to the meeting and did not go on within {:.3g} s: "
                  "stopped, or very slow. A longer timeout is given by "
                  "InitOptions::timeout or TUTTI_TIMEOUT",
                  ranks_text(ranks), std::chrono::duration<double>(deadline.budget()).count()),
      {.culprits = {ranks.begin(), ranks.end()}});
}

}  // namespace tutti::control
