// A group that ends while asynchronous operations are under way, as every backend says it.
#pragma once

#include <cstddef>

#include "tutti/error.h"
#include "tutti/request.h"

namespace tutti::group {

/// What the group fails with: rank `rank` has destroyed it without close.
Cause destroyed_too_early(int rank);

/// What the close of a backend throws at its deadline; without a heading, which the group has.
Error still_under_way(int rank, std::size_t pending);

}  // namespace tutti::group
