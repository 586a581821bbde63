// Which cores each rank of a host may use.
//
// A *core* is a physical one, with one or more *hardware threads*, which are what the kernel
// schedules on and numbers. A *domain* is a NUMA node: cores that are close to the same memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

enum class BindTo : int { none, core, numa };
enum class MapBy : int { slot, numa };

struct Core {
  std::vector<int> threads;  ///< the kernel's numbers, ascending
  int domain = 0;            ///< from 0
};

/// The cores that this process may use, in the order of the machine: neighbours are close.
struct Topology {
  std::vector<Core> cores;
};

/// Of this host, as hwloc sees it, less what this process may not use. Where Tutti was built
/// without hwloc, or nothing is to be bound, each hardware thread is a core, and all are in one
/// domain.
Topology topology_of_this_host(BindTo to);
/// Of hwloc's description, "numa:2 core:4 pu:2", less hardware threads that are not in `allowed`
/// (empty: all). For tests. Throws kInvalidArgument: it is none, or Tutti was built without hwloc.
Topology topology_of(const std::string& synthetic, const std::vector<int>& allowed = {});

/// "core". Throw kInvalidArgument, naming `word`.
BindTo parse_bind_to(std::string_view word, std::string_view text);
MapBy parse_map_by(std::string_view word, std::string_view text);

struct Binding {
  std::vector<int> threads;  ///< which the rank may use, ascending
  int core_count = 0;        ///< to which they belong
  int sharers = 1;           ///< ranks with the same ones, this one included
};

/// By local rank. By *slot*, neighbouring ranks get neighbouring cores; by *numa*, they are dealt
/// out to the domains in turn. A rank gets its core, the domain of it, or all there is.
///
/// Errors  kInvalidArgument: to be bound to cores, more ranks than cores, with the arithmetic.
std::vector<Binding> bind_ranks(const Topology& topology, int ranks, BindTo to, MapBy by);

}  // namespace tutti::launch
