#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "simulate/round.h"

namespace tutti::simulate {

namespace {

int usual_ranks(Random& random) {
  if (random.chance(0.01)) return random.from_to(17, 64);
  if (random.chance(0.2)) return random.from_to(9, 16);
  return random.from_to(2, 8);
}

/// Most are small; some go through the rings, and a few do so more than once.
int draw_count(Random& random, int ranks) {
  const auto kind = random.below(50);
  if (kind < 20) return random.from_to(1, 12);
  if (kind < 44 || ranks > 12) return random.from_to(13, ranks > 12 ? 500 : 7'000);
  if (kind < 49) return random.from_to(7'000, 70'000);
  return random.from_to(70'000, ranks > 4 ? 150'000 : 600'000);
}

How draw_how(Random& random, bool is_message) {
  constexpr std::array kOfCollective = {How::waits, How::waits, How::work, How::callback};
  constexpr std::array kOfMessage = {How::waits, How::work, How::callback, How::thread};
  return is_message ? kOfMessage[random.below(kOfMessage.size())]
                    : kOfCollective[random.below(kOfCollective.size())];
}

PlanStep draw_collective(Random& random, int group, int members) {
  constexpr std::array kOps = {Op::all_reduce, Op::all_reduce, Op::all_reduce,
                               Op::broadcast,  Op::barrier,    Op::reduce_scatter,
                               Op::reduce,     Op::all_gather, Op::all_to_all};
  PlanStep step{.kind = StepKind::collective, .group = group};
  step.op = kOps[random.below(kOps.size())];
  if (step.op == Op::broadcast || step.op == Op::reduce) step.root = random.from_to(0, members - 1);
  const bool is_joined =
      step.op == Op::all_to_all || step.op == Op::all_gather || step.op == Op::reduce_scatter;
  step.count = draw_count(random, members);
  if (is_joined) step.count = 1 + step.count / members;
  if (step.op == Op::barrier) step.count = 0;
  step.how = draw_how(random, false);
  return step;
}

/// No two alike: who has left one out is found by the next.
void make_unlike(PlanStep& step, const std::vector<PlanStep>& others) {
  const auto is_alike = [&](const PlanStep& other) {
    return other.kind == step.kind && other.op == step.op && other.count == step.count;
  };
  while (step.op != Op::barrier && std::any_of(others.begin(), others.end(), is_alike))
    ++step.count;
}

/// Messages of a tag have one size: one may stand in for another that was taken back.
PlanStep draw_message(Random& random, int group, int members, int number) {
  constexpr std::array kCounts = {1, 100, 1000, 1100, 20'000, 80'000};
  PlanStep step{.kind = StepKind::message, .group = group};
  step.from = random.from_to(0, members - 1);
  step.to = (step.from + random.from_to(1, members - 1)) % members;
  step.tag = random.from_to(0, members > 12 ? 3 : 5);
  step.count = kCounts[static_cast<std::size_t>(step.tag)];
  step.buffered = random.chance(0.5);
  step.any = random.chance(0.3);
  step.how = draw_how(random, true);
  step.how_to = draw_how(random, true);
  // A thread's are in no order with others.
  if (step.how == How::thread || step.how_to == How::thread) {
    step.tag = 1000 + number;
  } else if (step.any) {
    step.tag += 100;
  }
  return step;
}

/// Another message of the same sender and receiver, most often with the same tag.
PlanStep again(Random& random, PlanStep step, std::size_t number) {
  step.buffered = random.chance(0.5);
  step.how = random.chance(0.7) ? How::work : How::waits;
  step.how_to = random.chance(0.5) ? How::work : How::waits;
  if (random.chance(0.3)) {
    step.how_to = How::thread;
    step.tag = 10'000 + static_cast<int>(number);
  }
  return step;
}

void add_groups_and_steps(Plan& plan, Random& random) {
  std::vector<int> all(static_cast<std::size_t>(plan.ranks()));
  std::iota(all.begin(), all.end(), 0);
  plan.groups.push_back({all, -1});
  std::vector<int> open = {0};
  // Now and then more groups than a rank has lines for, one after the other.
  const bool is_long = plan.ranks() <= 16 && random.chance(0.03);
  const int steps = is_long             ? random.from_to(40, 90)
                    : plan.ranks() > 16 ? random.from_to(2, 5)
                                        : random.from_to(2, 10);
  for (int number = 0; number < steps; ++number) {
    const int group = open[random.below(open.size())];
    const int size = plan.size_of(group);
    const auto kind = random.below(10);
    if (kind < 5) {
      PlanStep step = draw_collective(random, group, size);
      make_unlike(step, plan.steps);
      plan.steps.push_back(step);
    } else if (kind < 7 && size > 1) {
      const PlanStep first = draw_message(random, group, size, number);
      plan.steps.push_back(first);
      // Several of one tag: they stay in order.
      while (first.tag < 1000 && random.chance(0.6))
        plan.steps.push_back(again(random, first, plan.steps.size()));
    } else if (kind < 9 && size > 1) {
      std::vector<int> members = plan.groups[static_cast<std::size_t>(group)].world_ranks;
      for (std::size_t i = members.size(); i > 1; --i)
        std::swap(members[i - 1], members[random.below(i)]);
      members.resize(static_cast<std::size_t>(random.from_to(1, size)));
      plan.groups.push_back({members, group});
      const int made = static_cast<int>(plan.groups.size()) - 1;
      open.push_back(made);
      plan.steps.push_back({.kind = StepKind::make, .group = made});
    } else if (group != 0) {
      plan.steps.push_back({.kind = StepKind::close, .group = group});
      std::erase(open, group);
    }
  }
}

/// Messages that are taken back, by their sender or when their time is over.
void add_withdrawals(Plan& plan, Random& random) {
  if (!random.chance(0.3)) return;
  plan.patience = std::chrono::milliseconds(random.from_to(1, 12));
  for (PlanStep& step : plan.steps) {
    if (step.kind != StepKind::message || !random.chance(0.5)) continue;
    const bool by_sender = random.chance(0.7);
    How& how = by_sender ? step.how : step.how_to;
    if (how == How::thread) continue;
    how = How::cancels;
    step.cancel_after = std::chrono::microseconds(random.from_to(0, 1 << random.from_to(0, 7)));
  }
}

Fault make_fault(const Plan& plan, Random& random) {
  Fault fault;
  constexpr int kOfHosts = 3;  // the last ones
  fault.kind = static_cast<FaultKind>(
      random.from_to(1, static_cast<int>(kFaultKinds) - 1 - (plan.hosts() > 1 ? 0 : kOfHosts)));
  const int processes = 1 + *std::max_element(plan.process_of.begin(), plan.process_of.end());
  const bool of_process = fault.kind == FaultKind::die || fault.kind == FaultKind::stop;
  fault.who = random.from_to(0, (of_process ? processes : plan.ranks()) - 1);
  // Joining takes some thousand steps; most of the plan comes after it.
  fault.at = of_process ? 1 + random.below(200 + 400 * (plan.steps.size() + 1))
                        : random.below(plan.steps.size() + 1);
  if (fault.kind == FaultKind::die && random.chance(0.1)) {
    // After its last goodbye.
    fault = {.kind = FaultKind::die, .is_pinned = true};
    fault.who = random.from_to(0, plan.ranks() - 1);
    fault.at = plan.steps.size() + 2;
    return fault;
  }
  if (fault.kind >= FaultKind::cut) {
    fault.who = random.from_to(0, plan.hosts() - 1);
    fault.other = (fault.who + random.from_to(1, plan.hosts() - 1)) % plan.hosts();
    fault.one_way = random.chance(0.3);
    fault.at = 1 + random.below(fault.kind == FaultKind::cut ? 20'000 : 2'000);
  }
  const bool is_long = random.chance(0.3);
  fault.lasts = std::chrono::microseconds(
      random.from_to(100, is_long ? 4 * static_cast<int>(plan.timeout.count()) * 1000 : 30'000));
  return fault;
}

/// Two that call another operation at one step might agree.
void add_fault(Plan& plan, const Fault& fault) {
  const bool is_second =
      std::any_of(plan.faults.begin(), plan.faults.end(), [&](const Fault& other) {
        return other.kind == FaultKind::disagree && fault.kind == other.kind &&
               other.at == fault.at;
      });
  if (!is_second) plan.faults.push_back(fault);
}

/// `hosts`: 0 for half of the plans one, and else a few.
void place_on_hosts(Plan& plan, Random& random, int hosts) {
  const int processes = plan.process_of.back() + 1;
  if (hosts == 0) hosts = random.chance(0.5) ? 1 : random.from_to(2, random.chance(0.7) ? 4 : 8);
  hosts = std::min(hosts, processes);
  if (hosts == 1) return;
  // Each host has one process at least, and where the next one begins is drawn.
  std::set<int> first;
  while (static_cast<int>(first.size()) < hosts - 1) first.insert(random.from_to(1, processes - 1));
  int host = 0;
  for (int process = 0; process < processes; ++process)
    plan.hosts_of.push_back(host += first.contains(process) ? 1 : 0);
  plan.delay = std::chrono::microseconds(1 << random.from_to(3, 9));
}

}  // namespace

Plan make_plan(std::uint64_t seed, int ranks, int hosts) {
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
  if (hosts != 1) place_on_hosts(plan, random, hosts);
  plan.cores = random.chance(0.5) ? 1 : random.from_to(1, count);
  // Ranks that wait for each other are found after some looks, 100 ms apart.
  const bool is_patient = random.chance(0.2);
  plan.timeout = std::chrono::milliseconds(random.from_to(60, is_patient ? 2000 : 400));
  // In a large world everybody looks at everybody, which takes its time.
  plan.timeout += count * std::chrono::milliseconds(5);
  plan.timeout += 400 * plan.delay.count() * std::chrono::milliseconds(plan.hosts() > 1) / 1000;
  if (count > 12) plan.put_aside = std::min(plan.put_aside, 0.01);
  add_groups_and_steps(plan, random);
  add_withdrawals(plan, random);
  const auto faults = random.below(10);
  for (std::uint64_t fault = 0; fault < (faults < 1   ? 0
                                         : faults < 6 ? 1
                                         : faults < 9 ? 2
                                                      : 3);
       ++fault)
    add_fault(plan, make_fault(plan, random));
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
      Plan candidate = plan;
      candidate.steps.erase(candidate.steps.begin() + static_cast<long>(i));
      try_it(candidate);
    }
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      Plan candidate = plan;
      PlanStep& step = candidate.steps[i];
      if (step.how == How::waits && step.how_to == How::waits) continue;
      step.how = step.how_to = How::waits;
      try_it(candidate);
    }
  }
  return plan;
}

}  // namespace tutti::simulate
