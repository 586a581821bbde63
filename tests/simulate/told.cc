#include "simulate/told.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tutti::simulate {

namespace {

using nlohmann::json;

/// A group that could not be made has ended with the reason.
std::string ending_of(const Told& told, std::size_t group) {
  if (const auto found = told.groups.find(group); found != told.groups.end()) return found->second;
  const auto make = told.calls.find(fmt::format("make of group {}", group));
  return make != told.calls.end() ? make->second.ending : "never made";
}

bool has_failed(const Told& told) {
  return std::any_of(told.calls.begin(), told.calls.end(),
                     [](const auto& call) { return call.second.ending != "well"; });
}

}  // namespace

json to_json(const Told& told) {
  if (!told.has_ended) return {};
  json groups = json::object(), calls = json::object();
  for (const auto& [group, ending] : told.groups) groups[std::to_string(group)] = ending;
  for (const auto& [what, call] : told.calls) calls[what] = {call.group, call.ending};
  return {{"groups", groups}, {"calls", calls}};
}

Told told_from(const json& text) {
  Told told;
  told.has_ended = !text.is_null();
  if (!told.has_ended) return told;
  for (const auto& [group, ending] : text.at("groups").items())
    told.groups[std::stoul(group)] = ending.get<std::string>();
  for (const auto& [what, call] : text.at("calls").items())
    told.calls[what] = {call.at(0).get<std::size_t>(), call.at(1).get<std::string>()};
  return told;
}

std::vector<Difference> differences(const Told& simulated, const Told& real) {
  std::vector<Difference> all;
  const auto differ = [&](const std::string& what, bool is_call, const std::string& one,
                          const std::string& other) {
    all.push_back({what, is_call, fmt::format("{}: {}, simulated {}", what, other, one)});
  };
  std::map<std::size_t, std::string> groups = simulated.groups;
  groups.insert(real.groups.begin(), real.groups.end());
  for (const auto& [group, ignored] : groups)
    if (ending_of(simulated, group) != ending_of(real, group))
      differ(fmt::format("group {}", group), false, ending_of(simulated, group),
             ending_of(real, group));
  for (const auto& [what, call] : simulated.calls) {
    const auto found = real.calls.find(what);
    if (found == real.calls.end()) {
      if (!has_failed(real)) differ(what, true, call.ending, "never called");
      continue;
    }
    const std::string& ending = found->second.ending;
    const bool is_sooner = call.ending == "well" && ending == ending_of(real, call.group);
    if (ending != call.ending && !is_sooner) differ(what, true, call.ending, ending);
  }
  return all;
}

}  // namespace tutti::simulate
