// Lists with an entry per rank: ranks are signed, indices are not.
#pragma once

#include <cstddef>

namespace tutti {

/// The entry of `rank`, which must be in range.
template <class List>
constexpr decltype(auto) of_rank(List& by_rank, int rank) noexcept {
  return by_rank[static_cast<std::size_t>(rank)];
}

}  // namespace tutti
