#include "ddp/parameter_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/hash.h"

namespace tutti::ddp {
namespace {

using Names = std::vector<std::string>;

constexpr std::size_t kListBytes = 80;  // two lists and their words fit on the board

void say(std::string& text, const Names& names, std::string_view one, std::string_view many) {
  if (names.empty()) return;
  text += fmt::format("{}{} {}", text.empty() ? "" : "; ", listed(names, kListBytes),
                      names.size() == 1 ? one : many);
}

std::unordered_map<std::string_view, const void*> by_name(std::span<const NamedParameter> all) {
  std::unordered_map<std::string_view, const void*> map;
  for (const NamedParameter& parameter : all) map.emplace(parameter.name, parameter.tensor);
  return map;
}

}  // namespace

std::size_t count_of(const ParameterSet& set) {
  return static_cast<std::size_t>(std::count(set.begin(), set.end(), 1));
}

void add(ParameterSet& into, const ParameterSet& other) {
  for (std::size_t i = 0; i < other.size(); ++i) into[i] |= other[i];
}

bool contains(const ParameterSet& whole, const ParameterSet& part) {
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] > whole[i]) return false;
  }
  return true;
}

std::uint64_t digest(const ParameterSet& set, std::uint64_t seed) {
  std::uint64_t hash = hash_combine(seed, set.size());
  for (const std::uint8_t in : set) hash = hash_combine(hash, in);
  return hash;
}

std::string listed(std::span<const std::string> names, std::size_t most) {
  constexpr std::size_t kRoomForTheRest = 16;
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::size_t room = i + 1 == names.size() ? 0 : kRoomForTheRest;
    if (i > 0 && text.size() + 2 + names[i].size() + room > most) {
      return text + fmt::format(" and {} more", names.size() - i);
    }
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return text;
}

std::string change_of(std::span<const std::string> names, const ParameterSet& before,
                      const ParameterSet& after) {
  Names frozen, thawed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (before[i] > after[i]) frozen.push_back(names[i]);
    if (before[i] < after[i]) thawed.push_back(names[i]);
  }
  std::string text;
  say(text, frozen, "is trained no more", "are trained no more");
  say(text, thawed, "is trained from now on", "are trained from now on");
  return text;
}

std::string change_of(std::span<const NamedParameter> before,
                      std::span<const NamedParameter> after) {
  const auto had = by_name(before);
  const auto has = by_name(after);
  Names added, removed, replaced;
  for (const NamedParameter& parameter : after) {
    const auto old = had.find(parameter.name);
    if (old == had.end()) {
      added.push_back(parameter.name);
    } else if (old->second != parameter.tensor) {
      replaced.push_back(parameter.name);
    }
  }
  for (const NamedParameter& parameter : before) {
    if (!has.contains(parameter.name)) removed.push_back(parameter.name);
  }
  std::string text;
  say(text, added, "was added", "were added");
  say(text, removed, "was removed", "were removed");
  say(text, replaced, "was replaced", "were replaced");
  return text;
}

}  // namespace tutti::ddp
