#include "simulate/expect.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "control/judge/deadlock.h"
#include "simulate/script.h"

namespace tutti::simulate {

using namespace std::chrono_literals;

namespace {

using nlohmann::json;

/// Before anybody else is asked; and to find out whether what real ranks were told can be.
constexpr int kInterleavings = 24, kMoreInterleavings = 4000;
/// Of real cores; more ranks would only wait for them.
constexpr int kMostRanks = 16;

json left_out(const Plan& plan, const std::string& why) {
  return {{"seed", plan.seed}, {"script", to_script(plan)}, {"left out", why}};
}

/// A cut so short parts no hosts, one so long does, simulated ones and real ones.
constexpr std::chrono::seconds kHeals{1}, kParts{4};

bool cuts(const Plan& plan) {
  return !plan.faults.empty() && plan.faults.front().kind == FaultKind::cut;
}

/// Times that are long beside what a busy machine takes to run somebody; and beside that in which
/// hosts part, where a link is cut. What is to last about as long as the timeout lasts longer.
void stretch(Plan& plan) {
  constexpr std::chrono::milliseconds kShortest = 1500ms, kLongest = 2000ms;
  const auto timeout = cuts(plan) ? 2 * kParts : std::clamp(5 * plan.timeout, kShortest, kLongest);
  const auto factor =
      static_cast<double>(timeout.count()) / static_cast<double>(plan.timeout.count());
  const auto stretched = [factor]<class Duration>(Duration time) {
    return Duration(static_cast<std::int64_t>(factor * static_cast<double>(time.count())));
  };
  plan.timeout = timeout;
  plan.patience = stretched(plan.patience);
  for (Fault& fault : plan.faults) {
    fault.lasts = std::min<std::chrono::nanoseconds>(stretched(fault.lasts), 2 * timeout);
    if (!cuts(plan) && fault.lasts > timeout * 3 / 4)
      fault.lasts = std::max<std::chrono::nanoseconds>(fault.lasts, timeout * 5 / 4);
    if (cuts(plan) && fault.lasts > kHeals)
      fault.lasts = std::max<std::chrono::nanoseconds>(fault.lasts, kParts);
  }
}

/// A death or stop at a step of a process becomes one at a step of the plan: that which the process
/// had come to there, or any where it had not begun, or ended.
void pin(Plan& plan) {
  Fault& fault = plan.faults.front();
  fault.steps = 0;
  if (is_at_step(fault)) return;
  // Of a host it is the first process's.
  const int process = is_of_host(fault.kind) ? plan.processes_of(fault.who).front() : fault.who;
  Plan probe = plan;
  probe.faults.front().kind = FaultKind::die;
  probe.faults.front().who = process;
  Tally nothing;
  std::vector<Told> told;
  run_round(probe, nothing, &told);
  Random random(plan.seed);
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < told.size(); ++rank)
    if (plan.process_of[rank] == process) ranks.push_back(rank);
  const std::size_t rank = ranks[random.below(ranks.size())];
  const bool is_inside = told[rank].reached && !told[rank].has_ended;
  fault.who = static_cast<int>(rank);
  fault.at = is_inside ? *told[rank].reached : random.below(plan.steps.size() + 1);
  fault.is_pinned = true;
  if (fault.kind == FaultKind::die) fault.lasts = random.chance(0.5) ? 0us : 1us;
}

/// Between real hosts what a rank has sent needs a connection: it gets across before the rank, or
/// its host, stops.
void let_arrive(Plan& plan) {
  const Fault fault = plan.faults.front();
  if (plan.hosts() > 1 && (fault.kind == FaultKind::stop || fault.kind == FaultKind::freeze))
    plan.faults.push_back(
        {.kind = FaultKind::late, .who = fault.who, .at = fault.at, .lasts = plan.timeout / 16});
}

/// All ranks have come as far as the one that cuts the link: none is about to start, which needs
/// the store. And all close their groups at the end, where none gets across, simulated or real.
void gather(Plan& plan) {
  Fault& fault = plan.faults.front();
  fault.at = std::min<std::size_t>(fault.at, plan.steps.size());
  plan.steps.insert(plan.steps.begin() + static_cast<std::ptrdiff_t>(fault.at), PlanStep{});
  ++fault.at;
  plan.goes_on.assign(plan.goes_on.size(), true);
}

/// Up to `at_most`, of all orders of magnitude alike.
std::chrono::nanoseconds some_time(Random& random, std::chrono::nanoseconds at_most) {
  return at_most / random.from_to(1, 1 << random.from_to(0, 10));
}

/// As on a busy machine ranks are late here and there, and processes get no core for a while,
/// wherever they are; in all for less than anybody is waited for.
void make_busy(Plan& plan, Random& random) {
  constexpr std::array<double, 4> kHowOften = {0, 0.1, 0.5, 0.9};
  const double how_often = kHowOften[random.below(kHowOften.size())];
  const std::chrono::nanoseconds in_all = plan.timeout / 12;
  const auto expected = 1 + static_cast<int>(how_often * static_cast<double>(plan.steps.size()));
  for (int rank = 0; rank < plan.ranks(); ++rank)
    for (std::size_t step = 0; step <= plan.steps.size() + 1; ++step)
      if (random.chance(how_often))
        plan.faults.push_back({.kind = FaultKind::late,
                               .who = rank,
                               .at = step,
                               .lasts = some_time(random, in_all / expected)});
  const double how_often_inside = kHowOften[random.below(kHowOften.size())];
  for (int process = 0; process <= plan.process_of.back(); ++process)
    if (random.chance(how_often_inside))
      plan.faults.push_back({.kind = FaultKind::stop,
                             .who = process,
                             .at = 1 + random.below(200 + 400 * (plan.steps.size() + 1)),
                             .lasts = some_time(random, in_all)});
}

/// Another order of steps.
Plan vary(const Plan& plan, int number) {
  constexpr std::array<double, 4> kPutAside = {0.3, 0.05, 0.01, 0.001};
  Random random(plan.seed * 100 + static_cast<std::uint64_t>(number));
  Plan varied = plan;
  varied.interleaving = random.next() | 1;
  varied.put_aside = kPutAside[random.below(kPutAside.size())];
  varied.hiccup = random.chance(0.5) ? 0.0005 : 0;
  // Nobody knows when the thread that kills a real process gets its turn.
  for (Fault& fault : varied.faults)
    if (fault.kind == FaultKind::die && fault.lasts > 0ns)
      fault.lasts = std::chrono::microseconds(random.from_to(1, 1 << random.from_to(0, 16)));
  if (is_of_threads(plan) && random.chance(0.3))
    std::fill(varied.process_of.begin(), varied.process_of.end(), 0);
  make_busy(varied, random);
  return varied;
}

/// Who dies takes along what the other ranks of its process were told.
void forget_the_dead(const Plan& plan, std::vector<Told>& told) {
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].has_ended) continue;
    for (std::size_t other = 0; other < told.size(); ++other)
      if (plan.process_of[other] == plan.process_of[rank]) told[other] = {};
  }
}

