// Who is where: the ranks of a world, their hosts, and their slots on the board of each host.
//
// A process has three numbers, each of a type of its own, so that none is taken for another: its
// rank of the world, its slot on the board of its host, and its rank of a group, which is a plain
// int as in the public interface.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <vector>

namespace tutti {

struct WorldRank {
  int value = -1;

  constexpr WorldRank() noexcept = default;
  explicit constexpr WorldRank(int rank) noexcept : value(rank) {}
  constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const WorldRank&) const = default;
};

/// As they stand in the public interface.
std::vector<WorldRank> world_ranks(const std::vector<int>& ranks);

/// A place on the board of a host.
struct SlotIndex {
  int value = -1;

  constexpr SlotIndex() noexcept = default;
  explicit constexpr SlotIndex(int slot) noexcept : value(slot) {}
  constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const SlotIndex&) const = default;
};

/// The slots 0 to count - 1, for a loop.
class Slots {
 public:
  explicit constexpr Slots(int count) noexcept : count_(count) {}
  class Iterator {
   public:
    explicit constexpr Iterator(int slot) noexcept : slot_(slot) {}
    constexpr SlotIndex operator*() const noexcept { return SlotIndex(slot_); }
    constexpr Iterator& operator++() noexcept {
      ++slot_;
      return *this;
    }
    constexpr bool operator!=(const Iterator& other) const noexcept { return slot_ != other.slot_; }

   private:
    int slot_;
  };
  constexpr Iterator begin() const noexcept { return Iterator(0); }
  constexpr Iterator end() const noexcept { return Iterator(count_); }

 private:
  int count_;
};

/// As one host sees it. Immutable; any thread.
class Roster {
 public:
  /// A host and its ranks, by slot.
  struct HostRanks {
    std::string name = {};
    std::vector<WorldRank> ranks = {};
    std::vector<int> pids = {};  ///< of their processes, if known
  };
  /// All ranks on this host, each in the slot of its number.
  static Roster of_one_host(int world_size, std::string name);
  /// Throws kInvalidArgument: a host without ranks, a rank that is missing or there twice.
  Roster(std::vector<HostRanks> hosts, int own_host);

  int world_size() const noexcept { return static_cast<int>(places_.size()); }
  int host_count() const noexcept { return static_cast<int>(hosts_.size()); }
  int own_host() const noexcept { return own_host_; }
  int host_of(WorldRank rank) const noexcept { return places_[rank.index()].host; }
  const HostRanks& host(int host) const noexcept { return hosts_[static_cast<std::size_t>(host)]; }
  const HostRanks& own() const noexcept { return host(own_host_); }
  bool is_here(WorldRank rank) const noexcept { return host_of(rank) == own_host_; }
  /// On its own host, whichever that is.
  SlotIndex slot_of(WorldRank rank) const noexcept { return places_[rank.index()].slot; }
  /// Of its process, as that itself sees it; 0: not known.
  int pid_of(WorldRank rank) const noexcept {
    const std::vector<int>& pids = host(host_of(rank)).pids;
    return pids.empty() ? 0 : pids[slot_of(rank).index()];
  }
  /// In a slot of this host.
  WorldRank rank_in(SlotIndex slot) const noexcept { return own().ranks[slot.index()]; }

 private:
  struct Place {
    int host = -1;
    SlotIndex slot = {};
  };
  std::vector<HostRanks> hosts_;
  int own_host_ = 0;
  std::vector<Place> places_;  ///< by rank of the world
};

}  // namespace tutti
