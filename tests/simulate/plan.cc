#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "simulate/round.h"

namespace tutti::simulate {

const char* name_of(FaultKind kind) noexcept {
  constexpr std::array<const char*, kFaultKinds> kNames = {
      "none", "die", "stop", "late", "disagree", "skip", "abort", "quit", "error"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {

int usual_ranks(Random& random) {
  if (random.chance(0.02)) return random.from_to(17, 64);
  if (random.chance(0.2)) return random.from_to(9, 16);
  return random.from_to(2, 8);
}

void add_groups_and_steps(Plan& plan, Random& random) {
  std::vector<int> all(static_cast<std::size_t>(plan.ranks()));
  std::iota(all.begin(), all.end(), 0);
  plan.groups.push_back({all, -1});
  std::vector<int> open = {0};
  // Now and then more groups than a rank has lines for, one after the other.
  const int steps = random.chance(0.03) ? random.from_to(40, 90) : random.from_to(2, 10);
  for (int step = 0; step < steps; ++step) {
    const int group = open[random.below(open.size())];
    const auto size =
        static_cast<int>(plan.groups[static_cast<std::size_t>(group)].world_ranks.size());
    const auto kind = random.below(10);
    if (kind < 5) {
      const int root = random.chance(0.5) ? random.from_to(0, size - 1) : -1;
      plan.steps.push_back({StepKind::collective, group, 0, 0, root});
    } else if (kind < 7 && size > 1) {
      const int from = random.from_to(0, size - 1);
      const int to = (from + random.from_to(1, size - 1)) % size;
      plan.steps.push_back({StepKind::message, group, from, to, -1, random.chance(0.5)});
    } else if (kind < 9 && size > 1) {
      std::vector<int> members = plan.groups[static_cast<std::size_t>(group)].world_ranks;
      for (std::size_t i = members.size(); i > 1; --i)
        std::swap(members[i - 1], members[random.below(i)]);
      members.resize(static_cast<std::size_t>(random.from_to(1, size)));
      plan.groups.push_back({members, group});
      const int made = static_cast<int>(plan.groups.size()) - 1;
      open.push_back(made);
      plan.steps.push_back({StepKind::make, made});
    } else if (group != 0) {
      plan.steps.push_back({StepKind::close, group});
      std::erase(open, group);
    }
  }
}

Fault make_fault(const Plan& plan, Random& random) {
  Fault fault;
  fault.kind = static_cast<FaultKind>(random.from_to(1, static_cast<int>(kFaultKinds) - 1));
  const int processes = 1 + *std::max_element(plan.process_of.begin(), plan.process_of.end());
  const bool of_process = fault.kind == FaultKind::die || fault.kind == FaultKind::stop;
  fault.who = random.from_to(0, (of_process ? processes : plan.ranks()) - 1);
  // Joining takes some thousand steps; most of the plan comes after it.
  fault.at = of_process ? 1 + random.below(200 + 400 * (plan.steps.size() + 1))
                        : random.below(plan.steps.size() + 1);
  const bool is_long = random.chance(0.3);
  fault.lasts = std::chrono::microseconds(
      random.from_to(100, is_long ? 4 * static_cast<int>(plan.timeout.count()) * 1000 : 30'000));
  return fault;
}

}  // namespace

Plan make_plan(std::uint64_t seed, int ranks) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  constexpr std::array<double, 4> kPutAside = {0.3, 0.05, 0.01, 0.001};
  plan.put_aside = kPutAside[random.below(kPutAside.size())];
  plan.hiccup = random.chance(0.5) ? 0.0005 : 0;
  const int count = ranks > 0 ? ranks : usual_ranks(random);
  int process = -1;
  for (int rank = 0; rank < count; ++rank) {
    if (rank == 0 || random.chance(0.85)) ++process;
    plan.process_of.push_back(process);
    plan.goes_on.push_back(random.chance(0.5));
    plan.keeps.push_back(random.chance(0.5));
  }
  plan.data_tells = random.chance(0.5);
  // Ranks that wait for each other are found after some looks, 100 ms apart.
  const bool is_patient = random.chance(0.2);
  plan.timeout = std::chrono::milliseconds(random.from_to(60, is_patient ? 2000 : 400));
  // In a large world everybody looks at everybody, which takes its time.
  plan.timeout += count * std::chrono::milliseconds(5);
  if (count > 12) plan.put_aside = std::min(plan.put_aside, 0.01);
  add_groups_and_steps(plan, random);
  const auto faults = random.below(10);
  for (std::uint64_t fault = 0; fault < (faults < 1   ? 0
                                         : faults < 6 ? 1
                                         : faults < 9 ? 2
                                                      : 3);
       ++fault)
    plan.faults.push_back(make_fault(plan, random));
  return plan;
}

Plan shrink(Plan plan) {
  Tally nothing;
  const auto still_fails = [&](const Plan& candidate) {
    return !run_round(candidate, nothing).empty();
  };
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    const auto try_it = [&](const Plan& candidate) {
      if (!still_fails(candidate)) return;
      plan = candidate;
      shrunk = true;
    };
    for (std::size_t i = plan.faults.size(); i-- > 0;) {
      Plan candidate = plan;
      candidate.faults.erase(candidate.faults.begin() + static_cast<long>(i));
      try_it(candidate);
    }
    for (std::size_t i = plan.steps.size(); i-- > 0;) {
      if (plan.steps[i].kind == StepKind::make) continue;
      Plan candidate = plan;
      candidate.steps.erase(candidate.steps.begin() + static_cast<long>(i));
      try_it(candidate);
    }
  }
  return plan;
}

}  // namespace tutti::simulate
