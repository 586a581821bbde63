// Version of the library this program runs with.
#pragma once

#include <string>

#include "tutti/types.h"

namespace tutti {

struct BuildInfo {
  std::string version;   ///< "0.1.0"
  std::string commit;    ///< short hash, or "unknown" outside a checkout
  std::string compiler;  ///< "GNU 12.2.0"
  std::string features;  ///< "native"
};

TUTTI_API BuildInfo build_info();

}  // namespace tutti