/// What does not hold in both; empty: calls only, which are then left out.
std::string merge(std::vector<Told>& told, const std::vector<Told>& other, int* calls_left_out) {
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].has_ended != other[rank].has_ended) return "whether a rank dies";
    if (told[rank].groups != other[rank].groups) return "what a group fails with";
    *calls_left_out += static_cast<int>(std::erase_if(told[rank].calls, [&](const auto& call) {
      const auto found = other[rank].calls.find(call.first);
      return found == other[rank].calls.end() || found->second != call.second;
    }));
  }
  return {};
}

bool ends_well(const std::vector<Told>& told) {
  return std::all_of(told.begin(), told.end(), [](const Told& each) {
    return each.has_ended &&
           std::all_of(each.groups.begin(), each.groups.end(), [](const auto& group) {
             return group.second == "well" || group.second == "left";
           });
  });
}

/// That nobody is called late or lost who is slow is worth to be seen as well.
bool is_slowness(const Fault& fault) {
  return fault.kind == FaultKind::late || fault.kind == FaultKind::stop ||
         fault.kind == FaultKind::slow || fault.kind == FaultKind::freeze ||
         (fault.kind == FaultKind::cut && fault.lasts <= kHeals);
}

/// Ranks wake together that stopped together. If the others' time is over by then, it depends on
/// which of them looks first whether the others are called late.
bool stops_several_for_long(const Plan& plan, const Fault& fault) {
  if (fault.lasts < plan.timeout) return false;
  int stopped = 0;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    const bool with_host =
        fault.kind == FaultKind::freeze && plan.host_of(rank) == plan.host_of(fault.who);
    const auto process_of = [&](int each) {
      return plan.process_of[static_cast<std::size_t>(each)];
    };
    const bool with_process =
        fault.kind == FaultKind::stop && process_of(rank) == process_of(fault.who);
    if (with_host || with_process) ++stopped;
  }
  return stopped > 1;
}

