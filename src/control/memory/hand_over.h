// How every rank of a group gets a memory of every other: see memory.h.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "net/fd.h"
#include "net/poller.h"
#include "tutti/store.h"
#include "tutti/types.h"

namespace tutti::control {

/// Called once per rank, in ascending order; the descriptor is empty where that rank handed
/// nothing.
using TakeMemory = std::function<void(int rank, net::Fd memory)>;

/// Every rank gives one descriptor (or -1: nothing) and gets those of all ranks, its own included.
/// Rank 0 listens on an abstract socket with a random name, published in `store` below `prefix`,
/// which serves for one hand-over. Both ends check that the other is the same user. `interrupt`
/// ends the wait for all to come. From then on a rank that gives up shows by the end of its socket,
/// and what a faster rank does with the memories disturbs nobody: an abort ends the wait for what
/// may be under way only if nothing comes for most of a second.
///
/// Errors  kTimeout naming the ranks that did not come; kPeerLost if rank 0 went away. They are
///         named as in `names`, by rank; empty: by these numbers.
void hand_over(Store& store, std::string_view prefix, int rank, int group_size, int own_memory,
               Deadline deadline, const TakeMemory& take, const net::Interrupt& interrupt = {},
               std::span<const int> names = {});
/// The same, all at once: for few ranks, since all descriptors are open at the same time.
std::vector<net::Fd> hand_over(Store& store, std::string_view prefix, int rank, int group_size,
                               int own_memory, Deadline deadline,
                               const net::Interrupt& interrupt = {},
                               std::span<const int> names = {});

}  // namespace tutti::control
