// The GPUs of this host as a program with CUDA would number them, and which rank gets which.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace tutti::launch {

struct Gpus {
  std::vector<std::string> names;  ///< as CUDA_VISIBLE_DEVICES has them: "0", "GPU-1a2b..."
  std::string why;                 ///< where there are none: the reason
};

/// Those that a program which is given this environment sees (device/visible.h).
/// `root`: in front of the paths that are looked at; for tests.
Gpus visible_gpus(const Environment& environment, const std::string& root = "");

/// How many ranks `-n gpu` means. `word`: "-n", for messages.
///
/// Errors  kInvalidArgument: there is no GPU, with the reason, or they cannot be dealt out evenly.
int ranks_by_gpus(std::string_view word, const Gpus& gpus, int gpus_per_rank);

/// CUDA_VISIBLE_DEVICES of each rank of the host: `gpus_per_rank` neighbours.
///
/// Errors  kInvalidArgument: there are too few, with the arithmetic.
std::vector<std::string> share_gpus(const Gpus& gpus, int ranks, int gpus_per_rank);

}  // namespace tutti::launch