/// Simulated hosts share the memory of their data: what a rank has sent lies in bounded rings, and
/// between real hosts in connections, the next one behind it; and what several ranks of a real host
/// are to get comes to one of them. Null: it can be run.
const char* why_only_simulated(const Plan& plan) {
  if (plan.hosts() == 1) return nullptr;
  const Fault& fault = plan.faults.front();
  if (fault.kind == FaultKind::cut && fault.other >= 0 && plan.hosts() > 2)
    return "it parts two hosts that a third one reaches: either may be named";
  if (stops_several_for_long(plan, fault))
    return "of ranks that are stopped together for long it depends on which one wakes first";
  if (fault.kind == FaultKind::error) return "it refuses memory that is not needed between hosts";
  // The first two to come may disagree before anything is known of the others.
  const bool names_who_has_come = fault.kind == FaultKind::die || fault.kind == FaultKind::lose ||
                                  fault.kind == FaultKind::abort ||
                                  fault.kind == FaultKind::disagree;
  const bool has_just_met = fault.at == 0 || (fault.at <= plan.steps.size() &&
                                              plan.steps[fault.at - 1].kind == StepKind::make);
  if (names_who_has_come && has_just_met) return "members of a group connect once they have met";
  const auto lies_in_a_connection = [](const PlanStep& step) {
    constexpr int kRoot = 0, kAnother = 1;
    Request request;
    request.op = step.op;
    request.root = kRoot;
    return step.kind == StepKind::message ||
           (step.kind == StepKind::collective && !control::needs_all(request, kAnother));
  };
  const auto is_large = [&](const PlanStep& step) {
    return lies_in_a_connection(step) && step.count > 1000;
  };
  if (std::any_of(plan.steps.begin(), plan.steps.end(), is_large))
    return "much of what a rank sends lies in a connection";
  const auto first = plan.steps.begin() + static_cast<std::ptrdiff_t>(
                                              std::min<std::size_t>(fault.at, plan.steps.size()));
  const auto last = plan.steps.end() - first > 2 ? first + 2 : plan.steps.end();
  if (fault.kind == FaultKind::swap && std::any_of(first, last, lies_in_a_connection))
    return "what a rank sends too early lies in a connection";
  const auto for_some = [&](const PlanStep& step) {
    return step.kind == StepKind::collective && lies_in_a_connection(step);
  };
  if (fault.kind == FaultKind::skip && std::any_of(first, last, for_some))
    return "between hosts data go through ranks that are not there";
  if (is_slowness(fault) && std::count_if(first, plan.steps.end(), for_some) > 1)
    return "what a rank sends too early lies in a connection";
  if (is_slowness(fault) && fault.lasts >= plan.timeout &&
      std::any_of(first, plan.steps.end(), lies_in_a_connection))
    return "what goes to or through a rank that is late for long lies in a connection";
  return nullptr;
}

/// "kPeerLost": how members of a group of the plan have ended with it, in words of told.h.
std::set<std::string> endings_of(std::size_t group, const std::vector<Told>& told) {
  std::set<std::string> endings;
  for (const Told& each : told)
    if (const auto found = each.groups.find(group); found != each.groups.end())
      endings.insert(found->second.substr(0, found->second.find(' ')));
  return endings;
}

/// Who gives up as one group fails leaves another, in which the rank that quits or is late is
/// awaited as well: it depends on the moment which of the two is found first. Who quits is late for
/// the others where its close of another group waits for them: both times are over at one moment.
/// Null: it does not depend on that.
const char* why_either_may_be_named(const Plan& plan, const std::vector<Told>& told) {
  if (plan.hosts() == 1 || plan.faults.empty()) return nullptr;
  const Fault& fault = plan.faults.front();
  if (fault.kind != FaultKind::quit && !is_slowness(fault)) return nullptr;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (fault.kind == FaultKind::quit && endings_of(group, told).contains("kTimeout"))
      return "a close and the calls of others time out together";
    bool is_left = false, fails = false;
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
      const auto found = told[rank].groups.find(group);
      if (found == told[rank].groups.end()) continue;
      const bool leaves = found->second == "left";
      is_left |= leaves && static_cast<int>(rank) != fault.who;
      fails |= !leaves && found->second != "well";
    }
    if (is_left && fails) return "a second rank leaves: either may be named";
  }
  return nullptr;
}

