// What a backend may give that adds in an order of its own.
#pragma once

#include <string>
#include <vector>

#include "tutti/types.h"

namespace tutti::conformance {

/// Whether the order of a reduction can change its result.
bool depends_on_order(DType dtype, ReduceOp::Kind kind) noexcept;

/// Empty if every element of `got` is what some order of the reduction of `inputs` may give, as far
/// as the error bound of the dtype tells: 4 n u sum |x| for sums and 4 n u product |x| for
/// products, u being half a unit in the last place, and n of the smallest numbers. Where an order
/// may overflow, or a product underflow on the way, anything is accepted. `expected` is the
/// canonical result.
std::string out_of_bound(DType dtype, ReduceOp reduce, const std::vector<const void*>& inputs,
                         const void* expected, const void* got, std::size_t count);

}  // namespace tutti::conformance
