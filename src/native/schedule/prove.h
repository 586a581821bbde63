// Proof by symbolic execution that the schedules of all ranks together are the operation.
//
// Places hold *expressions*: a rank's input chunk, or the combination of a left and a right
// expression. Channels hold nothing (*zero buffering*): a send and the matching receive happen
// together or not at all, each in its rank's current round, which must have the same number. What
// ends with every rank past its last round, every send received, no two steps of a round in
// conflict, and every output place the right expression, is right under any buffering, because both
// ends of a pair keep one order. Why it is right with several segments under way: executor.h.
#pragma once

#include <span>
#include <string>

#include "native/schedule/schedule.h"

namespace tutti::native {

/// Empty when `by_rank` (one schedule per rank of `shape.group_size`) is proven to be the
/// operation; else the first thing that is wrong. `shape.rank` is not used.
std::string disprove(const Shape& shape, std::span<const Schedule> by_rank);

}  // namespace tutti::native
