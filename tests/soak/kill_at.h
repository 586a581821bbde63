// How a rank of the soak `init` tells its tracer where it is: prctl(kPhaseMark, phase), which the
// kernel refuses.
#pragma once

namespace tutti::soak {

inline constexpr unsigned long kPhaseMark = 0x54695068;  // "TiPh"
enum class Phase : int { init = 1, new_group, split, close, end };

}  // namespace tutti::soak
