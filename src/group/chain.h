// The chain: a running hash of what a group's ranks have done together. Ranks whose chains differ
// at the same number disagree, now or earlier. Not a defence against malice: a defence against
// mistakes.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "tutti/backend.h"

namespace tutti::group {

/// The finaliser of splitmix64: every bit of `word` moves half of the result's.
constexpr std::uint64_t mix(std::uint64_t word) noexcept {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

/// Hash of `head` followed by `tail`; the order matters.
constexpr std::uint64_t combine(std::uint64_t head, std::uint64_t tail) noexcept {
  return mix(head * 0x9e3779b97f4a7c15u + tail + 1);
}

constexpr std::uint64_t chain_seed(GroupId group) noexcept { return combine(group, 0); }

/// The chain after `request`: operation, dtype, count, reduce operation with its factor, and root.
constexpr std::uint64_t chain_next(std::uint64_t chain, const Request& request) noexcept {
  const auto root = static_cast<std::uint64_t>(static_cast<std::uint32_t>(request.root_or_peer));
  const std::uint64_t what = static_cast<std::uint64_t>(request.op) |
                             static_cast<std::uint64_t>(request.dtype) << 8 |
                             static_cast<std::uint64_t>(request.reduce.kind()) << 16 | root << 32;
  std::uint64_t next = combine(combine(chain, what), request.count);
  if (request.reduce.kind() == ReduceOp::Kind::premul_sum) {
    next = combine(next, std::bit_cast<std::uint64_t>(request.reduce.factor()));
  }
  return next;
}

/// The id of a group made of `world_ranks`, in this order, asked for the `times`-th time.
constexpr GroupId child_id(GroupId parent, std::span<const int> world_ranks,
                           std::uint64_t times) noexcept {
  GroupId id = combine(combine(parent, times), world_ranks.size());
  for (const int rank : world_ranks) id = combine(id, static_cast<std::uint64_t>(rank));
  return id;
}

}  // namespace tutti::group
