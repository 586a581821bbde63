// How a data set is dealt out to ranks. Needs no libtorch.
#pragma once

#include <cstdint>

namespace tutti {

/// What becomes of a data set whose length is not a multiple of the number of ranks.
enum class Tail : std::uint8_t {
  pad,    ///< repeat some samples, so that every rank sees as many
  drop,   ///< leave its tail out of the epoch; an error where that is all of it
  exact,  ///< every sample once: some ranks see one more than others
};

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  Tail tail = Tail::pad;
};

}  // namespace tutti
