#include "rendezvous/slurm.h"

#include <algorithm>
#include <charconv>

namespace tutti::rendezvous {
namespace {

/// Tasks of a node, and nodes: more than Slurm's own limit for a job.
constexpr int kMost = 65536;

/// Takes a number of at least 1 off the front of `text`.
std::optional<int> take_number(std::string_view* text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (problem != std::errc() || number < 1 || number > kMost) return std::nullopt;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return number;
}

bool take(std::string_view* text, std::string_view wanted) {
  if (!text->starts_with(wanted)) return false;
  text->remove_prefix(wanted.size());
  return true;
}

}  // namespace

std::vector<int> tasks_per_node(std::string_view list) {
  std::vector<int> nodes;
  do {
    const std::optional<int> tasks = take_number(&list);
    std::optional<int> times = 1;
    if (take(&list, "(x")) {
      times = take_number(&list);
      if (!take(&list, ")")) return {};
    }
    if (!tasks || !times || nodes.size() + static_cast<std::size_t>(*times) > kMost) {
      return {};
    }
    nodes.insert(nodes.end(), static_cast<std::size_t>(*times), *tasks);
  } while (take(&list, ","));
  if (!list.empty()) return {};
  return nodes;
}

}  // namespace tutti::rendezvous
