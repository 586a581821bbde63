// What torch.save of Python makes: a zip with a pickle, and a file for each storage.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "checkpoint/state.h"

namespace tutti::checkpoint {

/// Errors    kInvalidArgument: as read_state.
State read_torch_file(const File& file, const std::optional<std::string>& key);

/// Tensors with the same bytes share one storage.
void write_torch_file(Draft& draft, std::span<const TensorToStore> tensors);

}  // namespace tutti::checkpoint
