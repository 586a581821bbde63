#include "tutti/version.h"

namespace tutti {

BuildInfo build_info() { return {TUTTI_VERSION, TUTTI_COMMIT, TUTTI_COMPILER, "native"}; }

}  // namespace tutti
