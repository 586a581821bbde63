// Which reduce operations are defined for which element types.
#pragma once

#include <string_view>

#include "tutti/types.h"

namespace tutti {

/// Empty if `kind` is defined for `dtype` (the table is in docs/numerics.md); else why not and what
/// to do instead, to follow "all_reduce avg of i32: ".
std::string_view why_illegal(DType dtype, ReduceOp::Kind kind) noexcept;
/// The same for what `op` combines; empty if it combines nothing.
std::string_view why_illegal(Op op, DType dtype, ReduceOp::Kind kind) noexcept;

}  // namespace tutti
