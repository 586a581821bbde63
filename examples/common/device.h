// Where a rank computes.
#pragma once

#include <torch/types.h>

#include <string>

/// "cpu"; or "cuda", whose devices the ranks of a host take in turn. Throws std::runtime_error
/// where there is none that can be used.
torch::Device device_named(const std::string& name);
