// What happens to a world of hosts that vote: out of a seed, or out of a file.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::simulate::votes {

using Duration = std::chrono::nanoseconds;

enum class FaultKind : std::uint8_t {
  die,        ///< a process
  stop,       ///< the same, and goes on later
  lose_host,  ///< all its processes
  stop_host,  ///< the same, and they go on later
  leave,      ///< all ranks of a host leave in order
  cut,        ///< a link, both ways
  one_way,    ///< from `host` to `other` only
  divide,     ///< all links between hosts in `side` and others; but for those of `other`, if not -1
};
inline constexpr std::size_t kFaultKinds = 8;
const char* name_of(FaultKind kind) noexcept;

struct Fault {
  FaultKind kind = FaultKind::die;
  int host = 0;
  int other = 0;              ///< of cut, one_way; the process of die, stop: -1 the relay
  std::uint32_t side = 0;     ///< of divide: bit by host
  Duration at{0};             ///< since the beginning
  std::uint64_t effects = 0;  ///< so many effects of the host's relay later
  Duration lasts = kForEver;  ///< of stops and cuts
  static constexpr Duration kForEver = std::chrono::hours(1);
};

/// A verdict that ranks of some hosts want at the same time, each its own.
struct Wanted {
  std::vector<int> hosts;
  Duration at{0};
};

struct Plan {
  std::uint64_t seed = 0;
  std::vector<int> processes;  ///< by host
  std::vector<Wanted> wanted;  ///< the failure of one group each
  std::vector<Fault> faults;
  Duration usual_delay{0};    ///< of a frame, at most
  Duration longest_delay{0};  ///< of one in 16
  std::size_t kept = 256;     ///< entries that a host keeps

  int hosts() const noexcept { return static_cast<int>(processes.size()); }
};

/// `hosts`: 0 for 2 to 8.
Plan make_plan(std::uint64_t seed, int hosts);
/// Leaves out of a plan that violates something what is not needed for it.
Plan shrink(Plan plan);

std::string to_script(const Plan& plan);
/// Throws std::runtime_error: what is wrong with the text.
Plan from_script(const std::string& text);

}  // namespace tutti::simulate::votes
