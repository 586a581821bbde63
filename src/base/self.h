// The rank that calls, as the heading of an error names it.
#pragma once

#include <string_view>

namespace tutti {

struct Self {
  int rank = -1;                ///< in its group
  std::string_view group = {};  ///< its name; a world has none
};

}  // namespace tutti
