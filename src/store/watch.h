// Waiting in a store without losing sight of the world: the store knows no abort word.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/error.h"
#include "tutti/store.h"
#include "tutti/types.h"

namespace tutti::store {

/// What is thrown where those of the keys are missing: who was to set them.
using Late = std::function<Error(std::span<const std::size_t> keys)>;

/// The values of `keys`, once all are there. Calls `look` every 100 ms meanwhile: what it throws
/// ends the wait.
///
/// Errors  What `late` returns, what the store or `look` throws.
std::vector<std::string> get_watching(Store& store, std::span<const std::string> keys,
                                      Deadline& deadline, const std::function<void()>& look,
                                      const Late& late);

/// What is left, as stores count it.
Store::Timeout timeout_of(Deadline& deadline);

}  // namespace tutti::store
