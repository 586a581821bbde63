// What `tutti run` tells a rank beside who it is.
#pragma once

namespace tutti {

/// The variables that it has set because nobody had: "OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE".
inline constexpr const char* kRunDefaults = "TUTTI_RUN_DEFAULTS";
/// Other launchers around it: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1;", or nothing.
inline constexpr const char* kRunAround = "TUTTI_RUN_AROUND";

}  // namespace tutti
