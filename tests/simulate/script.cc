#include "simulate/script.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "control/board/limits.h"

namespace tutti::simulate {

const char* name_of(FaultKind kind) noexcept {
  constexpr std::array<const char*, kFaultKinds> kNames = {
      "none", "die",   "stop", "late", "disagree", "skip", "abort",
      "quit", "error", "slow", "swap", "cut",      "lose", "freeze"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_of_host(FaultKind kind) noexcept { return kind >= FaultKind::cut; }
bool is_of_process(FaultKind kind) noexcept {
  return kind == FaultKind::die || kind == FaultKind::stop;
}
bool is_at_step(const Fault& fault) noexcept {
  return fault.is_pinned || !(is_of_process(fault.kind) || is_of_host(fault.kind));
}

std::vector<int> Plan::processes_of(int host) const {
  std::vector<int> processes;
  for (std::size_t id = 0; id < hosts_of.size(); ++id)
    if (hosts_of[id] == host) processes.push_back(static_cast<int>(id));
  return processes;
}

bool has_root(Op op) noexcept {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

bool has_parts(Op op) noexcept {
  return op == Op::all_to_all || op == Op::all_gather || op == Op::reduce_scatter ||
         op == Op::gather || op == Op::scatter;
}

bool is_of_threads(const Plan& plan) {
  if (plan.hosts() > 1) return false;
  return std::none_of(plan.faults.begin(), plan.faults.end(), [](const Fault& fault) {
    return fault.kind == FaultKind::die || fault.kind == FaultKind::stop ||
           fault.kind == FaultKind::error;
  });
}

namespace {

using nlohmann::json;

constexpr int kVersion = 3;
constexpr std::array<const char*, 4> kStepNames = {"collective", "message", "make", "close"};
constexpr std::array<const char*, kHalves> kHalfNames = {"both", "send", "receive"};
constexpr std::array<const char*, kHows> kHowNames = {"waits", "work", "callback", "thread",
                                                      "cancels"};
constexpr std::array<Op, 11> kOps = {
    Op::all_reduce, Op::broadcast, Op::barrier, Op::reduce, Op::reduce_scatter, Op::all_gather,
    Op::all_to_all, Op::gather,    Op::scatter, Op::scan,   Op::exclusive_scan};

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error("replay script: " + what);
}

void require(bool holds, const std::string& what) {
  if (!holds) refuse(what);
}

template <std::size_t Count>
std::size_t index_in(const std::array<const char*, Count>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  require(found != names.end(), fmt::format("'{}' is none of {}", name, fmt::join(names, ", ")));
  return static_cast<std::size_t>(found - names.begin());
}

std::array<const char*, kFaultKinds> fault_names() {
  std::array<const char*, kFaultKinds> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = name_of(static_cast<FaultKind>(i));
  return names;
}

void check_groups(const Plan& plan) {
  require(!plan.groups.empty(), "no groups; the first one is the world");
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const PlannedGroup& group = plan.groups[i];
    require(!group.world_ranks.empty(), fmt::format("group {} has no ranks", i));
    const std::set<int> ranks(group.world_ranks.begin(), group.world_ranks.end());
    require(ranks.size() == group.world_ranks.size(), fmt::format("group {} has a rank twice", i));
    require(*ranks.begin() >= 0 && *ranks.rbegin() < plan.ranks(),
            fmt::format("group {} has a rank that the world has not", i));
    require(group.parent < static_cast<int>(i) && (group.parent >= 0) == (i > 0),
            fmt::format("group {} is made of group {}", i, group.parent));
  }
}

void check_steps(const Plan& plan) {
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const PlanStep& step = plan.steps[i];
    require(step.group >= 0 && step.group < static_cast<int>(plan.groups.size()),
            fmt::format("step {} names group {}, which there is not", i, step.group));
    const auto size =
        static_cast<int>(plan.groups[static_cast<std::size_t>(step.group)].world_ranks.size());
    const bool in_range = step.from >= 0 && step.from < size && step.to >= 0 && step.to < size &&
                          step.root >= -1 && step.root < size;
    require(in_range, fmt::format("step {} names a rank that its group has not", i));
    require(step.kind != StepKind::collective || has_root(step.op) == (step.root >= 0),
            fmt::format("step {} needs a root, or none", i));
    require(step.cancel_after.count() >= 0, "times are not negative");
    require(step.count >= (step.kind == StepKind::message ? 1 : 0) && step.count <= 1 << 22,
            fmt::format("step {} moves {} floats", i, step.count));
    require(step.kind != StepKind::message || (step.from != step.to && step.tag >= 0),
            fmt::format("step {} is a message to its sender, or its tag is negative", i));
  }
}

void check_hosts(const Plan& plan) {
  const auto processes = static_cast<std::size_t>(plan.process_of.back() + 1);
  require(plan.hosts_of.empty() || plan.hosts_of.size() == processes,
          "hosts has a value for each process, or none");
  int last = -1;
  for (const int host : plan.hosts_of) {
    require(host == last || host == last + 1, "hosts are numbered by the processes, from 0");
    last = host;
  }
  std::vector<int> ranks(static_cast<std::size_t>(plan.hosts()));
  for (int rank = 0; rank < plan.ranks(); ++rank)
    ++ranks[static_cast<std::size_t>(plan.host_of(rank))];
  require(*std::max_element(ranks.begin(), ranks.end()) <= control::kMaxLocalRanks,
          fmt::format("a host has at most {} ranks", control::kMaxLocalRanks));
  require(plan.delay.count() >= 1, "what goes from host to host takes its time");
}

void check_fault(const Plan& plan, const Fault& fault) {
  require(fault.lasts.count() >= 0, "times are not negative");
  const bool of_host = is_of_host(fault.kind);
  const int count = is_at_step(fault) ? plan.ranks()
                    : of_host         ? plan.hosts()
                                      : plan.process_of.back() + 1;
  require(fault.who >= 0 && fault.who < count,
          fmt::format("a fault '{}' befalls {}, who is not there", name_of(fault.kind), fault.who));
  require(!of_host || plan.hosts() > 1, "a fault of a host where there is one");
  const int host = fault.is_pinned ? plan.host_of(fault.who) : fault.who;
  require(fault.kind != FaultKind::cut ||
              (fault.other >= -1 && fault.other < plan.hosts() && fault.other != host),
          fmt::format("host {} is cut from {}", host, fault.other));
}

void check(const Plan& plan) {
  require(!plan.process_of.empty() && plan.ranks() <= 4096, "from 1 to 4096 ranks are possible");
  require(plan.cores >= 1, "a machine has cores");
  require(plan.put_aside > 0 && plan.put_aside <= 1 && plan.hiccup >= 0 && plan.hiccup <= 1,
          "put_aside and hiccup are probabilities");
  require(plan.timeout.count() > 0 && plan.patience.count() >= 0, "times are not negative");
  int last = -1;
  for (const int process : plan.process_of) {
    require(process == last || process == last + 1, "processes are numbered by the ranks, from 0");
    last = process;
  }
  const auto ranks = plan.process_of.size();
  require(plan.goes_on.size() == ranks && plan.keeps.size() == ranks,
          "goes_on and keeps have a value for each rank");
  check_groups(plan);
  check_steps(plan);
  check_hosts(plan);
  for (const Fault& fault : plan.faults) check_fault(plan, fault);
}

json to_json(const PlanStep& step) {
  json text = {{"do", kStepNames[static_cast<std::size_t>(step.kind)]}, {"group", step.group}};
  if (step.kind == StepKind::collective)
    text.update({{"op", name_of(step.op)}, {"root", step.root}, {"uneven", step.uneven}});
  if (step.kind == StepKind::message)
    text.update({{"from", step.from},
                 {"to", step.to},
                 {"tag", step.tag},
                 {"buffered", step.buffered},
                 {"any", step.any},
                 {"half", kHalfNames[static_cast<std::size_t>(step.half)]},
                 {"how_to", kHowNames[static_cast<std::size_t>(step.how_to)]},
                 {"cancel_after_us", step.cancel_after.count()}});
  if (step.kind == StepKind::collective || step.kind == StepKind::message)
    text.update({{"count", step.count}, {"how", kHowNames[static_cast<std::size_t>(step.how)]}});
  return text;
}

How how_of(const json& text, const char* key) {
  return static_cast<How>(index_in(kHowNames, text.at(key).get<std::string>()));
}

PlanStep step_of(const json& text) {
  PlanStep step;
  step.kind = static_cast<StepKind>(index_in(kStepNames, text.at("do").get<std::string>()));
  step.group = text.at("group").get<int>();
  if (step.kind == StepKind::make || step.kind == StepKind::close) return step;
  step.count = text.at("count").get<int>();
  step.how = how_of(text, "how");
  if (step.kind == StepKind::collective) {
    const auto op = text.at("op").get<std::string>();
    const auto found =
        std::find_if(kOps.begin(), kOps.end(), [&](Op each) { return name_of(each) == op; });
    require(found != kOps.end(), fmt::format("'{}' is no collective of a plan", op));
    step.op = *found;
    step.root = text.at("root").get<int>();
    step.uneven = text.value("uneven", false);
    return step;
  }
  step.from = text.at("from").get<int>();
  step.to = text.at("to").get<int>();
  step.tag = text.at("tag").get<int>();
  step.buffered = text.at("buffered").get<bool>();
  step.any = text.at("any").get<bool>();
  step.half = static_cast<Half>(index_in(kHalfNames, text.value("half", "both")));
  step.how_to = how_of(text, "how_to");
  step.cancel_after = std::chrono::microseconds(text.at("cancel_after_us").get<std::int64_t>());
  return step;
}

}  // namespace

std::string to_script(const Plan& plan) {
  json script = {{"version", kVersion},
                 {"seed", plan.seed},
                 {"interleaving", plan.interleaving},
                 {"put_aside", plan.put_aside},
                 {"hiccup", plan.hiccup},
                 {"timeout_ms", plan.timeout.count()},
                 {"patience_ms", plan.patience.count()},
                 {"warns", plan.warns},
                 {"cores", plan.cores},
                 {"processes", plan.process_of},
                 {"hosts", plan.hosts_of},
                 {"delay_us", plan.delay.count()},
                 {"goes_on", plan.goes_on},
                 {"keeps", plan.keeps},
                 {"groups", json::array()},
                 {"steps", json::array()},
                 {"faults", json::array()}};
  for (const PlannedGroup& group : plan.groups)
    script["groups"].push_back({{"of", group.parent}, {"ranks", group.world_ranks}});
  for (const PlanStep& step : plan.steps) script["steps"].push_back(to_json(step));
  for (const Fault& fault : plan.faults)
    script["faults"].push_back({{"kind", name_of(fault.kind)},
                                {"who", fault.who},
                                {"at", fault.at},
                                {"lasts_ns", fault.lasts.count()},
                                {"other", fault.other},
                                {"one_way", fault.one_way},
                                {"pinned", fault.is_pinned},
                                {"steps", fault.steps}});
  return script.dump(1) + "\n";
}

Plan from_script(const std::string& text) try {
  const json script = json::parse(text);
  require(script.at("version") == kVersion,
          fmt::format("version {}, and this simulator reads version {}",
                      script.at("version").dump(), kVersion));
  Plan plan;
  plan.seed = script.at("seed").get<std::uint64_t>();
  plan.interleaving = script.value("interleaving", std::uint64_t{0});
  plan.put_aside = script.at("put_aside").get<double>();
  plan.hiccup = script.at("hiccup").get<double>();
  plan.timeout = std::chrono::milliseconds(script.at("timeout_ms").get<std::int64_t>());
  plan.patience = std::chrono::milliseconds(script.at("patience_ms").get<std::int64_t>());
  plan.warns = script.value("warns", false);
  plan.cores = script.at("cores").get<int>();
  plan.process_of = script.at("processes").get<std::vector<int>>();
  plan.hosts_of = script.at("hosts").get<std::vector<int>>();
  plan.delay = std::chrono::microseconds(script.at("delay_us").get<std::int64_t>());
  plan.goes_on = script.at("goes_on").get<std::vector<bool>>();
  plan.keeps = script.at("keeps").get<std::vector<bool>>();
  for (const json& group : script.at("groups"))
    plan.groups.push_back({group.at("ranks").get<std::vector<int>>(), group.at("of").get<int>()});
  for (const json& step : script.at("steps")) plan.steps.push_back(step_of(step));
  for (const json& fault : script.at("faults"))
    plan.faults.push_back(
        {static_cast<FaultKind>(index_in(fault_names(), fault.at("kind").get<std::string>())),
         fault.at("who").get<int>(), fault.at("at").get<std::uint64_t>(),
         std::chrono::nanoseconds(fault.at("lasts_ns").get<std::int64_t>()),
         fault.at("other").get<int>(), fault.at("one_way").get<bool>(),
         fault.value("pinned", false), fault.value("steps", std::uint64_t{0})});
  check(plan);
  return plan;
} catch (const nlohmann::json::exception& error) {
  refuse(error.what());
}

}  // namespace tutti::simulate
