// Tensors seen as buffers, inside the adaptor.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "tutti/process_group.h"

namespace tutti::ddp {

/// The DType of a tensor's elements.
/// Errors    kUnsupported, naming the tensor: no such DType, or neither on the CPU nor on CUDA.
DType dtype_of_tensor(const at::Tensor& tensor, std::string_view what);

/// The other way round; every DType is one of torch's.
at::ScalarType scalar_of_dtype(DType dtype);

/// "[10, 784] strides [784, 1] f32", for messages and model descriptions.
std::string describe(const at::Tensor& tensor);

/// Copies root's tensors, of any layout, to all ranks.
void broadcast_tensors(ProcessGroup& group, std::span<const at::Tensor> tensors, int root,
                       Where where);

}  // namespace tutti::ddp
