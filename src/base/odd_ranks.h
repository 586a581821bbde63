// Which ranks say something else than most.
#pragma once

#include <string>
#include <vector>

namespace tutti {

struct OddRanks {
  int usual = 0;           ///< the lowest rank of the most numerous; of equals the lowest of all
  std::vector<int> odd{};  ///< all that say something else, ascending; none: all say the same
};
/// `said`: by rank; at least one.
OddRanks odd_ranks(const std::vector<std::string>& said);

}  // namespace tutti