/// Data between simulated hosts are in memory that all share: they cross a link that is cut, and
/// come from a host that has stopped. So ranks get on that real ones do not, and what these are
/// told is known only where all find their group failed in the same way. And the real store is on
/// rank 0's host: who is cut off from it makes no group. Null: it can be run.
const char* why_not_apart(const Plan& plan, const std::vector<Told>& told) {
  if (plan.hosts() == 1 || plan.faults.empty()) return nullptr;
  const Fault& fault = plan.faults.front();
  const bool parts = cuts(plan) && fault.lasts > kHeals;
  if (!parts && fault.kind != FaultKind::freeze) return nullptr;
  const auto first = plan.steps.begin() + static_cast<std::ptrdiff_t>(
                                              std::min<std::size_t>(fault.at, plan.steps.size()));
  if (parts && std::any_of(first, plan.steps.end(),
                           [](const PlanStep& step) { return step.kind == StepKind::make; }))
    return "it makes a group while the store cannot be reached";
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    const std::set<std::string> endings = endings_of(group, told);
    const bool is_well = std::all_of(endings.begin(), endings.end(), [](const auto& each) {
      return each == "well" || each == "left";
    });
    if (!is_well && endings.size() > 1)
      return parts ? "it cuts a link that simulated data cross"
                   : "it stops a host from which simulated data still come";
  }
  return nullptr;
}

}  // namespace

json expect_drawn(Plan plan) {
  if (plan.faults.size() != 1) return left_out(plan, "it has not one fault");
  if (plan.ranks() > kMostRanks) return left_out(plan, "it has more than 16 ranks");
  stretch(plan);
  pin(plan);
  let_arrive(plan);
  if (const char* why = why_only_simulated(plan)) return left_out(plan, why);
  if (cuts(plan)) gather(plan);
  return expect(plan);
}

json explain(const Plan& plan, const json& told, const json& unlike) {
  std::vector<Told> real, simulated;
  for (const json& each : told) real.push_back(told_from(each));
  const auto is_alike = [&](const Plan& varied) {
    Tally nothing;
    run_round(varied, nothing, &simulated);
    forget_the_dead(varied, simulated);
    for (std::size_t rank = 0; rank < real.size(); ++rank)
      if (simulated[rank].has_ended != real[rank].has_ended ||
          simulated[rank].groups != real[rank].groups)
        return false;
    return std::all_of(unlike.begin(), unlike.end(), [&](const json& call) {
      const auto rank = call.at(0).get<std::size_t>();
      const auto what = call.at(1).get<std::string>();
      return simulated[rank].calls.contains(what) == real[rank].calls.contains(what) &&
             simulated[rank].calls[what] == real[rank].calls[what];
    });
  };
  for (int number = 0; number < kMoreInterleavings; ++number) {
    const Plan varied = vary(plan, number);
    if (is_alike(varied)) return {{"explained", to_script(varied)}};
  }
  return {{"unexplained", kMoreInterleavings}};
}

json expect(const Plan& plan) {
  std::vector<Told> told, other;
  int calls_left_out = 0;
  for (int number = 0; number < kInterleavings; ++number) {
    const Plan varied = vary(plan, number);
    Tally nothing;
    const std::string violation = run_round(varied, nothing, &other);
    if (!violation.empty())
      return {{"seed", plan.seed}, {"script", to_script(varied)}, {"violation", violation}};
    forget_the_dead(varied, other);
    if (number == 0) told = other;
    const std::string differs = merge(told, other, &calls_left_out);
    if (!differs.empty()) return left_out(plan, differs + " depends on the moment");
  }
  if (ends_well(told) && !(is_slowness(plan.faults.front()) && plan.seed % 4 == 0))
    return left_out(plan, "nothing fails (of slow ranks: of three in four)");
  if (const char* why = why_not_apart(plan, told)) return left_out(plan, why);
  if (const char* why = why_either_may_be_named(plan, told)) return left_out(plan, why);
  json by_rank = json::array();
  for (const Told& each : told) by_rank.push_back(to_json(each));
  return {{"seed", plan.seed},
          {"script", to_script(plan)},
          {"told", by_rank},
          {"calls left out", calls_left_out}};
}

}  // namespace tutti::simulate
