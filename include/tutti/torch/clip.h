// Clipping gradients by their norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tutti/types.h"

namespace tutti {

/// What to do about a norm that is NaN or infinite.
enum class NotFinite {
  /// Nothing special, as in torch. A norm that is NaN makes all gradients NaN; an infinite one
  /// makes them zero where they are finite, else NaN.
  scale,
  error,  ///< kInvalidArgument; the gradients stay as they are
  skip,   ///< the gradients stay as they are
};

struct ClipOptions {
  double norm_type = 2;  ///< p of the p-norm; infinity: the largest magnitude
  NotFinite if_not_finite = NotFinite::scale;
};

/// Takes all gradients of these parameters for one vector, and scales it to at most `max_norm`.
/// Returns its norm before. Parameters without gradient are passed over; one given twice counts
/// once.
///
///     loss.backward();
///     tutti::clip_grad_norm_(model.parameters(), 1.0);   // on every rank, after backward
///     optimizer.step();
///
///     const double norm = tutti::clip_grad_norm_(parameters, 1.0, {.if_not_finite = skip});
///     if (std::isfinite(norm)) optimizer.step();         // the same on all ranks
///
/// Numerics  Equal gradients give one norm to the bit on every machine, whatever its threads and
///           vector instructions (torch's depends on both, so that ranks drift apart): the terms
///           are added in f64, in a fixed order, docs/numerics.md. Gradients are multiplied by
///           max_norm / (norm + 1e-6), rounded to their type (f32 for 16-bit ones), if that is
///           below 1.
/// Cost      One pass over the gradients, one thread, and another one if it scales; powers other
///           than 1, 2 and infinity cost tens of nanoseconds an element. Gradients on CUDA are
///           copied to the CPU, which waits for the device. Communicates nothing.
/// Errors    kInvalidArgument: max_norm is negative or NaN, norm_type is 0 or NaN; a norm that is
///           not finite, where that is asked for. kUnsupported: gradients that are sparse, complex
///           or on a device other than the CPU and CUDA.
TUTTI_API double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                 const ClipOptions& options = {});

}  // namespace tutti
