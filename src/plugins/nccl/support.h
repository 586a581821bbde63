// What NCCL can do, and as what it sees elements.
#pragma once

#include <cstddef>

#include "plugins/nccl/api.h"
#include "tutti/backend.h"

namespace tutti::nccl_backend {

/// What is not supported the group does itself, through host memory.
Support support_of(const OpKey& key);

/// One element of ours is `per_element` of NCCL's.
struct SeenAs {
  ncclDataType_t type = ncclUint8;
  std::size_t per_element = 1;
};
/// What is only moved goes as bytes.
SeenAs seen_when_moved(DType dtype) noexcept;
/// Of what support_of says yes to: a complex number is two reals, as it is added and scaled by
/// parts.
SeenAs seen_when_reduced(DType dtype) noexcept;

/// Not of premul_sum, whose operators are made for each use.
ncclRedOp_t operator_of(ReduceOp::Kind kind) noexcept;

}  // namespace tutti::nccl_backend
