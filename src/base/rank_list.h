// Sets of ranks as people read them.
#pragma once

#include <span>
#include <string>

namespace tutti {

/// "5, 7-8": ascending ranks with runs folded. At most 16 runs, then "... (123 in all)".
std::string format_ranks(std::span<const int> ascending);
/// "rank 3", "ranks 0-2, 5".
std::string ranks_text(std::span<const int> ascending);

}  // namespace tutti
