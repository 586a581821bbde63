#include "base/rank_list.h"

#include <fmt/format.h>

namespace tutti {

std::string format_ranks(std::span<const int> ascending) {
  constexpr int kMaxRuns = 16;
  std::string text;
  int runs = 0;
  for (std::size_t first = 0; first < ascending.size();) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (runs++ == kMaxRuns) return fmt::format("{}, ... ({} in all)", text, ascending.size());
    if (!text.empty()) text += ", ";
    text += first == last ? fmt::format("{}", ascending[first])
                          : fmt::format("{}-{}", ascending[first], ascending[last]);
    first = last + 1;
  }
  return text;
}

std::string ranks_text(std::span<const int> ascending) {
  return fmt::format("{} {}", ascending.size() == 1 ? "rank" : "ranks", format_ranks(ascending));
}

}  // namespace tutti
