// Topologies as hwloc sees them.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "launch/binding.h"
#include "tutti/error.h"

#ifdef TUTTI_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace tutti::launch {
namespace {

std::vector<int> allowed_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> threads;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int thread = 0; thread < CPU_SETSIZE; ++thread) {
    if (CPU_ISSET(thread, &set)) threads.push_back(thread);
  }
  return threads;
}

Topology flat(const std::vector<int>& threads) {
  Topology topology;
  for (const int thread : threads) topology.cores.push_back({{thread}, 0});
  return topology;
}

#ifdef TUTTI_HAVE_HWLOC

class Machine {
 public:
  /// Of this host, or of a description.
  explicit Machine(const char* synthetic) {
    if (::hwloc_topology_init(&topology_) != 0) return;
    is_loaded_ =
        (synthetic == nullptr || ::hwloc_topology_set_synthetic(topology_, synthetic) == 0) &&
        ::hwloc_topology_load(topology_) == 0;
  }
  ~Machine() {
    if (topology_ != nullptr) ::hwloc_topology_destroy(topology_);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  bool is_loaded() const noexcept { return is_loaded_; }

  Topology cores(const std::vector<int>& allowed) const {
    Topology topology;
    const int count = ::hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE);
    for (int i = 0; i < count; ++i) {
      const hwloc_obj_t core =
          ::hwloc_get_obj_by_type(topology_, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
      Core found{.threads = {}, .domain = domain_of(core)};
      for (int thread = -1; (thread = ::hwloc_bitmap_next(core->cpuset, thread)) >= 0;) {
        const bool may_be_used =
            allowed.empty() || std::binary_search(allowed.begin(), allowed.end(), thread);
        if (may_be_used) found.threads.push_back(thread);
      }
      if (!found.threads.empty()) topology.cores.push_back(std::move(found));
    }
    return topology;
  }

 private:
  static int domain_of(hwloc_obj_t core) {
    return std::max(::hwloc_bitmap_first(core->nodeset), 0);
  }

  hwloc_topology_t topology_ = nullptr;
  bool is_loaded_ = false;
};

#endif

}  // namespace

Topology topology_of_this_host(BindTo to) {
  const std::vector<int> allowed = allowed_threads();
  if (to == BindTo::none) return flat(allowed);  // hwloc takes a while to look at a machine
#ifdef TUTTI_HAVE_HWLOC
  const Machine machine(nullptr);
  if (machine.is_loaded()) {
    Topology topology = machine.cores(allowed);
    if (!topology.cores.empty()) return topology;  // else /sys is missing, or shows another machine
  }
#endif
  return flat(allowed);
}

Topology topology_of(const std::string& synthetic, const std::vector<int>& allowed) {
#ifdef TUTTI_HAVE_HWLOC
  const Machine machine(synthetic.c_str());
  if (machine.is_loaded()) return machine.cores(allowed);
#else
  static_cast<void>(allowed);
#endif
  throw Error(ErrorCode::kInvalidArgument, fmt::format("no topology: {}", synthetic));
}

}  // namespace tutti::launch
