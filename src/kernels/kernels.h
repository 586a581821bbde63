// Arithmetic on buffers: reductions in the one canonical order, and copies.
//
// The *canonical order* over n inputs is tree(n) = tree(first k) combined with tree(the rest), k
// the largest power of two below n, the lower subtree always the left operand. A *partial* is the
// tree over some inputs in the *accumulation type* (f32 for f16 and bf16, the element type
// elsewhere), not yet divided (avg) nor rounded; partials of subtrees may be computed anywhere,
// combined, and *finished* once. docs/numerics.md states what every operation gives, to the bit.
//
// Everything here is one pass over memory, dispatched once per call to the best instructions of
// this machine, with the same results on all of them.
//
// Aliasing  An output may be the same pointer as an input (in place); otherwise they must not
//           overlap.
// Threads   No state.
#pragma once

#include <cstddef>
#include <cstring>

#include "tutti/types.h"

namespace tutti::kernels {

/// How a second output is stored. Streaming stores do not pull the target into the cache; they are
/// fenced before the call returns, so that a release store may follow.
enum class Store : std::uint8_t { cached, streaming };

/// What f16 and bf16 are accumulated in: f32; every other type in itself.
constexpr DType accumulation_dtype(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
}

/// out[i] = the tree over inputs[0][i] ... inputs[n-1][i], finished for n ranks; n >= 1. `out2`, if
/// not null, receives the same bytes. The pair must be legal (base/legality.h).
void reduce_tree(DType dtype, ReduceOp op, const void* const* inputs, int n, void* out, void* out2,
                 std::size_t count, Store store2 = Store::cached) noexcept;

/// out[i] = the partial over n inputs; `out` holds `count` elements of the accumulation type.
void reduce_partial(DType dtype, ReduceOp op, const void* const* inputs, int n, void* out,
                    std::size_t count) noexcept;

/// out[i] = the tree over n partials of subtrees, itself a partial: `{left, right}` joins two
/// neighbours. The canonical order results if the partials are the canonical subtrees.
void combine_partials(DType dtype, ReduceOp op, const void* const* partials, int n, void* out,
                      std::size_t count) noexcept;

/// Turns a partial over all `ranks` inputs into elements: divides (avg) and rounds.
void finish_partial(DType dtype, ReduceOp op, int ranks, const void* partial, void* out, void* out2,
                    std::size_t count, Store store2 = Store::cached) noexcept;

/// Copies with plain stores.
inline void copy(void* to, const void* from, std::size_t byte_count) noexcept {
  if (byte_count > 0) std::memcpy(to, from, byte_count);
}

/// Copies with non-temporal stores, fenced before it returns.
void copy_streaming(void* to, const void* from, std::size_t byte_count) noexcept;

/// The instruction set in use, as a name for people: "AVX3".
const char* chosen_target() noexcept;

}  // namespace tutti::kernels
