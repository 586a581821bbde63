#include "simulate/votes/plan.h"

#include <algorithm>
#include <numeric>

#include "control/vote/vote.h"
#include "simulate/random.h"
#include "simulate/votes/world.h"

namespace tutti::simulate::votes {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const char* name_of(FaultKind kind) noexcept {
  constexpr std::array<const char*, kFaultKinds> kNames = {
      "die", "stop", "lose_host", "stop_host", "leave", "cut", "one_way", "divide"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {

Duration micros(Random& random, int first, int last) {
  return microseconds(random.from_to(first, last));
}

/// Most things happen while something else is going on: at the beginning, or when cuts are known.
Duration moment(Random& random, Duration around) {
  switch (random.below(4)) {
    case 0:
      return around + micros(random, 0, 1'500'000);
    case 1:
      return around + micros(random, 1'900'000, 3'700'000);
    default:
      return around + micros(random, 0, 80'000);
  }
}

Duration lasting(Random& random) {
  switch (random.below(4)) {
    case 0:
      return milliseconds(random.from_to(1, 300));
    case 1:
      return milliseconds(random.from_to(300, 1900));
    case 2:
      return milliseconds(random.from_to(1900, 4500));
    default:
      return Fault::kForEver;
  }
}

Fault make_fault(const Plan& plan, Random& random, Duration around) {
  Fault fault;
  const int hosts = plan.hosts();
  // The lower ones do more.
  fault.host = std::min(random.from_to(0, hosts - 1), random.from_to(0, hosts - 1));
  fault.other = (fault.host + random.from_to(1, hosts - 1)) % hosts;
  fault.at = moment(random, around);
  const auto kind = random.below(16);
  if (kind < 6) {
    fault.kind = kind < 3 ? FaultKind::die : FaultKind::stop;
    fault.other = random.chance(0.7) ? -1 : random.from_to(0, 3);
  } else if (kind < 9) {
    fault.kind = FaultKind::lose_host;
  } else if (kind < 11) {
    fault.kind = FaultKind::stop_host;
  } else if (kind < 12) {
    fault.kind = FaultKind::leave;
  } else if (kind < 14) {
    fault.kind = random.chance(0.5) ? FaultKind::cut : FaultKind::one_way;
  } else {
    fault.kind = FaultKind::divide;
    fault.side = static_cast<std::uint32_t>(random.from_to(1, (1 << hosts) - 2));
    if (random.chance(0.5)) fault.other = -1;
  }
  if (kind < 11 && random.chance(0.7))
    fault.effects = static_cast<std::uint64_t>(random.from_to(1, 24));
  fault.lasts = lasting(random);
  return fault;
}

/// A majority votes while the others are stopped, and dies but for one, which the others do not
/// reach: what it knows is lost for them, or is it not?
void add_ambush(Plan& plan, Random& random) {
  const int hosts = plan.hosts();
  const int few = random.from_to(1, (hosts - 1) / 2);
  const int left = random.from_to(few, hosts - 1);
  const Duration start = milliseconds(random.from_to(10, 60));
  Wanted wanted;
  for (int host = 0; host < few; ++host) {
    wanted.hosts.push_back(host);
    plan.faults.push_back({FaultKind::stop_host, host, 0, 0, start - milliseconds(5), 0,
                           milliseconds(random.from_to(250, 450))});
    plan.faults.push_back(
        {FaultKind::cut, left, host, 0, start - milliseconds(5), 0, lasting(random)});
  }
  wanted.hosts.push_back(left);
  wanted.at = start;
  plan.wanted.push_back(wanted);
  const Duration asked = control::kVoteOvertake + left * control::kVoteStagger;
  for (int host = few; host < hosts; ++host)
    if (host != left)
      plan.faults.push_back(
          {FaultKind::lose_host, host, 0, 0, start + asked + micros(random, 0, 20'000)});
}

/// Some hosts are a tree, often a path or a star: each reaches its neighbours only. The others are
/// lost, or out of reach. Who stays with whom? Or does one in the middle reach enough for all?
void add_tree(Plan& plan, Random& random) {
  const int hosts = plan.hosts();
  const int first = random.from_to(0, hosts - 1), size = random.from_to(3, hosts);
  const auto at = [&](int place) { return (first + place) % hosts; };
  const Duration start = milliseconds(random.from_to(10, 60));
  const auto add = [&](FaultKind kind, int host, int other, std::uint32_t side, Duration lasts) {
    plan.faults.push_back({kind, host, other, side, start + micros(random, 0, 20'000), 0, lasts});
  };
  const bool is_star = random.chance(0.3);
  std::uint32_t tree = 1u << at(0);
  for (int one = 1; one < size; ++one) {
    tree |= 1u << at(one);
    const int parent = is_star ? 0 : random.from_to(0, one - 1);
    for (int other = 0; other < one; ++other)
      if (other != parent)
        add(FaultKind::cut, at(one), at(other), 0,
            random.chance(0.7) ? Fault::kForEver
                               : Duration(milliseconds(random.from_to(1900, 4500))));
  }
  if (random.chance(0.5)) {
    add(FaultKind::divide, first, -1, tree, Fault::kForEver);
  } else {
    for (int lost = size; lost < hosts; ++lost)
      add(FaultKind::lose_host, at(lost), 0, 0, Fault::kForEver);
  }
  if (random.chance(0.3))
    add(FaultKind::stop_host, at(0), 0, 0, milliseconds(random.from_to(1900, 4500)));
}

}  // namespace

Plan make_plan(std::uint64_t seed, int hosts) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  const int count = hosts > 0            ? hosts
                    : random.chance(0.6) ? random.from_to(2, 5)
                                         : random.from_to(2, 8);
  for (int host = 0; host < count; ++host) plan.processes.push_back(random.from_to(1, 3));
  plan.usual_delay = random.chance(0.5) ? microseconds(200) : microseconds(5000);
  plan.longest_delay = random.chance(0.3) ? milliseconds(150) : plan.usual_delay;
  plan.kept = random.chance(0.1) ? 1 : 256;
  if (count >= 3 && random.chance(0.1)) {
    add_ambush(plan, random);
    return plan;
  }
  if (count >= 3 && random.chance(0.1)) add_tree(plan, random);
  const Duration around = milliseconds(random.from_to(1, 20));
  for (auto left = random.below(5); left > 0; --left) {
    Wanted wanted;
    for (int host = 0; host < count; ++host)
      if (random.chance(0.4)) wanted.hosts.push_back(host);
    if (wanted.hosts.empty()) wanted.hosts.push_back(random.from_to(0, count - 1));
    wanted.at = moment(random, around);
    plan.wanted.push_back(wanted);
  }
  constexpr std::array<int, 10> kFaults = {0, 1, 1, 1, 2, 2, 2, 3, 3, 5};
  for (int left = kFaults[random.below(kFaults.size())]; left > 0; --left)
    plan.faults.push_back(make_fault(plan, random, around));
  return plan;
}

namespace {

/// Takes one element out of each of these lists in turn, as long as the plan still fails.
template <typename List, typename Fails>
bool drop_from(Plan& plan, List Plan::*list, const Fails& fails) {
  bool dropped = false;
  for (std::size_t i = (plan.*list).size(); i-- > 0;) {
    Plan candidate = plan;
    (candidate.*list).erase((candidate.*list).begin() + static_cast<std::ptrdiff_t>(i));
    if (!fails(candidate)) continue;
    plan = candidate;
    dropped = true;
  }
  return dropped;
}

}  // namespace

Plan shrink(Plan plan) {
  const auto fails = [](const Plan& candidate) {
    Tally nothing;
    return !run_round(candidate, nothing).empty();
  };
  while (drop_from(plan, &Plan::faults, fails) || drop_from(plan, &Plan::wanted, fails)) continue;
  return plan;
}

}  // namespace tutti::simulate::votes
