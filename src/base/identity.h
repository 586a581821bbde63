// The elements that change nothing: what a reduction over no rank at all gives.
#pragma once

#include <cstddef>

#include "tutti/types.h"

namespace tutti {

/// Writes `count` times the identity of `kind` in `dtype`, a legal pair: 0 for sums (+0 where there
/// is a sign), 1 (+ 0i) for products, the largest value (infinity) for min and the smallest for
/// max, all bits for band and none for bor and bxor.
void fill_identity(DType dtype, ReduceOp::Kind kind, void* out, std::size_t count) noexcept;

}  // namespace tutti
