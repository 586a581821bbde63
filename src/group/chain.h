// The chain: a running hash of what a group's ranks have done together. Ranks whose chains differ
// at the same number disagree, now or earlier. Not a defence against malice: a defence against
// mistakes.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "base/hash.h"
#include "tutti/request.h"

namespace tutti::group {

constexpr std::uint64_t chain_seed(GroupId group) noexcept { return hash_combine(group, 0); }

/// The chain after `request`: operation, dtype, count, reduce operation with its factor, root, and
/// what the library does it for.
/// Of a v-variant the counts that all ranks must give alike; the others are checked edge by edge.
/// Of a list the counts of its buffers.
constexpr std::uint64_t chain_next(std::uint64_t chain, const Request& request) noexcept {
  const auto root = static_cast<std::uint64_t>(static_cast<std::uint32_t>(request.root));
  const std::uint64_t what = static_cast<std::uint64_t>(request.op) |
                             static_cast<std::uint64_t>(request.dtype) << 8 |
                             static_cast<std::uint64_t>(request.reduce.kind()) << 16 |
                             (request.uneven ? std::uint64_t{1} << 24 : 0) | root << 32;
  std::uint64_t next = hash_combine(chain, what, request.uneven ? 0 : request.count);
  if (request.uneven && request.op == Op::all_gather) {
    for (const std::size_t count : request.recv_counts) next = hash_combine(next, count);
  }
  if (request.uneven && request.op == Op::reduce_scatter) {
    for (const std::size_t count : request.send_counts) next = hash_combine(next, count);
  }
  if (request.op == Op::all_reduce) {
    for (const std::size_t count : request.send_counts) next = hash_combine(next, count);
  }
  if (request.reduce.kind() == ReduceOp::Kind::premul_sum) {
    next = hash_combine(next, std::bit_cast<std::uint64_t>(request.reduce.factor()));
  }
  if (request.where.purpose != nullptr) next = hash_combine(next, request.where.purpose->key);
  return next;
}

/// In the place of a failed group, for groups that are asked of it. The word that is added is no
/// number of times, so that no id below is that of another list of words.
constexpr GroupId survivors_of(GroupId failed) noexcept {
  return hash_combine(failed, ~std::uint64_t{0});
}

/// The id of a group made of `world_ranks`, in this order, asked for the `times`-th time.
constexpr GroupId child_id(GroupId asked_of, std::span<const int> world_ranks,
                           std::uint64_t times) noexcept {
  GroupId id = hash_combine(hash_combine(asked_of, times), world_ranks.size());
  for (const int rank : world_ranks) id = hash_combine(id, static_cast<std::uint64_t>(rank));
  return id;
}

}  // namespace tutti::group
