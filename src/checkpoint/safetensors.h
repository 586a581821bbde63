// The format of safetensors: the header's bytes as a number of 64 bits, a header in JSON, and the
// elements of all tensors, in row-major order and without gaps.
#pragma once

#include <span>

#include "checkpoint/state.h"

namespace tutti::checkpoint {

/// Errors    kInvalidArgument: damaged, a name twice, overlaps, gaps.
State read_safetensors(const File& file);

/// Each tensor has bytes of its own: the format knows no sharing.
void write_safetensors(Draft& draft, std::span<const TensorToStore> tensors);

}  // namespace tutti::checkpoint
