// What `tutti run` tells a rank of the variables that it has set because nobody had.
#pragma once

namespace tutti {

/// "OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE".
inline constexpr const char* kRunDefaults = "TUTTI_RUN_DEFAULTS";

}  // namespace tutti
