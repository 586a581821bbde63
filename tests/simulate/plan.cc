#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "simulate/moments.h"
#include "simulate/round.h"

namespace tutti::simulate {

namespace {

int usual_ranks(Random& random) {
  if (random.chance(0.005)) return random.from_to(17, 64);
  if (random.chance(0.15)) return random.from_to(9, 16);
  if (random.chance(0.02)) return 1;
  return random.from_to(2, 8);
}

/// What a step does; `op` is of collectives.
struct What {
  StepKind kind = StepKind::collective;
  Op op = Op::barrier;
};
constexpr std::array<What, 14> kAll = {{{.op = Op::all_reduce},
                                        {.op = Op::broadcast},
                                        {.op = Op::barrier},
                                        {.op = Op::reduce},
                                        {.op = Op::all_gather},
                                        {.op = Op::gather},
                                        {.op = Op::reduce_scatter},
                                        {.op = Op::all_to_all},
                                        {.op = Op::scatter},
                                        {.op = Op::scan},
                                        {.op = Op::exclusive_scan},
                                        {.kind = StepKind::message},
                                        {.kind = StepKind::make},
                                        {.kind = StepKind::close}}};
constexpr std::size_t kCollectives = 11;  // the first ones

/// Collectives are half of all, and of them many an all_reduce.
What draw_what(Random& random) {
  const auto kind = random.below(10);
  if (kind < 1) return kAll[0];
  if (kind < 5) return kAll[random.below(kCollectives)];
  return kAll[kCollectives + (kind < 7 ? 0 : kind < 9 ? 1 : 2)];
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

PlanStep draw_collective(Random& random, Op op, int group, int members) {
  PlanStep step{.kind = StepKind::collective, .group = group, .op = op};
  if (has_root(step.op)) step.root = random.from_to(0, members - 1);
  step.count = draw_count(random, members);
  if (has_parts(step.op)) {
    step.count = 1 + step.count / members;
    step.uneven = random.chance(0.2);
  }
  if (random.chance(0.02)) step.count = 0;
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

/// Steps of a plan, one after the other.
class Steps {
 public:
  Steps(Plan& plan, Random& random) : plan_(plan), random_(random) {
    std::vector<int> all(static_cast<std::size_t>(plan.ranks()));
    std::iota(all.begin(), all.end(), 0);
    plan.groups.push_back({all, -1});
  }

  /// Answers with the index of the step that does it; nothing if a world of one rank cannot.
  std::optional<std::size_t> add(What what) {
    switch (what.kind) {
      case StepKind::collective:
        return add_collective(what.op);
      case StepKind::message:
        return add_message();
      case StepKind::make:
        return add_make();
      case StepKind::close:
        break;
    }
    if (open_.size() == 1) add_make();
    return add_close();
  }
  bool can_close() const noexcept { return open_.size() > 1; }

  /// `what` in one group and a collective in another of the same members: whoever calls them the
  /// other way round and waits in them awaits those that await it.
  std::optional<std::size_t> add_crossed(What what) {
    const std::vector<int> open = std::exchange(open_, {0});
    const auto at = add(what);
    open_ = open;
    if (!at) return at;
    plan_.groups.push_back({plan_.groups[0].world_ranks, 0});
    const int twin = static_cast<int>(plan_.groups.size()) - 1;
    plan_.steps.insert(plan_.steps.begin(), {.kind = StepKind::make, .group = twin});
    PlanStep next =
        draw_collective(random_, kAll[random_.below(kCollectives)].op, twin, plan_.ranks());
    make_unlike(next, plan_.steps);
    plan_.steps.insert(plan_.steps.begin() + static_cast<long>(*at) + 2, next);
    for (const std::size_t step : {*at + 1, *at + 2})
      plan_.steps[step].how = plan_.steps[step].how_to = How::waits;
    return *at + 1;
  }

 private:
  std::size_t add(const PlanStep& step) {
    plan_.steps.push_back(step);
    return plan_.steps.size() - 1;
  }

  int draw_group() { return open_[random_.below(open_.size())]; }
  /// One with several members, if there is any.
  int draw_large_group() {
    const int group = draw_group();
    return plan_.size_of(group) > 1 ? group : 0;
  }

  std::size_t add_collective(Op op) {
    const int group = draw_group();
    PlanStep step = draw_collective(random_, op, group, plan_.size_of(group));
    make_unlike(step, plan_.steps);
    return add(step);
  }

  std::optional<std::size_t> add_message() {
    const int group = draw_large_group();
    if (plan_.size_of(group) == 1) return std::nullopt;
    PlanStep first = draw_message(random_, group, plan_.size_of(group), messages_++);
    if (may_be_overtaken(first)) first.tag = 1000 + messages_ - 1;  // a number is a tag once
    const std::size_t index = add(first);
    // Several of one tag: they stay in order.
    while (first.tag < 1000 && random_.chance(0.6)) add(again(random_, first, plan_.steps.size()));
    return index;
  }

  /// A receive from any rank takes what comes first. If another rank has sent the same before, and
  /// something was called in between, that one's sender may wait for it in vain.
  bool may_be_overtaken(const PlanStep& message) const {
    const auto is_like_it = [&](const PlanStep& step) {
      return step.kind == StepKind::message && step.group == message.group &&
             step.to == message.to && step.tag == message.tag;
    };
    const std::vector<PlanStep>& steps = plan_.steps;
    const auto last = std::find_if_not(steps.rbegin(), steps.rend(), is_like_it);
    return message.any && std::any_of(last, steps.rend(), is_like_it);
  }

  std::size_t add_make() {
    const int group = draw_large_group();
    std::vector<int> members = plan_.groups[static_cast<std::size_t>(group)].world_ranks;
    for (std::size_t i = members.size(); i > 1; --i)
      std::swap(members[i - 1], members[random_.below(i)]);
    members.resize(static_cast<std::size_t>(random_.from_to(1, plan_.size_of(group))));
    plan_.groups.push_back({members, group});
    open_.push_back(static_cast<int>(plan_.groups.size()) - 1);
    return add({.kind = StepKind::make, .group = open_.back()});
  }

  std::size_t add_close() {
    const std::size_t at = 1 + random_.below(open_.size() - 1);
    const int group = open_[at];
    open_.erase(open_.begin() + static_cast<long>(at));
    return add({.kind = StepKind::close, .group = group});
  }

  Plan& plan_;
  Random& random_;
  std::vector<int> open_ = {0};  // groups that have not been closed
  int messages_ = 0;
};

void add_steps(Plan& plan, Random& random) {
  Steps steps(plan, random);
  const int count = plan.ranks() > 16 ? random.from_to(2, 5) : random.from_to(2, 10);
  for (int number = 0; number < count; ++number) {
    const What what = draw_what(random);
    if (what.kind != StepKind::close || steps.can_close()) steps.add(what);
  }
}

/// More groups than a rank has lines for, one after the other.
void add_many_groups(Plan& plan, Random& random) {
  Steps steps(plan, random);
  const int count = random.from_to(100, 160);
  for (int number = 0; number < count; ++number) {
    const auto kind = random.below(20);
    steps.add(kind < 10   ? What{.kind = StepKind::make}
              : kind < 19 ? What{.kind = StepKind::close}
                          : draw_what(random));
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

/// How long somebody is away: hardly, about as long as the others wait for it, or longer.
std::chrono::nanoseconds some_time(const Plan& plan, Random& random) {
  const int patience = static_cast<int>(plan.timeout / std::chrono::microseconds(1));
  const auto kind = random.below(10);
  if (kind < 4) return std::chrono::microseconds(random.from_to(100, 30'000));
  return std::chrono::microseconds(random.from_to(patience / 2, (kind < 8 ? 2 : 4) * patience));
}

/// Those that are answered in many ways are drawn more often.
FaultKind draw_kind(const Plan& plan, Random& random) {
  using enum FaultKind;
  constexpr std::array kOften = {die,   die,  stop, stop, stop,   late,   late,   late,  disagree,
                                 skip,  skip, skip, quit, quit,   quit,   swap,   swap,  swap,
                                 abort, slow, slow, slow, lose,   error,  error,  error, lose,
                                 cut,   cut,  cut,  cut,  freeze, freeze, freeze, freeze};
  const FaultKind kind = kOften[random.below(kOften.size())];
  return is_of_host(kind) && plan.hosts() == 1 ? draw_kind(plan, random) : kind;
}

/// A member of the group of a step, or an end of a message.
int draw_member(const Plan& plan, const PlanStep& step, Random& random) {
  const auto& members = plan.groups[static_cast<std::size_t>(step.group)].world_ranks;
  int member = random.from_to(0, static_cast<int>(members.size()) - 1);
  if (step.kind == StepKind::message) member = random.chance(0.5) ? step.from : step.to;
  return members[static_cast<std::size_t>(member)];
}

/// It befalls a rank at a step that concerns it.
void aim(Fault& fault, Plan& plan, std::size_t at, Random& random) {
  PlanStep& step = plan.steps[at];
  fault.at = at;
  fault.who = draw_member(plan, step, random);
  fault.is_pinned = is_of_process(fault.kind) || is_of_host(fault.kind);
  if (fault.kind == FaultKind::slow && step.count > 0) step.how = step.how_to = How::callback;
  if (fault.kind == FaultKind::die || fault.kind == FaultKind::lose)
    fault.lasts = std::chrono::microseconds(random.chance(0.5) ? 0 : random.from_to(1, 300));
  const bool is_by_time = fault.kind == FaultKind::die && fault.lasts.count() > 0;
  if (is_of_process(fault.kind) && !is_by_time && random.chance(0.5))
    fault.steps = random.below(std::uint64_t{1} << random.from_to(0, 11));
}

/// In a process or on a host, wherever that is; of a program at any step.
void spread(Fault& fault, const Plan& plan, Random& random) {
  if (fault.kind == FaultKind::die && random.chance(0.5)) {
    // After its last goodbye.
    fault = {.kind = FaultKind::die, .is_pinned = true};
    fault.who = random.from_to(0, plan.ranks() - 1);
    fault.at = plan.steps.size() + 2;
    return;
  }
  if (is_of_host(fault.kind)) {
    fault.who = random.from_to(0, plan.hosts() - 1);
    fault.at = 1 + random.below(fault.kind == FaultKind::cut ? 20'000 : 2'000);
  } else if (is_of_process(fault.kind)) {
    fault.who = random.from_to(0, plan.process_of.back());
    // Joining takes some thousand steps; most of the plan comes after it.
    fault.at = 1 + random.below(200 + 400 * (plan.steps.size() + 1));
  } else {
    fault.who = random.from_to(0, plan.ranks() - 1);
    fault.at = random.below(plan.steps.size() + 2);
  }
}

void complete(Fault& fault, const Plan& plan, Random& random) {
  if (fault.kind == FaultKind::cut) {
    const int host = fault.is_pinned ? plan.host_of(fault.who) : fault.who;
    const bool is_alone = random.chance(0.3);  // cut from all others
    fault.other = is_alone ? -1 : (host + random.from_to(1, plan.hosts() - 1)) % plan.hosts();
    fault.one_way = random.chance(0.3);
  }
  // Hosts that hear nothing of each other part after some seconds; who asks and gets no answer
  // judges without it.
  const bool is_long = fault.kind == FaultKind::cut || fault.kind == FaultKind::freeze;
  if (is_long && random.chance(0.25))
    fault.lasts = std::chrono::milliseconds(random.from_to(1'500, 8'000));
}

Fault make_fault(Plan& plan, Random& random) {
  Fault fault{.kind = draw_kind(plan, random), .lasts = some_time(plan, random)};
  if (!plan.steps.empty() && random.chance(0.5)) {
    aim(fault, plan, random.below(plan.steps.size()), random);
  } else {
    spread(fault, plan, random);
  }
  complete(fault, plan, random);
  return fault;
}

/// A few steps, and one fault that befalls one of them: each fault meets each operation alike.
void add_steps_and_aim(Plan& plan, Random& random) {
  Steps steps(plan, random);
  const int before = random.from_to(0, 2), after = random.from_to(0, 2);
  for (int number = 0; number < before; ++number) steps.add(draw_what(random));
  Fault fault{.kind = draw_kind(plan, random), .lasts = some_time(plan, random)};
  const What what = kAll[random.below(kAll.size())];
  const bool is_crossed =
      fault.kind == FaultKind::swap && what.kind != StepKind::close && random.chance(0.5);
  // That is found after some looks.
  if (is_crossed) plan.timeout = std::max(plan.timeout, std::chrono::milliseconds(1'500));
  const auto at = is_crossed ? steps.add_crossed(what) : steps.add(what);
  for (int number = 0; number < after; ++number) steps.add(draw_what(random));
  if (!at) return;
  aim(fault, plan, *at, random);
  complete(fault, plan, random);
  plan.faults.push_back(fault);
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

void add_faults(Plan& plan, Random& random) {
  const auto kind = random.below(10);
  const int count = kind < 2 ? 0 : kind < 6 ? 1 : kind < 9 ? 2 : 3;
  for (int fault = 0; fault < count; ++fault) add_fault(plan, make_fault(plan, random));
}

/// `hosts`: 0 for half of the plans one, and else a few; more where one could not hold all ranks.
void place_on_hosts(Plan& plan, Random& random, int hosts) {
  constexpr int kMostOfOne = 200;  // a board has room for some more
  const int processes = plan.process_of.back() + 1;
  if (hosts == 0) hosts = random.chance(0.5) ? 1 : random.from_to(2, random.chance(0.7) ? 4 : 8);
  hosts = std::min(std::max(hosts, plan.ranks() / kMostOfOne), processes);
  if (hosts == 1) return;
  plan.delay = std::chrono::microseconds(1 << random.from_to(3, 9));
  if (plan.ranks() > kMostOfOne) {
    for (int process = 0; process < processes; ++process)
      plan.hosts_of.push_back(process * hosts / processes);
    return;
  }
  // Each host has one process at least, and where the next one begins is drawn.
  std::set<int> first;
  while (static_cast<int>(first.size()) < hosts - 1) first.insert(random.from_to(1, processes - 1));
  int host = 0;
  for (int process = 0; process < processes; ++process)
    plan.hosts_of.push_back(host += first.contains(process) ? 1 : 0);
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
  place_on_hosts(plan, random, hosts);
  plan.cores = random.chance(0.5) ? 1 : random.from_to(1, count);
  // Ranks that wait for each other are found after some looks, 100 ms apart.
  const bool is_patient = random.chance(0.25);
  plan.timeout = std::chrono::milliseconds(random.from_to(60, is_patient ? 2000 : 400));
  plan.warns = random.chance(0.1);
  // In a large world everybody looks at everybody, which takes its time.
  plan.timeout += count * std::chrono::milliseconds(5);
  plan.timeout += 400 * plan.delay.count() * std::chrono::milliseconds(plan.hosts() > 1) / 1000;
  if (count > 12) plan.put_aside = std::min(plan.put_aside, 0.01);
  if (random.chance(0.1) && add_moment(plan, random)) return plan;
  if (random.chance(0.6)) {
    add_steps_and_aim(plan, random);
  } else {
    count <= 6 && random.chance(0.015) ? add_many_groups(plan, random) : add_steps(plan, random);
    add_withdrawals(plan, random);
    add_faults(plan, random);
  }
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
