#include "base/odd_ranks.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>

namespace tutti {

OddRanks odd_ranks(const std::vector<std::string>& said) {
  std::map<std::string_view, std::vector<int>> sides;
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    sides[said[rank]].push_back(static_cast<int>(rank));
  const auto usual = std::max_element(sides.begin(), sides.end(), [](auto& one, auto& other) {
    if (one.second.size() != other.second.size()) return one.second.size() < other.second.size();
    return one.second.front() > other.second.front();
  });
  OddRanks found{.usual = usual->second.front()};
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank] != usual->first) found.odd.push_back(static_cast<int>(rank));
  return found;
}

}  // namespace tutti
