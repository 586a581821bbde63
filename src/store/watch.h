// Waiting in a store without losing sight of the world: the store knows no abort word.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/store.h"
#include "tutti/types.h"

namespace tutti::store {

/// The values of `keys`, once all are there. Calls `look` every 100 ms meanwhile: what it throws
/// ends the wait.
///
/// Errors  kTimeout: which keys were missing. What the store or `look` throws.
std::vector<std::string> get_watching(Store& store, std::span<const std::string> keys,
                                      Deadline& deadline, const std::function<void()>& look);

/// What is left, as stores count it.
Store::Timeout timeout_of(Deadline& deadline);

}  // namespace tutti::store
