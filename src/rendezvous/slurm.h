// How Slurm writes, in the environment, what it has placed where.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace tutti::rendezvous {

/// "4(x2),3" -> {4, 4, 3}: how many tasks each node has. Empty for what is no such list, or one of
/// more nodes than there can be ranks.
std::vector<int> tasks_per_node(std::string_view list);

}  // namespace tutti::rendezvous
