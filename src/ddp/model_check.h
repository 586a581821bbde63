// Whether all ranks hold the same model, and if not, where they differ.
//
// A model is *described* by one line per tensor; ranks compare *digests* of their descriptions, and
// only if these differ the descriptions themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/process_group.h"

namespace tutti::ddp {

/// One line per option and tensor, in order: "parameter fc.weight [10, 784] f32 trained".
using ModelDescription = std::vector<std::string>;

/// 64-bit hash of bytes: every input bit reaches every output bit. Not for adversaries.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

std::uint64_t digest(const ModelDescription& description);

/// What the first rank that differs from rank 0 has otherwise; empty if none differs.
struct ModelDifference {
  int rank = -1;
  std::string text;  ///< "line 3 is 'parameter fc.weight ...' on rank 0 but '...' on rank 2"
};
ModelDifference first_difference(std::span<const ModelDescription> by_rank);

/// What is compared, for messages.
struct Compared {
  std::string op;      ///< the call, as ErrorContext has it
  std::string owner;   ///< the wrapper
  std::string what;    ///< "models"
  std::string remedy;  ///< a sentence
};

/// Compares over all ranks of the group.
/// Cost      One all_gather of 8 bytes where all are the same.
/// Errors    kCollectiveMismatch with the difference, the same on every rank, whatever the others
///           do once they have been told; the group stays usable.
void check_same(ProcessGroup& group, const Compared& compared, const ModelDescription& own,
                Where where);

}  // namespace tutti::ddp
