#include "simulate/moments.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "control/board/layout.h"

namespace tutti::simulate {

using namespace std::chrono_literals;

namespace {

/// Circles are found after a quarter of it and some looks, and nobody may be late for more than
/// half of it.
constexpr std::chrono::milliseconds kPatient = 2000ms;

std::vector<int> shuffled_ranks(const Plan& plan, Random& random) {
  std::vector<int> ranks(static_cast<std::size_t>(plan.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random.below(i)]);
  return ranks;
}

/// Of the world.
PlanStep message(int from, int to, bool buffered, int tag = 0) {
  return {.kind = StepKind::message,
          .from = from,
          .to = to,
          .tag = tag,
          .buffered = buffered,
          .count = 100};
}

/// Everybody waits for the one before, and the first one comes late: a chain is no circle.
bool add_chain(Plan& plan, Random& random) {
  if (plan.ranks() < 3) return false;
  plan.timeout = std::max(plan.timeout, kPatient);
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  for (std::size_t i = 1; i < ranks.size(); ++i)
    plan.steps.push_back(message(ranks[i - 1], ranks[i], random.chance(0.5)));
  plan.faults.push_back({.kind = FaultKind::late,
                         .who = ranks.front(),
                         .lasts = plan.timeout * random.from_to(30, 48) / 100});
  return true;
}

/// One receives from any rank, and the one that sends comes late; the others wait for the receiver:
/// all but one of those it may hear from are stuck, and one suffices.
bool add_any(Plan& plan, Random& random) {
  if (plan.ranks() < 3) return false;
  plan.timeout = std::max(plan.timeout, kPatient);
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  plan.steps.push_back(message(ranks[0], ranks[1], random.chance(0.5)));
  plan.steps.back().any = true;
  for (std::size_t i = 2; i < ranks.size(); ++i)
    plan.steps.push_back(message(ranks[1], ranks[i], random.chance(0.5)));
  plan.faults.push_back({.kind = FaultKind::late,
                         .who = ranks[0],
                         .lasts = plan.timeout * random.from_to(30, 48) / 100});
  return true;
}

/// Pairs in which both wait for the other's message first: several circles at a time.
bool add_circles(Plan& plan, Random& random) {
  if (plan.ranks() < 4) return false;
  plan.timeout = std::max(plan.timeout, kPatient);
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  for (std::size_t i = 1; i < ranks.size(); i += 2) {
    plan.faults.push_back({.kind = FaultKind::swap, .who = ranks[i], .at = plan.steps.size()});
    plan.steps.push_back(message(ranks[i], ranks[i - 1], false));
    plan.steps.push_back(message(ranks[i - 1], ranks[i], false, 1));
    if (random.chance(0.5)) plan.faults.pop_back();
  }
  return true;
}

/// The same in groups of their own, of which others are members too: the verdict on one circle ends
/// a group of ranks of another one, which is found at about the same time.
bool add_circles_apart(Plan& plan, Random& random) {
  if (plan.ranks() < 4) return false;
  plan.timeout = std::max(plan.timeout, kPatient);
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const std::size_t circles = std::min<std::size_t>(ranks.size() / 2, 4);
  for (std::size_t circle = 0; circle < circles; ++circle) {
    std::vector<int> members = {ranks[2 * circle], ranks[2 * circle + 1]};
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (i / 2 != circle && random.chance(0.5)) members.push_back(ranks[i]);
    plan.groups.push_back({members, 0});
    plan.steps.push_back({.kind = StepKind::make, .group = static_cast<int>(circle) + 1});
  }
  for (std::size_t circle = 0; circle < circles; ++circle) {
    plan.faults.push_back(
        {.kind = FaultKind::swap, .who = ranks[2 * circle], .at = plan.steps.size()});
    for (const int from : {0, 1}) {
      plan.steps.push_back(message(from, 1 - from, false, from));
      plan.steps.back().group = static_cast<int>(circle) + 1;
    }
  }
  plan.put_aside = std::max(plan.put_aside, 0.05);  // between a look and its entry, too
  plan.goes_on.assign(plan.goes_on.size(), true);
  return true;
}

/// Two groups in opposite order: one verdict fails both, and each of their ranks goes on with the
/// other.
bool add_opposites(Plan& plan, Random& random) {
  if (plan.ranks() < 2 || plan.hosts() > 1) return false;
  plan.timeout = std::max(plan.timeout, kPatient);
  for (int group = 1; group <= 2; ++group) {
    plan.groups.push_back({shuffled_ranks(plan, random), 0});
    plan.steps.push_back({.kind = StepKind::make, .group = group});
  }
  for (int group = 1; group <= 2; ++group)
    plan.steps.push_back({.kind = StepKind::collective, .group = group});
  plan.goes_on.assign(plan.goes_on.size(), true);
  plan.faults.push_back(
      {.kind = FaultKind::swap, .who = random.from_to(0, plan.ranks() - 1), .at = 2});
  return true;
}

/// A receiver stops while it looks around. Meanwhile its message comes, and the sender leaves, or
/// waits for it.
bool add_unawares(Plan& plan, Random& random) {
  if (plan.ranks() < 2) return false;
  plan.timeout = std::max(plan.timeout, kPatient);
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  plan.steps.push_back(message(ranks[0], ranks[1], random.chance(0.3)));
  if (random.chance(0.3)) plan.steps.push_back({.kind = StepKind::collective});
  plan.faults.push_back({.kind = FaultKind::late,
                         .who = ranks[0],
                         .lasts = std::chrono::microseconds(random.from_to(100, 40'000))});
  plan.faults.push_back(
      {.kind = FaultKind::stop,
       .who = ranks[1],
       .lasts = plan.timeout * random.from_to(random.chance(0.5) ? 1 : 30, 45) / 100,
       .is_pinned = true,
       .steps = random.below(std::uint64_t{1} << random.from_to(1, 11))});
  return true;
}

/// A group is aborted by a member that others await in a group they ask of it; that one stays in
/// the world.
bool add_orphan(Plan& plan, Random& random) {
  if (plan.ranks() < 2) return false;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  plan.groups.push_back({ranks, 0});
  plan.groups.push_back({shuffled_ranks(plan, random), 1});
  plan.steps.push_back({.kind = StepKind::make, .group = 1});
  plan.steps.push_back({.kind = StepKind::make, .group = 2});
  plan.steps.push_back({.kind = StepKind::collective});
  plan.goes_on.assign(plan.goes_on.size(), true);
  plan.faults.push_back({.kind = FaultKind::abort, .who = ranks.front(), .at = 1});
  return true;
}

/// Of a world that has failed a member leaves. The others ask for a group with it, and have less
/// time for that than it takes to tell from other groups that it does not come.
bool add_gone_before(Plan& plan, Random& random) {
  if (plan.ranks() < 3 || plan.hosts() > 1) return false;
  plan.hiccup = 0;
  plan.timeout = std::chrono::milliseconds(random.from_to(30, 90));
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  plan.groups.push_back({{ranks.begin() + 1, ranks.end()}, 0});
  plan.groups.push_back({ranks, 0});
  plan.steps.push_back({.kind = StepKind::collective});
  plan.steps.push_back({.kind = StepKind::make, .group = 1});
  const int meanwhile = random.from_to(5, 20);
  for (int number = 0; number < meanwhile; ++number)
    plan.steps.push_back({.kind = StepKind::collective, .group = 1});
  plan.steps.push_back({.kind = StepKind::make, .group = 2});
  plan.goes_on.assign(plan.goes_on.size(), true);
  plan.faults.push_back({.kind = FaultKind::abort, .who = ranks[1]});
  plan.faults.push_back({.kind = FaultKind::quit, .who = ranks[0], .at = 1});
  return true;
}

/// A member dies that has closed a group, while another one has said goodbye and looks at those of
/// the others.
bool add_late_look(Plan& plan, Random& random) {
  if (plan.ranks() < 2) return false;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  plan.groups.push_back({ranks, 0});
  plan.steps.push_back({.kind = StepKind::make, .group = 1});
  plan.steps.push_back({.kind = StepKind::close, .group = 1});
  plan.faults.push_back({.kind = FaultKind::stop,
                         .who = ranks[0],
                         .at = 1,
                         .lasts = std::chrono::milliseconds(random.from_to(10, 200)),
                         .is_pinned = true,
                         .steps = random.below(std::uint64_t{1} << random.from_to(1, 11))});
  plan.faults.push_back({.kind = FaultKind::die, .who = ranks[1], .at = 2, .is_pinned = true});
  return true;
}

/// A member dies that has closed all its groups, while others have as well and stay: no loss.
bool add_last_goodbye(Plan& plan, Random& random) {
  if (plan.ranks() < 3 || plan.hosts() > 1) return false;
  plan.steps.push_back({.kind = StepKind::collective});
  plan.goes_on.assign(plan.goes_on.size(), true);
  plan.keeps.assign(plan.keeps.size(), true);
  plan.faults.push_back({.kind = FaultKind::die,
                         .who = random.from_to(0, plan.ranks() - 1),
                         .at = plan.steps.size() + 2,
                         .is_pinned = true});
  return true;
}

/// A host dies when one of its ranks has said goodbye to a group and another one has not, and one
/// of the other hosts has not heard of the goodbye.
bool add_half_heard(Plan& plan, Random& random) {
  if (plan.hosts() < 3) return false;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const int gone = ranks.front(), host = plan.host_of(gone);
  const bool is_alone = std::none_of(ranks.begin() + 1, ranks.end(),
                                     [&](int rank) { return plan.host_of(rank) == host; });
  if (is_alone) return false;
  plan.groups.push_back({ranks, 0});
  plan.steps.push_back({.kind = StepKind::make, .group = 1});
  plan.steps.push_back({.kind = StepKind::collective});
  plan.steps.push_back({.kind = StepKind::close, .group = 1});
  for (const int rank : ranks)
    if (rank != gone)
      plan.faults.push_back({.kind = FaultKind::late, .who = rank, .at = 2, .lasts = 150ms});
  plan.faults.push_back({.kind = FaultKind::cut,
                         .who = gone,
                         .at = 1,
                         .lasts = std::chrono::milliseconds(random.from_to(50, 400)),
                         .other = (host + random.from_to(1, plan.hosts() - 1)) % plan.hosts(),
                         .one_way = random.chance(0.5),
                         .is_pinned = true});
  plan.faults.push_back({.kind = FaultKind::lose,
                         .who = gone,
                         .at = 2,
                         .lasts = std::chrono::milliseconds(random.from_to(1, 40)),
                         .is_pinned = true});
  return true;
}

/// All wait for each other when a host is cut from all others, which find that out one by one.
bool add_alone(Plan& plan, Random& random) {
  if (plan.hosts() < 3) return false;
  plan.timeout = 8'000ms;
  plan.steps.push_back({.kind = StepKind::collective});
  plan.faults.push_back({.kind = FaultKind::cut,
                         .who = random.from_to(0, plan.ranks() - 1),
                         .lasts = 6'000ms,
                         .other = -1,
                         .one_way = random.chance(0.3),
                         .is_pinned = true});
  return true;
}

/// Many ranks share a core, so their rings are short; what goes through them wraps around.
bool add_short_rings(Plan& plan, Random& random) {
  constexpr int kRanksOfACore = 5;
  if (plan.ranks() < kRanksOfACore || plan.hosts() > 1) return false;
  plan.cores = random.from_to(1, plan.ranks() / kRanksOfACore);
  plan.timeout = std::max(plan.timeout, kPatient);
  const int count = random.from_to(2, 3);
  for (int number = 0; number < count; ++number)
    plan.steps.push_back({.kind = StepKind::collective,
                          .op = random.chance(0.7) ? Op::all_reduce : Op::broadcast,
                          .count = random.from_to(70'000, 150'000) + number});
  for (PlanStep& step : plan.steps)
    if (has_root(step.op)) step.root = random.from_to(0, plan.ranks() - 1);
  return true;
}

/// One message after the other that its sender takes back at about the time it is matched.
bool add_withdrawals(Plan& plan, Random& random) {
  if (plan.ranks() < 2) return false;
  plan.patience = std::chrono::milliseconds(random.from_to(1, 12));
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const int count = random.from_to(10, 30);
  for (int number = 0; number < count; ++number) {
    PlanStep step = message(ranks[0], ranks[1], false);
    step.how = How::cancels;
    step.how_to = random.chance(0.5) ? How::waits : How::work;
    step.cancel_after = std::chrono::microseconds(random.from_to(0, 1 << random.from_to(0, 5)));
    plan.steps.push_back(step);
  }
  return true;
}

/// More buffered messages than a ring holds, which are received in another order while their sender
/// waits for everybody or closes.
bool add_buffered(Plan& plan, Random& random) {
  if (plan.ranks() < 2 || plan.hosts() > 1) return false;
  constexpr std::array kCounts = {1, 900, 1000, 1, 1100, 900, 1, 20'000};
  plan.timeout = std::max(plan.timeout, kPatient);
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const int count = random.from_to(20, random.chance(0.3) ? 400 : 100);
  const int tags = random.from_to(1, static_cast<int>(kCounts.size()));
  std::vector<PlanStep> receives;
  for (int number = 0; number < count; ++number) {
    PlanStep step = message(ranks[0], ranks[1], true, random.from_to(0, tags - 1));
    step.count = kCounts[static_cast<std::size_t>(step.tag)];
    step.how = random.chance(0.2) ? How::work : How::waits;
    step.how_to = random.chance(0.2) ? How::work : How::waits;
    step.half = Half::send;
    plan.steps.push_back(step);
    step.half = Half::receive;
    receives.push_back(step);
  }
  std::stable_sort(receives.begin(), receives.end(),
                   [](const PlanStep& a, const PlanStep& b) { return a.tag > b.tag; });
  if (random.chance(0.5)) plan.steps.push_back({.kind = StepKind::collective});
  plan.steps.insert(plan.steps.end(), receives.begin(), receives.end());
  if (random.chance(0.5)) plan.steps.push_back({.kind = StepKind::collective});
  return true;
}

/// One comes just before the others' time is over, and one does not: who judges by what it knew of
/// another host some time ago takes both for late.
bool add_latecomers(Plan& plan, Random& random) {
  if (plan.hosts() < 2 || plan.ranks() < 3) return false;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  plan.steps.push_back({.kind = StepKind::collective, .op = Op::all_reduce, .count = 10});
  plan.faults.push_back({.kind = FaultKind::late,
                         .who = ranks[0],
                         .lasts = plan.timeout * random.from_to(60, 99) / 100});
  plan.faults.push_back({.kind = FaultKind::late, .who = ranks[1], .lasts = 2 * plan.timeout});
  return true;
}

/// A member stops while so many groups fail that the first verdicts are no longer there to be read:
/// it finds those failures on the lines of the others.
bool add_missed_verdicts(Plan& plan, Random& random) {
  if (plan.ranks() < 2) return false;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const int kept = plan.hosts() > 1 ? control::kChosen : control::kProposals;
  const int count = kept + random.from_to(1, 4);
  for (int group = 1; group <= count; ++group) {
    plan.groups.push_back({shuffled_ranks(plan, random), 0});
    plan.steps.push_back({.kind = StepKind::make, .group = group});
  }
  plan.faults.push_back({.kind = FaultKind::stop,
                         .who = ranks[1],
                         .at = plan.steps.size(),
                         .lasts = std::chrono::milliseconds(random.from_to(10, 150)),
                         .is_pinned = true,
                         .steps = random.below(std::uint64_t{1} << random.from_to(1, 11))});
  for (int group = 1; group <= count; ++group) {
    plan.faults.push_back({.kind = FaultKind::abort, .who = ranks[0], .at = plan.steps.size()});
    plan.steps.push_back({.kind = StepKind::collective, .group = group});
  }
  plan.steps.push_back({.kind = StepKind::collective});
  plan.goes_on.assign(plan.goes_on.size(), true);
  return true;
}

/// A member sends and leaves while the one that receives stands between its look at the data and
/// its look at the others.
bool add_departures(Plan& plan, Random& random) {
  if (plan.ranks() < 2) return false;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const int count = random.from_to(2, 6);
  for (int group = 1; group <= count; ++group) {
    plan.groups.push_back({ranks, 0});
    plan.steps.push_back({.kind = StepKind::make, .group = group});
    const std::size_t send = plan.steps.size();
    PlanStep step = message(0, 1, true);
    step.group = group;
    plan.steps.push_back(step);
    plan.steps.push_back({.kind = StepKind::close, .group = group});
    plan.faults.push_back({.kind = FaultKind::late,
                           .who = ranks[0],
                           .at = send,
                           .lasts = std::chrono::milliseconds(random.from_to(0, 4))});
    plan.faults.push_back({.kind = FaultKind::stop,
                           .who = ranks[1],
                           .at = send,
                           .lasts = std::chrono::milliseconds(random.from_to(10, 100)),
                           .is_pinned = true,
                           .steps = random.below(std::uint64_t{1} << random.from_to(1, 8))});
  }
  return true;
}

/// Nothing is wrong and nobody late: whoever sleeps must be woken at once, each time.
bool add_quiet(Plan& plan, Random& random) {
  if (plan.ranks() < 2 || plan.hosts() > 1) return false;
  plan.hiccup = 0;
  const std::vector<int> ranks = shuffled_ranks(plan, random);
  const int count = random.from_to(10, 30);
  for (int number = 0; number < count; ++number) {
    if (random.chance(0.5)) {
      const bool is_large = random.chance(0.3);
      plan.steps.push_back({.kind = StepKind::collective,
                            .op = random.chance(0.5) ? Op::all_reduce : Op::scan,
                            .count = is_large ? random.from_to(7'000, 70'000) : 1 + number});
    } else {
      const bool is_back = random.chance(0.5);
      plan.steps.push_back(message(ranks[is_back ? 1 : 0], ranks[is_back ? 0 : 1], false));
    }
  }
  return true;
}

}  // namespace

bool add_moment(Plan& plan, Random& random) {
  std::vector<int> all = shuffled_ranks(plan, random);
  std::sort(all.begin(), all.end());
  plan.groups.push_back({std::move(all), -1});
  constexpr std::array kMoments = {
      add_chain,      add_any,         add_circles,      add_circles_apart,   add_circles_apart,
      add_opposites,  add_unawares,    add_unawares,     add_orphan,          add_late_look,
      add_half_heard, add_short_rings, add_withdrawals,  add_latecomers,      add_quiet,
      add_buffered,   add_alone,       add_last_goodbye, add_missed_verdicts, add_departures,
      add_gone_before};
  if (kMoments[random.below(kMoments.size())](plan, random)) return true;
  plan.groups.clear();
  return false;
}

}  // namespace tutti::simulate
