// Tensors as buffers.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "tutti/buffer.h"
#include "tutti/types.h"

namespace tutti {

/// A contiguous tensor wherever a Buffer is asked for: `world.all_reduce(tensor, ReduceOp::avg);`
/// One on CUDA is a buffer on its device, to be used in order with what the calling thread's
/// current stream there is given, as libtorch's own operations are.
///
/// Lifetime  Asynchronous calls keep the tensor's memory alive until their Work is done.
/// Errors    kInvalidArgument, naming the line, strides and remedy: not contiguous, undefined,
///           sparse, lazily conjugated. kUnsupported: quantised elements, a device other than the
///           CPU and CUDA.
template <>
struct TUTTI_API BufferTraits<torch::Tensor> {
  // A tensor is a handle: const is shallow.
  static Buffer buffer(const torch::Tensor& tensor, const Where& where);
  static ConstBuffer const_buffer(const torch::Tensor& tensor, const Where& where);
};

/// The memory of a dense tensor in whatever order its strides give it, for operations on elements
/// where order does not matter. All ranks must pass tensors of the same sizes and strides.
/// Errors    kInvalidArgument: the tensor overlaps itself or has holes.
TUTTI_API Buffer in_memory_order(const torch::Tensor& tensor,
                                 const Where& where = Where::current());

/// 64-bit hash of all parameters' names, dtypes and bits: equal models have equal hashes. A
/// DistributedDataParallel stands for its module.
TUTTI_API std::uint64_t parameter_hash(const torch::nn::Module& module);

}  // namespace tutti
