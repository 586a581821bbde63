// Plans of votes as files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "simulate/votes/plan.h"

namespace tutti::simulate::votes {

namespace {

using nlohmann::json;

constexpr int kVersion = 1;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("replay script: " + what);
}

FaultKind kind_of(const std::string& name) {
  for (std::size_t i = 0; i < kFaultKinds; ++i)
    if (name == name_of(static_cast<FaultKind>(i))) return static_cast<FaultKind>(i);
  throw std::runtime_error(fmt::format("replay script: there is no fault '{}'", name));
}

void check(const Plan& plan) {
  require(plan.hosts() >= 2 && plan.hosts() <= 8, "from 2 to 8 hosts are possible");
  const auto is_host = [&](int host) { return host >= 0 && host < plan.hosts(); };
  for (const int processes : plan.processes)
    require(processes >= 1 && processes <= 4, "a host has 1 to 4 processes");
  for (const Wanted& wanted : plan.wanted)
    require(std::all_of(wanted.hosts.begin(), wanted.hosts.end(), is_host),
            "a verdict is wanted by a host that is not there");
  for (const Fault& fault : plan.faults) {
    const bool of_link = fault.kind == FaultKind::cut || fault.kind == FaultKind::one_way;
    require(
        is_host(fault.host) && (!of_link || (is_host(fault.other) && fault.other != fault.host)),
        fmt::format("a fault '{}' befalls a host that is not there", name_of(fault.kind)));
  }
  const auto is_time = [](Duration time) {
    return time >= Duration(0) && time <= std::chrono::hours(24);
  };
  const bool has_times =
      is_time(plan.usual_delay) && is_time(plan.longest_delay) &&
      std::all_of(plan.wanted.begin(), plan.wanted.end(),
                  [&](const Wanted& wanted) { return is_time(wanted.at); }) &&
      std::all_of(plan.faults.begin(), plan.faults.end(),
                  [&](const Fault& fault) { return is_time(fault.at) && is_time(fault.lasts); });
  require(has_times, "a time is negative or longer than a day");
  require(plan.kept >= 1, "a host keeps at least 1 entry");
}

}  // namespace

std::string to_script(const Plan& plan) {
  json script = {{"version", kVersion},
                 {"votes", true},
                 {"seed", plan.seed},
                 {"processes", plan.processes},
                 {"usual_delay_ns", plan.usual_delay.count()},
                 {"longest_delay_ns", plan.longest_delay.count()},
                 {"kept", plan.kept},
                 {"wanted", json::array()},
                 {"faults", json::array()}};
  for (const Wanted& wanted : plan.wanted)
    script["wanted"].push_back({{"hosts", wanted.hosts}, {"at_ns", wanted.at.count()}});
  for (const Fault& fault : plan.faults)
    script["faults"].push_back({{"kind", name_of(fault.kind)},
                                {"host", fault.host},
                                {"other", fault.other},
                                {"side", fault.side},
                                {"at_ns", fault.at.count()},
                                {"effects", fault.effects},
                                {"lasts_ns", fault.lasts.count()}});
  return script.dump(1) + "\n";
}

Plan from_script(const std::string& text) try {
  const json script = json::parse(text);
  require(script.at("version") == kVersion,
          fmt::format("version {}, and this simulator reads version {}",
                      script.at("version").dump(), kVersion));
  require(script.value("votes", false), "this is not about votes: soak_simulate may read it");
  Plan plan;
  plan.seed = script.at("seed").get<std::uint64_t>();
  plan.processes = script.at("processes").get<std::vector<int>>();
  plan.usual_delay = Duration(script.at("usual_delay_ns").get<std::int64_t>());
  plan.longest_delay = Duration(script.at("longest_delay_ns").get<std::int64_t>());
  plan.kept = script.at("kept").get<std::size_t>();
  for (const json& each : script.at("wanted"))
    plan.wanted.push_back(
        {each.at("hosts").get<std::vector<int>>(), Duration(each.at("at_ns").get<std::int64_t>())});
  for (const json& each : script.at("faults")) {
    Fault fault;
    fault.kind = kind_of(each.at("kind").get<std::string>());
    fault.host = each.at("host").get<int>();
    fault.other = each.at("other").get<int>();
    fault.side = each.at("side").get<std::uint32_t>();
    fault.at = Duration(each.at("at_ns").get<std::int64_t>());
    fault.effects = each.at("effects").get<std::uint64_t>();
    fault.lasts = Duration(each.at("lasts_ns").get<std::int64_t>());
    plan.faults.push_back(fault);
  }
  check(plan);
  return plan;
} catch (const json::exception& error) {
  throw std::runtime_error(std::string("replay script: ") + error.what());
}

}  // namespace tutti::simulate::votes
