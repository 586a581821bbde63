// Communication hooks: how the gradients in a bucket become their mean over the ranks.
#pragma once

#include <cstddef>
#include <functional>

#include "tutti/process_group.h"

namespace tutti {

/// Gradients of one dtype that this rank has computed and that travel together.
struct GradientBucket {
  Buffer gradients;  ///< flat, with zeros between gradients; the mean is to take their place
  /// What makes a mean of the ranks' gradients: avg; once ranks have left a join that divides by
  /// those still in, premul_sum.
  ReduceOp mean = ReduceOp::avg;
  std::size_t index = 0;  ///< buckets come in this order, from 0, on all ranks
  std::size_t count = 1;  ///< of buckets in the step
  Where where = {};       ///< pass it to operations: messages then say which bucket they are for
};

/// Starts what makes a bucket's gradients their mean and returns the Work that ends with it. Takes
/// the place of the all_reduce of a DistributedDataParallel; set by set_communication_hook.
///
///     auto clamped = [](const tutti::GradientBucket& bucket, tutti::ProcessGroup& group) {
///       auto* values = static_cast<float*>(bucket.gradients.data);
///       for (auto i = bucket.gradients.count; i-- > 0;) values[i] = clamp(values[i]);
///       return group.all_reduce(bucket.gradients, {.op = bucket.mean}, tutti::async,
///                               bucket.where);
///     };
///
/// On CUDA `gradients` is memory of the device, to be used on `gradients.stream`; who does so on
/// another one orders the two. What `then` calls comes when the device is done with the operation.
///
/// Lifetime  Gradients and group outlive the Work, which is waited for before backward returns.
/// Ordering  All ranks start the same operations for a bucket. What must follow an operation is a
///           callback of Work::then.
/// Threads   Called by the thread that runs backward (on CUDA one of libtorch's), while it runs, or
///           at its end where a parameter has another wrapper, too; what `then` calls, by others.
/// Errors    One that throws, or returns a Work of no operation, ends the step with
///           kInvalidArgument that names it; an Error of Tutti's comes out as it is. A hook that
///           exchanges nothing returns the Work of a barrier.
using CommunicationHook = std::function<Work(const GradientBucket& bucket, ProcessGroup& group)>;

/// Gradients of f32 and f64 travel as bf16, or f16: half the bytes, or a quarter; those on CUDA are
/// rounded there. Others travel as they are. One may be set for several models: each has memory of
/// its own for what travels.
///
///     model.set_communication_hook("bf16_compress", tutti::bf16_compress());
///
/// Numerics  Each rank rounds its gradients once, f64 by way of f32; the mean is that of all_reduce
///           (summed and divided in f32) and is rounded once more. The same bits on all ranks. In
///           f16 what is beyond 65,504 becomes infinite before it is averaged, and what is below
///           6e-8 zero: docs/numerics.md.
/// Cost      The memory of the bytes that travel; a pass over the gradients before and one behind.
TUTTI_API CommunicationHook bf16_compress();
TUTTI_API CommunicationHook f16_compress();

}  // namespace tutti
